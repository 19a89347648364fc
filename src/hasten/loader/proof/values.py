"""What an expression in the code of an item may be."""

from __future__ import annotations

import datetime
import pathlib
import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import chain
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.source import is_user_class

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMERIC = ("float", "int", "uint", "bool", "complex", "double", "f", "i", "u", "torch.")
_MOST_ATOMS = 64
_ATOMIC: set[type] = {
    int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range,
    re.Pattern, datetime.datetime, datetime.date,
    datetime.time, datetime.timedelta, pathlib.PosixPath, pathlib.PurePosixPath,
    pathlib.WindowsPath, pathlib.PureWindowsPath,
}  # fmt: skip
_ATOMIC_NAMES = {
    ("torch", "dtype"), ("torch", "device"), ("torch", "Size"), ("torch", "layout"),
    ("torch", "memory_format"), ("pandas", "Timestamp"), ("pandas", "Timedelta"),
}  # fmt: skip
_HOMES = {"numpy", "PIL", "pandas", "torch", "array", "builtins"}
_BUFFERS = {("torch", "Tensor"), ("torch", "Parameter"), ("array", "array")}
_CONTAINERS = {list, tuple, set, frozenset, deque}
_MAPPINGS = {dict, OrderedDict, defaultdict, Counter}
_FRAMES = {"DataFrame", "Series", "Index", "RangeIndex"}


def _root(kind: type) -> str:
    return str(kind.__module__ or "").partition(".")[0]


def is_atomic(value: Any) -> bool:
    """Return whether no part of a value can change, whoever holds it."""
    kind = type(value)
    if kind in _ATOMIC:
        return True
    if kind is type and _root(value) in ("numpy", "builtins"):
        return not is_user_class(value)
    if kind in (tuple, frozenset):
        return all(map(is_atomic, value))
    if kind is BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    known: bool = _is_atomic_kind(kind)  # type: ignore[arg-type]
    return known


@cache
def _is_atomic_kind(kind: Any) -> bool:
    if issubclass(kind, Enum):
        return not is_user_class(kind)
    if _root(kind) == "numpy":
        names = {parent.__name__ for parent in kind.__mro__}
        return bool(names & {"generic", "dtype"}) and not is_user_class(kind)
    return (_root(kind), kind.__name__) in _ATOMIC_NAMES and not is_user_class(kind)


def all_atomic(objects: Iterable[Any]) -> bool:
    """Return whether no part of many values can change; fast for millions of them."""
    level = list(objects)
    while level:
        kinds = set(map(type, level))
        rest = kinds - _ATOMIC
        if not rest:
            return True
        if rest != {tuple}:
            return all(map(is_atomic, level))
        if kinds != rest:
            level = [one for one in level if type(one) is tuple]
        level = list(chain.from_iterable(level))
    return True


def is_buffer(value: Any) -> bool:
    """Return whether a value is memory holding numbers, which cannot contain objects."""
    kind = type(value)
    if kind in _CONTAINERS or kind in _MAPPINGS:
        return False
    if not _may_be_buffer(kind):  # type: ignore[arg-type]
        return False
    root = _root(kind)
    if root == "numpy" and kind.__name__ in ("ndarray", "memmap"):
        return not value.dtype.hasobject
    if root == "PIL":
        return any(parent.__name__ == "Image" for parent in kind.__mro__)
    if root == "pandas" and kind.__name__ in _FRAMES:
        return _has_plain_columns(value)
    return kind is bytearray or (root, kind.__name__) in _BUFFERS


@cache
def _may_be_buffer(kind: Any) -> bool:
    return _root(kind) in _HOMES and not is_user_class(kind)


def _has_plain_columns(frame: Any) -> bool:
    columns = [frame[name] for name in frame] if type(frame).__name__ == "DataFrame" else [frame]
    return all(str(one.dtype) != "object" or all_atomic(one.tolist()) for one in columns)


@dataclass(slots=True)
class Value:
    """What an expression may be.

    Attributes:
        objects: the live objects that it may be; None if there are none or they are unknown.
        fresh: it was made for this batch, so writing into it affects nothing else.
        shares: it holds, or is a view of, something that outlives the batch.
        kind: its class, if it is fresh and its class is known.
        made: a function that was defined in the code itself, with what it encloses.
        stages: what a chain of transforms that was made for the batch calls, in order.
        flat: no object can be put into it: a number, a string, or memory holding numbers.
    """

    objects: tuple[Any, ...] | None = None
    fresh: bool = False
    shares: bool = True
    kind: type | None = None
    made: Any = None
    stages: tuple[Value, ...] | None = None
    flat: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it was made for this batch and shares nothing that outlives it."""
        return self.fresh and not self.shares

    @property
    def only(self) -> Any:
        """The one live object that it is; an ellipsis if it may be one of several or is unknown."""
        return self.objects[0] if self.objects and len(self.objects) == 1 else ...


def new(*, shares: bool = False, kind: type | None = None, flat: bool = False) -> Value:
    """Return a value that was made for this batch."""
    return Value(None, fresh=True, shares=shares, kind=kind, flat=flat)


def unknown() -> Value:
    """Return a value that may be anything."""
    return Value()


def derived(*parts: Value, flat: bool = False) -> Value:
    """Return a value that may be a view of its parts, as from `numpy.asarray`."""
    shares = any(part.shares or not part.fresh for part in parts)
    return Value(None, fresh=not shares, shares=shares, flat=flat)


def live(*objects: Any) -> Value:
    """Return a value that is one of some objects that outlive the batch."""
    if all_atomic(objects):
        if len(objects) > _MOST_ATOMS:
            return new(flat=True)
        return Value(objects, fresh=True, shares=False, flat=True)
    return Value(objects, flat=all(is_atomic(one) or is_buffer(one) for one in objects))


def either(*values: Value) -> Value:
    """Return a value that is one of several."""
    distinct = list({id(value): value for value in values}.values())
    if len(distinct) == 1:
        return distinct[0]
    objects: dict[int, Any] | None = {}
    for value in distinct:
        if value.objects is None or objects is None:
            objects = None
        else:
            objects.update((id(one), one) for one in value.objects)
    kinds = {value.kind for value in distinct}
    stages = distinct[0].stages
    if any(value.stages is not stages for value in distinct):
        kinds, stages = set(), None  # a chain with unknown stages is not a chain
    made = [value.made for value in distinct]
    return Value(
        None if objects is None else tuple(objects.values()),
        fresh=all(value.fresh for value in distinct),
        shares=any(value.shares for value in distinct),
        kind=kinds.pop() if len(kinds) == 1 else None,
        made=made[0] if all(one == made[0] for one in made) else None,
        stages=stages,
        flat=all(value.flat for value in distinct),
    )


def sign(value: Value) -> Any:
    """Return a key that distinguishes a value from others."""
    objects = None if value.objects is None else tuple(map(id, value.objects))
    made = tuple(map(id, value.made)) if value.made else ()
    return objects, value.fresh, value.shares, value.kind, made, id(value.stages), value.flat


def elements(container: Any) -> tuple[Any, ...] | None:
    """Return the members of a live container; None if it is not a known kind of container."""
    kind = type(container)
    if kind in _MAPPINGS:
        return tuple(container.values())
    if kind in _CONTAINERS:
        return tuple(container)
    if isinstance(container, dict):  # a class of the script's: its own code is judged elsewhere
        return tuple(dict.values(container))
    stocks: tuple[Any, ...] = (list, tuple, set, frozenset)
    for stock in stocks:
        if isinstance(container, stock):
            return tuple(stock.__iter__(container))
    return None


def is_numeric(dtype: Value | None) -> bool:
    """Return whether a dtype argument names a numeric type."""
    if dtype is None or not dtype.objects:
        return False
    return all(
        str(getattr(one, "__name__", one)).strip("<>|=").startswith(_NUMERIC)
        for one in dtype.objects
    )


MANY = unknown()
"""Stands for any number of further arguments."""
