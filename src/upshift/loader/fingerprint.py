"""What a dataset looks like from outside, cheaply enough for a look at every batch."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

_DEEPEST = 3
_LONGEST = 64
_SAMPLE_COUNT = 4096
_PLAIN = (int, float, str, bytes, bool, type(None))


def fingerprint(value: Any, depth: int = 0, *, brief: bool = False) -> Any:
    """Return what a dataset looks like from here; workers that saw another one are stale.

    Plain attributes by value, everything else by identity, three levels deep; long containers
    by the identity of their members, tensors by their count of writes, arrays by a sample;
    functions by what they are bound to or enclose. A write deeper than that is not seen: once
    in a pass a `Portrait` looks for those.

    Args:
        value: the dataset, or a part of it.
        depth: how deep that part lies.
        brief: look at long containers and arrays only from outside, for a look at every batch.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (type, ModuleType)) or depth == _DEEPEST:
        return id(value)
    parts: Any = value
    if type(value) in (dict, list, tuple, set) and len(value) > _LONGEST:
        return id(value), len(value), brief or _members(value)
    if type(value) is dict:
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (MethodType, FunctionType, partial)):
        parts = bound_to(value)
    if type(parts) in (list, tuple, set):
        return id(value), tuple(fingerprint(part, depth + 1, brief=brief) for part in parts)
    attributes = getattr(value, "__dict__", None) or {}
    inside = [
        (name, fingerprint(part, depth + 1, brief=brief))
        for name, part in sorted(attributes.items())
    ]
    return id(value), _writes(value, brief=brief), tuple(inside)


def _members(value: Any) -> int:
    parts = [*value.keys(), *value.values()] if type(value) is dict else value
    return hash(tuple(map(id, parts)))


def bound_to(function: Any) -> list[Any]:
    """Return the object of a method, the arguments of a `partial`, or what a function encloses."""
    if isinstance(function, MethodType):
        return [function.__self__, function.__func__]
    if isinstance(function, partial):
        return [function.func, *function.args, *function.keywords.values()]
    enclosed = []
    for cell in function.__closure__ or ():
        try:
            enclosed.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return enclosed


def _writes(value: Any, *, brief: bool) -> Any:
    """Return what changes when a tensor or an array is written in place."""
    kind = type(value)
    try:
        if hasattr(kind, "_version"):
            return value._version
        if not brief and hasattr(kind, "__array_interface__") and kind.__name__ != "memmap":
            flat = value.reshape(-1)
            return hash(flat[:: 1 + flat.size // _SAMPLE_COUNT].tobytes())
    except Exception:  # an inference tensor counts no writes; arrays of strangers may refuse
        return None
    return None
