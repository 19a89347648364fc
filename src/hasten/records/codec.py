"""Rebuild records from their JSON form."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any

from hasten import records

NAMES = {**vars(records), "Mapping": collections.abc.Mapping}
_COLLECTIONS = (tuple, collections.abc.Mapping)


def revive(kind: Any, value: Any) -> Any:
    """Rebuild a record from its JSON form.

    msgspec would do this, were it not that the records name one another only for the type
    checker, so that their annotations cannot be resolved without the names given here.

    Raises:
        TypeError: it is the form of something else, such as of the record of another release.
    """
    if value is None:
        if dataclasses.is_dataclass(kind) or typing.get_origin(kind) in _COLLECTIONS:
            raise TypeError(f"null is no {kind}")
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind, localns=NAMES)
        return kind(**{name: revive(hints[name], item) for name, item in value.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if hasattr(kind, "_fields"):  # a NamedTuple of plain values
        return kind(*value)
    return _revive_generic(typing.get_origin(kind), typing.get_args(kind), value)


def _revive_generic(origin: Any, parts: tuple[Any, ...], value: Any) -> Any:
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"a {type(value).__name__} is no list")
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(revive(kind, item) for kind, item in zip(kinds, value, strict=True))
    if origin is collections.abc.Mapping:
        return {revive(parts[0], key): revive(parts[1], item) for key, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        some = [kind for kind in parts if kind is not type(None)]
        # More than one is a Setting, which JSON keeps as it is.
        return revive(some[0], value) if len(some) == 1 else value
    return value
