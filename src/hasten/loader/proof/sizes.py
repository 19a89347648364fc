"""Which names may stand for None: a loader with such a batch size hands on the items themselves."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.bindings import Part, called, parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

Given = tuple[ast.AST, ast.AST | None]
"""What is set, and to what; None if that is not known."""

_NUMBERS = {"int", "len", "min", "max", "abs", "round"}
_ANYTHING = (ast.Await, ast.Yield, ast.YieldFrom, ast.Starred, Part)


def none_names(given: Iterable[Given], known: Set[str]) -> set[str]:
    """Return the names that may stand for None, whatever they are names of.

    Args:
        given: what the code sets names to.
        known: names that may stand for None to begin with.
    """
    pairs = [(name, value) for target, value in given if (name := _name_of(target))]
    found = set(known)
    grown = True
    while grown:
        before = len(found)
        found |= {name for name, value in pairs if may_be_none(value, found)}
        grown = before != len(found)
    return found


def may_be_none(node: ast.AST | None, names: Set[str]) -> bool:
    """Return whether an expression may be None, given the names that may."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.IfExp):
        return may_be_none(node.body, names) or may_be_none(node.orelse, names)
    if isinstance(node, ast.BoolOp):
        return any(may_be_none(one, names) for one in node.values)
    if isinstance(node, ast.NamedExpr):
        return may_be_none(node.value, names)
    if isinstance(node, ast.Call):
        return not isinstance(node.func, ast.Name) or called(node) not in _NUMBERS - names
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return _name_of(node) in names | {""}
    return node is None or isinstance(node, _ANYTHING)


def given_by(node: ast.AST) -> Iterator[Given]:
    """Yield what a node gives to names other than variables: keywords and keys."""
    if isinstance(node, ast.Call) and called(node) != "DataLoader":
        yield from ((ast.Name(one.arg), one.value) for one in node.keywords if one.arg)
    elif isinstance(node, ast.Dict):
        keyed = zip(node.keys, node.values, strict=True)
        yield from ((ast.Name(key.value), value) for key, value in keyed
                    if isinstance(key, ast.Constant) and isinstance(key.value, str))  # fmt: skip


def given_to(target: Any, source: ast.AST | None, *, iterates: bool) -> Iterator[Given]:
    """Yield what a target is given, or each of its targets."""
    if iterates:
        is_listed = isinstance(source, (ast.Tuple, ast.List))
        for one in source.elts if is_listed else [None]:  # type: ignore[union-attr]
            yield from given_to(target, one, iterates=False)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for one, part in parts(target, source):
            yield from given_to(one, part, iterates=False)
    else:
        yield target, source


def _name_of(node: ast.AST) -> str:
    """Return the last name of a variable, an attribute or what a key gets; else nothing."""
    key = getattr(node, "slice", None)
    value = getattr(key, "value", None) if isinstance(key, ast.Constant) else None
    return getattr(node, "attr", getattr(node, "id", value if isinstance(value, str) else ""))
