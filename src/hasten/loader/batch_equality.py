"""Compare two batches down to the bit, including their types and strides."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from hasten.loader.view import is_forked

_TENSOR_TRAITS = ("dtype", "device", "layout", "requires_grad", "shape")


def difference(ours: Any, theirs: Any, where: str = "batch") -> str:
    """Say how two batches differ; empty if they are the same.

    It compares types, containers and their order, that of sets too, shapes, strides, dtypes,
    devices and bits: a NaN equals the same NaN, and 0.0 is not -0.0. Pinning is not compared in a
    loader worker: nothing is pinned there, and a driver started before the fork cannot be queried.
    """
    if type(ours) is not type(theirs):
        return f"{where}: {type(ours).__name__} and {type(theirs).__name__}"
    for compare in (_tensors, _arrays, _mappings, _sequences, _records):
        found = compare(ours, theirs, where)
        if found is not None:
            return found
    return _others(ours, theirs, where)


def _tensors(ours: Any, theirs: Any, where: str) -> str | None:
    import torch

    if not isinstance(ours, torch.Tensor):
        return None
    return _traits(ours, theirs, where) or _values(ours, theirs, where)


def _traits(ours: Any, theirs: Any, where: str) -> str:
    for name in _TENSOR_TRAITS:
        if getattr(ours, name) != getattr(theirs, name):
            return f"{where}.{name}: {getattr(ours, name)} and {getattr(theirs, name)}"
    own, other = vars(ours), vars(theirs)  # a queue between processes drops the script's attributes
    return difference(own, other, where) if own or other else ""


def _values(ours: Any, theirs: Any, where: str) -> str:
    import torch

    if ours.layout != torch.strided:
        return "" if torch.equal(ours, theirs) else f"{where}: other values"
    if ours.stride() != theirs.stride():
        return f"{where}: strides {ours.stride()} and {theirs.stride()}"
    if ours.device.type != "cpu":
        ours, theirs = ours.cpu(), theirs.cpu()
    elif not is_forked() and ours.is_pinned() != theirs.is_pinned():
        return f"{where}: pinned memory in one of them"
    return "" if torch.equal(_bits(ours), _bits(theirs)) else f"{where}: other values"


def _bits(tensor: Any) -> Any:
    """Return a tensor's bytes, flattened first: an axis of length 1 may have any stride."""
    import torch

    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)


def _arrays(ours: Any, theirs: Any, where: str) -> str | None:
    kind = type(ours)  # a Pillow image has the interface but is not an array
    if not (hasattr(kind, "__array_interface__") and hasattr(kind, "strides")):
        return None
    for name in ("dtype", "shape", "strides"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{where}.{name}: {getattr(ours, name)} and {getattr(theirs, name)}"
    if ours.dtype.hasobject:
        return difference(ours.tolist(), theirs.tolist(), where)
    return "" if ours.tobytes() == theirs.tobytes() else f"{where}: other values"


def _mappings(ours: Any, theirs: Any, where: str) -> str | None:
    if not (hasattr(ours, "keys") and hasattr(type(ours), "__getitem__")):
        return None
    keys = list(ours.keys())
    if keys != list(theirs.keys()):
        return f"{where}: other keys"
    return _first(difference(ours[key], theirs[key], f"{where}[{key!r}]") for key in keys)


def _sequences(ours: Any, theirs: Any, where: str) -> str | None:
    if not isinstance(ours, (list, tuple)):
        return None
    if len(ours) != len(theirs):
        return f"{where}: {len(ours)} and {len(theirs)} members"
    pairs = enumerate(zip(ours, theirs, strict=True))
    return _first(difference(left, right, f"{where}[{i}]") for i, (left, right) in pairs)


def _records(ours: Any, theirs: Any, where: str) -> str | None:
    kind: Any = type(ours)
    if dataclasses.is_dataclass(ours):
        names = [item.name for item in dataclasses.fields(ours)]
    elif kind.__module__ != "builtins" and kind.__eq__ is object.__eq__:
        if hasattr(ours, "tobytes"):  # an image of Pillow's
            return "" if ours.tobytes() == theirs.tobytes() else f"{where}: other values"
        names = list(getattr(ours, "__dict__", ()))
        if not names:
            return f"{where}: {kind.__name__} cannot be compared"
    else:
        return None
    return _first(
        difference(getattr(ours, name, None), getattr(theirs, name, None), f"{where}.{name}")
        for name in names
    )


def _others(ours: Any, theirs: Any, where: str) -> str:
    if isinstance(ours, float):
        equal = struct.pack("d", ours) == struct.pack("d", theirs)
    elif isinstance(ours, (set, frozenset)):  # a pickled one may come back in another order
        equal = ours == theirs and list(ours) == list(theirs)
    else:
        equal = bool(ours == theirs)
    return "" if equal else f"{where}: {ours!r:.40} and {theirs!r:.40}"


def _first(differences: Any) -> str:
    return next((found for found in differences if found), "")
