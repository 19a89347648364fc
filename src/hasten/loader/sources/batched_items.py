"""Batches of the script's own in-memory dataset, each made in one go by following its code.

Torch calls `__getitem__` for one item after another and stacks the results. If its code is
such that `batched_code` can follow it, all items of a batch are made together. The dataset is
read again for each batch, so what the script writes into it is seen.
"""

from __future__ import annotations

from typing import Any

from hasten.loader.notices import said
from hasten.loader.proof.source import is_user_class
from hasten.loader.sources.batched_code import made
from hasten.loader.sources.gather import why_not_collated
from hasten.loader.sources.item_stack import ItemKind, ItemStack, NotBatched
from hasten.loader.sources.subsets import ByRows, leaves


def offer(loader: Any) -> ByRows | str:
    """Return a source for a loader of such a dataset, or one sentence why there is none.

    It knows the script's own classes with a `__getitem__` in Python, under any number of
    `Subset`s.
    """
    if why := why_not_collated(loader):
        return why
    found = leaves(loader.dataset)
    if isinstance(found, str):
        return found
    if len(found) > 1:
        return "several data sets of the script's own are concatenated"
    if why := _why_not(found[0]):
        return f"{type(found[0]).__name__}: {why}"
    return ByRows(loader.dataset, _rows, name="items")


def _why_not(leaf: Any) -> str:
    """Say why the items of a dataset cannot be made together; empty where they can."""
    import torch

    kind: Any = type(leaf)
    if not is_user_class(kind) or hasattr(leaf, "__getitems__"):
        return "its items are not made by the script's own function"
    if kind.__getattribute__ is not object.__getattribute__:
        return "its attributes are read by code of its own"
    try:
        _rows(leaf, torch.zeros(2, dtype=torch.int64))
    except NotBatched as why:
        return str(why)
    except Exception as error:  # the script will see for itself what the item raises
        return said(error)
    return ""


def _rows(leaf: Any, positions: Any) -> Any:
    # A copy: the indices may be the script's own, and an item may return its index.
    return _collated(made(leaf, positions.numpy().copy()), len(positions), set())


def _collated(found: Any, count: int, seen: set[int]) -> Any:
    """Return what `default_collate` makes of items, in memory of its own."""
    import torch

    if type(found) in (tuple, list):
        return [_collated(one, count, seen) for one in found]
    if type(found) is dict:
        return {key: _collated(one, count, seen) for key, one in found.items()}
    if type(found) in (int, float):
        return torch.tensor([found] * count, dtype=None if type(found) is int else torch.float64)
    if not isinstance(found, ItemStack):
        raise NotBatched(f"a {type(found).__name__} is the same in all items")
    if found.kind in (ItemKind.INT, ItemKind.FLOAT):
        return torch.from_numpy(found.value.copy())
    if found.kind is ItemKind.ARRAY and not found.item_ndim:
        return torch.as_tensor(list(found.value))
    value = (
        found.value if found.kind is ItemKind.TENSOR else torch.from_numpy(found.value.copy("C"))
    )
    value = value.contiguous().view(-1).view(value.shape)  # also strides of size-1 dimensions
    if value.untyped_storage().data_ptr() in seen:
        value = value.clone()
    seen.add(value.untyped_storage().data_ptr())
    return value
