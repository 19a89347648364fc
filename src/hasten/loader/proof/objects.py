"""Attributes of live objects, looked up without running any of their code."""

from __future__ import annotations

import inspect
from collections import namedtuple
from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

_FIELD = type(namedtuple("_Fields", "one").one)  # type: ignore[attr-defined]
_SLOTS = (MemberDescriptorType, GetSetDescriptorType, _FIELD)
_STOCK_DESCRIPTORS = (
    *_SLOTS, FunctionType, staticmethod, classmethod, property, WrapperDescriptorType,
    type(list.append), type(dict.__dict__["fromkeys"]), BuiltinFunctionType,
)  # fmt: skip


OPAQUE = object()
"""Stands for an attribute whose value only running code could tell."""


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, a method bound; None where there is none.

    A property is returned as such, since only its code knows what it would return. If a
    descriptor or a method of the script's would answer, it is `OPAQUE`.
    """
    if _answers_itself(owner):
        return OPAQUE
    held = None if isinstance(owner, type) else _own(owner)
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    for kind in kinds:
        if name in vars(kind):
            found = vars(kind)[name]
            if held is not None and name in held and not hasattr(type(found), "__set__"):
                return held[name]
            return _bound(owner, found)
    if held is not None and name in held:
        return held[name]
    return _asked(owner, name, held)


def _asked(owner: Any, name: str, held: dict[str, Any] | None) -> Any:
    """Return what `__getattr__` finds: the parts of a `torch.nn.Module`."""
    if isinstance(owner, type):
        return None
    asks = next((vars(one)["__getattr__"] for one in type(owner).__mro__
                 if "__getattr__" in vars(one)), None)  # fmt: skip
    if asks is None:
        return None
    if getattr(asks, "__module__", "") != "torch.nn.modules.module":
        return OPAQUE
    for part in ("_modules", "_parameters", "_buffers"):
        parts = (held or {}).get(part)
        if isinstance(parts, dict) and name in parts:
            return parts[name]
    return None


def _answers_itself(owner: Any) -> bool:
    kind: Any = type(owner)
    if isinstance(owner, type):
        return kind.__getattribute__ is not type.__getattribute__ or "__getattr__" in {
            name for one in kind.__mro__ if one not in (type, object) for name in vars(one)
        } - {"__getattr__" if issubclass(owner, Enum) else ""}
    return isinstance(kind.__getattribute__, FunctionType)


def has_attribute(owner: Any, name: str) -> bool:
    """Return whether an object has an attribute, without running code of its own."""
    if isinstance(owner, ModuleType):
        return hasattr(owner, name)
    missing = object()
    return inspect.getattr_static(owner, name, missing) is not missing


def parameter_count(one: Any) -> int:
    """Return how many arguments a function takes, apart from the object of a method."""
    code = getattr(getattr(one, "__func__", one), "__code__", None)
    return code.co_argcount - isinstance(one, MethodType) if code else 1


def _own(owner: Any) -> dict[str, Any] | None:
    try:
        held = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return held if isinstance(held, dict) else None


def _bound(owner: Any, found: Any) -> Any:
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return MethodType(found.__func__, owner if isinstance(owner, type) else type(owner))
    if not isinstance(found, (type, *_STOCK_DESCRIPTORS)) and hasattr(type(found), "__get__"):
        return OPAQUE
    if isinstance(owner, type):
        return found
    if isinstance(found, FunctionType):
        return MethodType(found, owner)
    if isinstance(found, _SLOTS):
        try:
            return found.__get__(owner, type(owner))
        except AttributeError:
            return None
    return found
