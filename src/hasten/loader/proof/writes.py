"""Follow what the code of items writes into."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.frame import Given
from hasten.loader.proof.objects import OPAQUE, attribute_of
from hasten.loader.proof.source import is_user_class, text_of
from hasten.loader.proof.values import Value, is_atomic, new

if TYPE_CHECKING:
    from hasten.loader.proof.frame import Frame

_MEMORY = ("data", "grad", "__class__", "__dict__", "base", "strides", "dtype", "shape")
_NUMBERS = (int, float, complex, str, bytes, bool, type(None))


def attribute(body: Frame, owner: Value, name: str, value: Value, node: ast.AST) -> None:
    """Follow `owner.name = value`."""
    if name.startswith("__") or (name in _MEMORY and body.reads.holds(value)):
        body.gap(f"it sets {name}", node)
    body.reads.facts.stored.add(name)
    if owner.fresh and owner.kind is not None and is_user_class(owner.kind):
        found = attribute_of(owner.kind, name)
        if isinstance(found, property) and found.fset is not None:
            body.follower.call(body, found.fset, Given([owner, value], {}, node))
        elif found is OPAQUE or isinstance(attribute_of(owner.kind, "__setattr__"), FunctionType):
            body.gap(f"code of the script's sets {name}", node)
    body.ask(owner, f"={name}", node)
    body.ask(owner, "__setattr__", node)
    into(body, owner, value, node)


def member(body: Frame, owner: Value, value: Value, node: ast.AST) -> None:
    """Follow `owner[...] = value`."""
    kind = owner.kind if owner.fresh else None
    if kind is not None and is_user_class(kind):
        found = attribute_of(kind, "__setitem__")
        if isinstance(found, FunctionType):
            body.follower.call(body, found, Given([owner, new(), value], {}, node))
    body.ask(owner, "__setitem__", node)
    into(body, owner, value, node)


def into(body: Frame, owner: Value, value: Value, node: ast.AST) -> None:
    """Follow a write into an object."""
    if not owner.fresh:
        body.gap(f"it writes into what outlives the batch: `{text_of(node)}`", node)
    elif body.reads.holds(value) and not owner.flat:
        body.reads.facts.mixes = True
        owner.shares = True


def augmented(body: Frame, node: Any) -> None:
    """Follow `target += value`: a number is replaced, anything else is written into."""
    before, added = body.value(_loaded(node.target)), body.value(node.value)
    body.ask(before, "*", node)
    body.ask(added, "*", node)
    if not before.fresh and not _is_number(before):
        body.gap(f"it writes into what outlives the batch: `{text_of(node)}`", node)
    if before.kind is not None and is_user_class(before.kind):
        body.gap("an operator of a class of the script's is used", node)
    holds = before.shares or (body.reads.holds(added) and not added.flat and not before.flat)
    if holds and not before.shares:
        body.reads.facts.mixes = True
        before.shares = True
    flat = before.flat and (added.flat or isinstance(node.op, ast.Add))
    result = new(shares=holds and not flat, kind=before.kind, flat=flat)
    if isinstance(node.target, ast.Name):
        body.bind(node.target.id, result, node)
    else:
        body.assign(node.target, result)


def _is_number(value: Value) -> bool:
    return bool(value.objects) and all(
        type(one) in _NUMBERS or is_atomic(one) for one in value.objects or ()
    )


def _loaded(target: Any) -> Any:
    made = ast.copy_location(type(target)(**{**vars(target), "ctx": ast.Load()}), target)
    return ast.fix_missing_locations(made)
