"""Torch's views of datasets: finding which rows of which dataset make up a batch.

`Subset` (hence `random_split`) and `ConcatDataset` only translate indices. Sources that know
how to read many rows of a dataset at once read them through such views as follows:

1. When the source is offered: `leaves(dataset)` returns the datasets below the views, or says
   why the views cannot be seen through.
2. For each batch: `assemble(dataset, indices, rows)` calls `rows(leaf, positions)` once for each
   leaf that has rows in the batch, and puts the results together in the order of the batch.

Nothing is remembered between batches: a script may write into the indices of its `Subset`, or
replace them, while a pass goes on.
"""

from __future__ import annotations

import sys
from array import array
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = ("__getitem__", "__getitems__", "__len__", "__getattr__")
_SEQUENCES = (list, tuple, range)


def untouched(dataset: Any) -> bool:
    """Return whether the methods of a torch dataset are still torch's own.

    False as well for every class that is not defined in `torch.utils.data.dataset`, such as a
    script's subclass.
    """
    from torch.utils.data import dataset as module

    kind: Any = type(dataset)
    if kind.__module__ != module.__name__ or kind.__getattribute__ is not object.__getattribute__:
        return False
    methods = [getattr(kind, name) for name in _METHODS if hasattr(kind, name)]
    own = all(getattr(method, "__globals__", None) is vars(module) for method in methods)
    return own and not set(_METHODS) & vars(dataset).keys()


def leaves(dataset: Any) -> tuple[Any, ...] | str:
    """Return the datasets below torch's views, or one sentence why a view is not plain.

    A dataset that is no view, or a script's subclass of one, is a leaf itself.

    >>> from torch.utils.data import ConcatDataset, Subset
    >>> leaves(ConcatDataset([Subset("abc", [0, 2]), Subset("de", range(2))]))
    ('abc', 'de')
    """
    from torch.utils.data import ConcatDataset, Subset

    if type(dataset) not in (Subset, ConcatDataset):
        return (dataset,)
    if not untouched(dataset):
        return f"methods of {type(dataset).__name__} were replaced"
    if type(dataset) is Subset:
        if not _plain(dataset.indices):
            return f"a {type(dataset.indices).__name__} of this kind is no plain list of indices"
        return leaves(dataset.dataset)
    found: list[Any] = []
    for child in dataset.datasets:
        below = leaves(child)
        if isinstance(below, str):
            return below
        found.extend(below)
    return tuple(found)


def _plain(indices: Any) -> bool:
    """Return whether `indices[i]` means the same for one and for many."""
    import torch

    if type(indices) in _SEQUENCES:
        return True
    if type(indices) is torch.Tensor:
        return bool(indices.dtype is torch.int64 and indices.dim() == 1 and indices.is_cpu)
    return _is_array(indices) and bool(indices.ndim == 1 and indices.dtype == "=i8")


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def positions_of(indices: Any) -> Any:
    """Return the indices of a batch as a 1-D tensor of int64 on the CPU.

    Args:
        indices: a list of integers of Python, NumPy or torch; or one array or tensor of int64.

    Raises:
        TypeError: they are of another kind. `True` is not an index: `tensor[True]` is not a row.
        IndexError: there are none. Torch cannot collate an empty batch either.
    """
    import torch

    if type(indices) in _SEQUENCES and indices:
        kinds = set(map(type, indices))
        if all(map(_is_integer, kinds)):
            return torch.frombuffer(array("q", indices), dtype=torch.int64)
        if kinds != {torch.Tensor}:
            raise TypeError(f"Cannot take {kinds} for indices.")
        indices = torch.stack(list(indices))
    if not _plain(indices):
        raise TypeError(f"Cannot take a {type(indices).__name__} for indices.")
    if len(indices) == 0:
        raise IndexError("A batch without indices cannot be collated.")
    # An array may be read-only: torch warns where it would share the memory of one.
    return positions_of(indices.tolist()) if _is_array(indices) else indices


def _is_integer(kind: type) -> bool:
    numbers: Any = sys.modules.get("numpy")
    signed = () if numbers is None else (numbers.int64, numbers.int32)
    return kind is int or kind in signed


def within(positions: Any, row_count: int) -> Any:
    """Return `positions` with negative ones made non-negative.

    Raises:
        IndexError: one lies outside of `row_count` rows.
    """
    lowest, highest = (int(end) for end in positions.aminmax())
    if lowest < -row_count or highest >= row_count:
        raise IndexError(f"Index {highest if lowest >= 0 else lowest} of {row_count} rows.")
    return positions if lowest >= 0 else positions + (positions < 0) * row_count


def take(tensor: Any, positions: Any) -> Any:
    """Return a fresh tensor of the rows of a CPU tensor, as `torch.stack` of them would be.

    Raises:
        IndexError: one lies outside.
    """
    try:
        return tensor.index_select(0, positions)
    except (IndexError, RuntimeError):  # cheaper than to look for negative ones each time
        return tensor.index_select(0, within(positions, len(tensor)))


def _translated(own: Any, indices: Any) -> Any:
    """Return `own[i]` for each index of a batch."""
    if type(own) in _SEQUENCES:
        if type(indices) not in _SEQUENCES:
            indices = positions_of(indices).tolist()
        found = itemgetter(*indices)(own)
        return list(found) if len(indices) > 1 else [found]
    if not _plain(own):
        raise TypeError(f"Cannot take a {type(own).__name__} for indices.")
    import torch

    positions = positions_of(indices)
    if type(own) is torch.Tensor:
        return take(own, positions)
    return torch.from_numpy(own[positions.numpy()])


def assemble(dataset: Any, indices: Any, rows: Callable[[Any, Any], Any]) -> Any:
    """Return a batch that is read from the leaves below torch's views.

    Args:
        dataset: what `leaves` accepted.
        indices: of the batch, as the sampler gave them.
        rows: called with a leaf and the positions (1-D, int64, may be negative) of its rows:
            returns them collated: tensors with one entry per row along dimension 0, in lists
            and dicts. The same structure, dtypes and row shapes for all leaves.

    Raises:
        IndexError: an index lies outside.
        TypeError: the indices, or what several leaves return, are not of one kind.
    """
    import torch
    from torch.utils.data import ConcatDataset, Subset

    while type(dataset) is Subset:
        indices = _translated(dataset.indices, indices)
        dataset = dataset.dataset
    positions = positions_of(indices)
    if type(dataset) is not ConcatDataset:
        return rows(dataset, positions)
    ends = dataset.cumulative_sizes
    positions = within(positions, ends[-1])
    members = torch.bucketize(positions, torch.tensor(ends, device="cpu"), right=True)
    batches, places = [], []
    for member in sorted(set(members.tolist())):
        place = (members == member).nonzero().flatten()
        own = positions[place] - (ends[member - 1] if member else 0)
        batches.append(assemble(dataset.datasets[member], own, rows))
        places.append(place)
    return batches[0] if len(batches) == 1 else _joined(batches, torch.cat(places).argsort())


class ByRows:
    """A source that reads all rows of a batch at once from the leaves below torch's views.

    Args:
        dataset: what `leaves` accepted.
        rows: as for `assemble`; where it raises, the batch is torch's to make.
        name: as for `Source`.
    """

    pure = light = True

    def __init__(self, dataset: Any, rows: Callable[[Any, Any], Any], *, name: str) -> None:
        self._dataset, self._rows, self.name = dataset, rows, name

    def fetch(self, indices: Any) -> Any:
        """Return the batch of `indices`, as `assemble` does."""
        return assemble(self._dataset, indices, self._rows)


def _joined(batches: list[Any], order: Any) -> Any:
    import torch

    first, kinds = batches[0], set(map(type, batches))
    if kinds == {torch.Tensor}:
        if len({(batch.dtype, batch.shape[1:]) for batch in batches}) == 1:
            return torch.cat(batches).index_select(0, order)
    elif kinds == {dict}:
        if all(list(batch) == list(first) for batch in batches):
            return {key: _joined([batch[key] for batch in batches], order) for key in first}
    elif kinds == {list} and len(set(map(len, batches))) == 1:
        return [_joined(list(members), order) for members in zip(*batches, strict=True)]
    raise TypeError("The concatenated datasets have rows of different kinds.")
