"""What members of containers may be, and what holds them."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import arrow_tables, kinds, library, methods, operators
from hasten.loader.proof.frame import Given
from hasten.loader.proof.objects import attribute_of
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import Value, either, elements, live, new, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.loader.proof.frame import Frame

_MOST_MEMBERS = 1 << 24
_SCALARS = {int, float, str, bytes, bool, type(None)}


def subscript(body: Frame, node: Any) -> Value:
    """Follow `owner[key]`."""
    owner, key = body.value(node.value), body.value(node.slice)
    operators.implied(body, key, node, but=operators.NOT_BY_OPERATORS, deep=False)
    if _is_sliced(body, owner, key):
        part = iterated(body, owner, node)
        body.ask(part, "*", node)
        return new(shares=body.reads.keeps([part]), kind=list)
    found = member(body, owner, key.only, node)
    fresh = owner.fresh and not owner.flat and _has_slice(node.slice)
    if fresh and methods.is_of_library(body, owner, "__getitem__"):
        return Value(None, fresh=True, shares=found.shares)
    return found


def _has_slice(key: ast.expr) -> bool:
    """Return whether a key has a slice: arrays return a view of their memory, lists a new list."""
    parts = key.elts if isinstance(key, ast.Tuple) else [key]
    return any(isinstance(part, ast.Slice) for part in parts)


def _is_sliced(body: Frame, owner: Value, key: Value) -> bool:
    """Return whether indexing may give a list of members, not one of them."""
    if key.flat or owner.flat or not _may_be_slice(body, key):
        return False
    if owner.objects:
        return any(type(one) in (list, tuple) for one in owner.objects)
    return owner.fresh and owner.kind in (list, tuple)


def _may_be_slice(body: Frame, key: Value) -> bool:
    if key.objects is not None:
        return any(type(one) is slice for one in key.objects)
    if key.kind is not None:
        return key.kind is slice
    return not key.is_plain or slice in body.reads.facts.made


def has_positions(value: Value) -> bool:
    """Return whether unpacking a value is the same as indexing it."""
    if not value.objects:
        return False
    return all(type(one) in (tuple, list) or isinstance(one, tuple) for one in value.objects)


def member(body: Frame, owner: Value, key: Any, node: ast.AST | None) -> Value:
    """Return what `owner[key]` may be; an ellipsis stands for any key."""
    if owner.objects is None:
        if owner.kind is not None and is_user_class(owner.kind):
            found = attribute_of(owner.kind, "__getitem__")
            if isinstance(found, FunctionType):
                return body.follower.call(body, found, Given([owner, new(flat=True)], {}, node))
        body.ask(owner, "__getitem__", node)
        if owner.flat:
            return Value(None, fresh=owner.fresh, shares=owner.shares, flat=True)
        holds = body.reads.holds(owner)
        found = Value(None, fresh=not holds, shares=holds)
        body.ask(found, "*", node)
        return found
    if len(owner.objects) > _MOST_MEMBERS:
        return body.gap("the dataset is too large to be looked through", node)
    quick = _quick(owner.objects, key)
    if quick is not None:
        return _summed(body, quick)
    return _each(body, owner.objects, key, node)


def _quick(objects: tuple[Any, ...], key: Any) -> Sequence[Any] | None:
    """Return the members of many lists or dictionaries of Python's own at one key."""
    kind = type(objects[0]) if objects else None
    if len(objects) < 2 or kind not in (list, tuple, dict) or type(key) not in (int, str):
        return None
    if set(map(type, objects)) != {kind}:
        return None
    try:
        return [one[key] for one in objects]
    except (KeyError, IndexError, TypeError):
        return None


def _each(body: Frame, objects: tuple[Any, ...], key: Any, node: ast.AST | None) -> Value:
    found: list[Value] = []
    loose: list[Any] = []
    for one in objects:
        part = _member_of(body, one, key, node)
        if isinstance(part, Value):
            found.append(part)
        else:
            loose += part
        if len(found) > 64:
            found = [either(*found)]
    if loose or not found:
        found.append(_summed(body, loose))
    return either(*found)


def _summed(body: Frame, parts: Sequence[Any]) -> Value:
    kinds = set(map(type, parts))
    if len(parts) > 1 and kinds <= _SCALARS and kinds != {type(None)}:
        return new(flat=True)
    return body.reads.load(*parts) if parts else unknown()


def _member_of(body: Frame, one: Any, key: Any, node: ast.AST | None) -> Value | tuple[Any, ...]:
    """Return the members of a live object that a key may refer to, or what they may be."""
    kind = type(one)
    if kind.__name__ == "defaultdict":
        return body.gap("a defaultdict grows when it is read", node)
    if kinds.is_arrow_table(one):
        return arrow_tables.row(body, one, node)
    if library.is_read(kind) and not _has_stock_items(kind):
        index = Given([new(flat=True)], {}, node)
        return body.follower.method(body, live(one), "__getitem__", index)
    held = elements(one)
    if held is None:
        return _part_of_array(body, one, node)
    if key is ... or isinstance(key, slice) or not kinds.is_container(one):
        return held
    try:
        return (one[key],)
    except (KeyError, IndexError, TypeError):
        return held


def _part_of_array(body: Frame, one: Any, node: ast.AST | None) -> Value:
    whole = live(one)
    if whole.flat and not isinstance(one, type):
        return Value(None, fresh=whole.fresh, shares=whole.shares, flat=True)
    if kinds.is_array(one):
        return unknown()
    return body.gap(f"{kinds.shown(one)} is read", node)


def _has_stock_items(kind: type) -> bool:
    if attribute_of(kind, "__missing__") is not None:
        return False
    found = attribute_of(kind, "__getitem__")
    return found in (list.__getitem__, dict.__getitem__, tuple.__getitem__)


def iterated(body: Frame, owner: Value, node: ast.AST | None) -> Value:
    """Return what the members of an iterated value may be."""
    if owner.objects is None:
        operators.implied(body, owner, node)
        return member(body, owner, ..., node)
    keys: list[Any] = []
    others: list[Any] = []
    for one in owner.objects:
        if hasattr(type(one), "__next__"):
            return body.gap("an iterator that outlives the batch goes on", node)
        if _iterates_itself(one):
            return body.gap("an object of the script's is iterated", node)
        if kinds.gives_batches(one):
            return body.gap("it goes through a loader of its own", node)
        if isinstance(one, dict):
            keys += dict.keys(one)
        else:
            others.append(one)
    found = [_summed(body, keys)] if keys else []
    if others or not found:
        found.append(_each(body, tuple(others), ..., node) if others else new())
    return either(*found)


def _iterates_itself(one: Any) -> bool:
    kind = type(one)
    if not library.is_read(kind):
        return False
    return elements(one) is None or isinstance(attribute_of(kind, "__iter__"), FunctionType)


# ---- displays and comprehensions


def sequence(body: Frame, node: Any) -> Value:
    """Follow `[...]`, `(...)` and `{...}`."""
    parts = [
        iterated(body, body.value(one.value), one) if isinstance(one, ast.Starred)
        else body.value(one)
        for one in node.elts
    ]  # fmt: skip
    if isinstance(node, ast.Set):
        for part in parts:
            operators.implied(body, part, node)
    return _container(body, parts, kind=tuple if isinstance(node, ast.Tuple) else list)


def _container(body: Frame, parts: Sequence[Value], kind: type | None) -> Value:
    holds = body.reads.keeps(parts)
    onlies = [part.only for part in parts]
    if kind is tuple and not holds and all(part.flat for part in parts) and ... not in onlies:
        return live(tuple(onlies))
    return new(shares=holds, kind=kind)


def dictionary(body: Frame, node: Any) -> Value:
    """Follow `{key: value}`."""
    keys = [body.value(one) for one in node.keys if one is not None]
    for key in keys:
        operators.implied(body, key, node)
    return _container(body, [*keys, *(body.value(one) for one in node.values)], kind=dict)


def comprehension(body: Frame, node: Any) -> Value:
    """Follow a comprehension or a generator expression."""
    if any(isinstance(one, ast.NamedExpr) for one in ast.walk(node)):
        return body.gap("a comprehension with an assignment cannot be followed", node)
    first = iterated(body, body.value(node.generators[0].iter), node)
    outer, trails = body.variables, body.trails
    seen = body.enclosing() if isinstance(node, ast.GeneratorExp) else outer  # it may run later
    body.variables, body.trails = {name: seen[name] for name in outer}, []
    found = _made(body, node, first)
    body.variables, body.trails = outer, trails
    return found


def _made(body: Frame, node: Any, first: Value) -> Value:
    for position, generator in enumerate(node.generators):
        if position > 0:
            first = iterated(body, body.value(generator.iter), generator.iter)
        body.assign(generator.target, first)
        for test in generator.ifs:
            operators.tested(body, body.value(test), test)
    made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    parts = [body.value(one) for one in made]
    kind = {ast.DictComp: dict, ast.GeneratorExp: None}.get(type(node), list)
    return _container(body, parts, kind=kind)
