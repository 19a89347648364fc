"""Resolve the names looked up on unknown objects, by all that those objects can be."""

from __future__ import annotations

from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import calls, kinds, library, operators
from hasten.loader.proof.frame import Given
from hasten.loader.proof.objects import OPAQUE, attribute_of
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import Value, elements, is_atomic, is_buffer, new, unknown

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from hasten.loader.proof.body import Body
    from hasten.loader.proof.reads import Reads

_MOST_LEVELS = 64
_ATOMS = {int, float, str, bytes, bool, type(None)}
_CODE = (FunctionType, MethodType, ModuleType, type)


def reachable(reads: Reads) -> list[Any]:
    """Return what can be reached through what the items read, apart from numbers and strings."""
    seen: dict[int, Any] = {}
    level = [*reads.content.values(), *reads.objects.values()]
    for _ in range(_MOST_LEVELS):
        tuples = [one for one in level if type(one) is tuple]
        fresh = [one for one in level if type(one) is not tuple and id(one) not in seen]
        if not fresh and not tuples:
            break
        seen.update((id(one), one) for one in fresh)
        parts = (_inside(one, reads.attributes) for one in fresh)
        level = [
            one for one in chain(chain.from_iterable(tuples), chain.from_iterable(parts))
            if type(one) not in _ATOMS
        ]  # fmt: skip
    return list(seen.values())


def _inside(one: Any, names: set[str]) -> Sequence[Any]:
    if type(one) is list:
        return one
    if type(one) is dict:
        return (*one.values(), *one)
    if isinstance(one, _CODE) or is_atomic(one) or is_buffer(one):
        return ()
    return _inside_object(one, names)


def _inside_object(one: Any, names: set[str]) -> Sequence[Any]:
    held = elements(one)
    if held is not None and isinstance(one, dict):
        held += tuple(dict.keys(one))
    if type(one).__module__.startswith(("numpy", "pandas")) and hasattr(one, "tolist"):
        return tuple(one.ravel().tolist()) if hasattr(one, "ravel") else tuple(one.tolist())
    if type(one).__name__ == "DataFrame":
        return tuple(one[name] for name in one)
    own = getattr(one, "__dict__", None)
    mine = tuple(value for name, value in own.items() if name in names) if own else ()
    return (held or ()) + mine


def answer(body: Body) -> None:
    """Follow the names looked up on unknown objects, until there are no new ones."""
    done: set[tuple[str, bool]] = set()
    while rest := [asked for asked in body.reads.asks if asked not in done]:
        done.update(rest)
        outlives = body.reads.facts.copies or any(not made for _, made in rest)
        if outlives:
            found = reachable(body.reads)
            body.reads.load(*found)
            _of_live(body, found, rest)
        for kind in body.reads.facts.made:
            if is_user_class(kind):
                _of_kind(body, kind, new(kind=kind, shares=True), rest)
        if body.reads.gaps:
            return


def _of_live(body: Body, found: list[Any], asked: list[tuple[str, bool]]) -> None:
    by_kind: dict[type, list[Any]] = {}
    for one in found:
        by_kind.setdefault(type(one), []).append(one)
    for kind, objects in by_kind.items():
        if issubclass(kind, _CODE) or kind in (list, dict, tuple, set, frozenset):
            continue
        if library.is_read(kind):
            _of_kind(body, kind, Value(tuple(objects)), asked)
        elif not all(map(kinds.is_known, objects)):
            _of_library(body, objects[0], asked)


def _of_library(body: Body, one: Any, asked: list[tuple[str, bool]]) -> None:
    """Refuse lookups that an unknown library class would answer."""
    for name, made in asked:
        if made and not body.reads.facts.copies:
            continue
        path, node = body.reads.asks[name, made]
        wanted = "__next__" if name == "*" else name
        if not wanted.startswith(("=", "!")) and _has(type(one), wanted):
            body.reads.gap(f"it may call .{wanted} of {kinds.shown(one)}", path, node)


def _has(kind: type, name: str) -> bool:
    return any(name in vars(parent) for parent in kind.__mro__)


def _of_kind(body: Body, kind: type, owner: Value, asked: list[tuple[str, bool]]) -> None:
    for name, made in asked:
        if owner.objects is not None and made and not body.reads.facts.copies:
            continue
        path, node = body.reads.asks[name, made]
        implicit = name == "*"
        names = operators.special_methods(body.reads, kind) if implicit else [name.lstrip("!")]
        for one in names:
            _asked(body, kind, owner, one, path, node)


def _asked(  # noqa: PLR0917
    body: Body, kind: type, owner: Value, name: str, path: str, node: ast.AST | None
) -> None:
    """Follow one method or property of a class of the script's, with unknown arguments."""
    found = attribute_of(kind, name.lstrip("="))
    if found is OPAQUE:
        body.reads.gap(f"it may read {name} of a {kind.__name__}", path, node)
    function = found
    if isinstance(found, property):
        function = found.fset if name.startswith("=") else found.fget
    elif name.startswith("="):
        return
    if not isinstance(function, FunctionType):
        return
    if not calls.is_followed(function):
        return
    many = [unknown()] * (function.__code__.co_argcount - 1)
    earlier, body.path = body.path, path
    body.follower.call(body, function, Given([owner, *many], {}, node))
    body.path = earlier
