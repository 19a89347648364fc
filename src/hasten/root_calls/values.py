"""The tensors in the arguments and results of a root call."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def with_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with every tensor in it replaced by `change(tensor)`.

    A container in which nothing changes stays the same object; any other is copied and changed,
    since the model or the script may have kept the original.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return _packed(value, change)
    if isinstance(value, (list, tuple)):
        parts = [with_tensors(part, change) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else _sequence_like(value, parts)
    if isinstance(value, MutableMapping):
        return _copy_with(value, _changed_parts(dict(value.items()), change))
    if is_dataclass(value) and not isinstance(value, type):
        own = {item.name: getattr(value, item.name, None) for item in fields(value)}
        return _copy_with(value, _changed_parts(own, change))
    return value


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a value, in the order in which `with_tensors` meets them."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    with_tensors(value, note)
    return found


def _packed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change a packed sequence, except for `batch_sizes`, which torch wants on the CPU."""
    named = {name: getattr(value, name) for name in ("data", "sorted_indices", "unsorted_indices")}
    parts = _changed_parts(named, change)
    return value._replace(**parts) if parts else value


def _sequence_like(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, list):
        changed = copy.copy(value)
        changed[:] = parts
        return changed
    if hasattr(value, "_make"):  # a named tuple
        return value._make(parts)
    # Torch's own (`torch.max(x, 0)`) are made from one sequence, as plain tuples are.
    plain = type(value) is tuple or hasattr(value, "n_sequence_fields")
    return type(value)(parts) if plain else value


def _changed_parts(own: dict[Any, Any], change: Callable[[Any], Any]) -> dict[Any, Any]:
    parts = {name: with_tensors(part, change) for name, part in own.items()}
    return {name: part for name, part in parts.items() if part is not own[name]}


def _copy_with(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a copy of a mapping or a dataclass with new parts; without any, `value` itself."""
    if not parts:
        return value
    changed = copy.copy(value)
    for name, part in parts.items():
        if isinstance(changed, MutableMapping):
            changed[name] = part
        else:
            object.__setattr__(changed, name, part)  # even if it is frozen
    return changed
