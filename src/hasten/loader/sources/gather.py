"""Batches of in-memory tensors by one `index_select` per tensor.

Torch takes a `TensorDataset` apart row by row and puts the rows together again. Both ways copy
the same numbers into fresh contiguous memory: only Python's work for each row is saved.
The tensors are read again for each batch, so what a script writes into them is seen.

Gains measured by users: https://github.com/pytorch/pytorch/issues/106704
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.sources.subsets import ByRows, assemble, leaves, take, untouched

if TYPE_CHECKING:
    from collections.abc import Iterable


def _rows(leaf: Any, positions: Any) -> Any:
    import torch
    from torch.utils.data import StackDataset, TensorDataset

    kind: Any = type(leaf)
    if kind is TensorDataset:
        return [_taken(tensor, positions) for tensor in leaf.tensors]
    if kind is torch.Tensor:
        return _taken(leaf, positions)
    if kind is not StackDataset:
        raise TypeError(f"A {kind.__name__} has no rows to gather.")
    inside = leaf.datasets
    if type(inside) is dict:
        return {key: assemble(child, positions, _rows) for key, child in inside.items()}
    return [assemble(child, positions, _rows) for child in inside]


def _taken(tensor: Any, positions: Any) -> Any:
    if why := why_not_tensor(tensor):
        raise TypeError(f"Cannot gather: {why}.")
    return take(tensor, positions)


def why_not_tensor(tensor: Any) -> str:
    """Say why rows of a tensor cannot be gathered; called for each batch, so it is cheap."""
    import torch

    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__} is no plain tensor"
    if not tensor.is_cpu:
        return f"a tensor lies on {tensor.device.type}"
    if tensor.requires_grad:
        return "gradients flow back into a tensor"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return "a tensor is sparse, quantized or nested"
    return ""


def offer(loader: Any) -> ByRows | str:
    """Return a source for a loader of in-memory tensors, or one sentence why there is none.

    It knows `TensorDataset`, `StackDataset` and tensors themselves, under any number of
    `Subset`s (`random_split`) and `ConcatDataset`s, all of torch's own and untouched.
    """
    if why := why_not_collated(loader) or _why_not(loader.dataset):
        return why
    return ByRows(loader.dataset, _rows, name="gather")


def why_not_collated(loader: Any) -> str:
    """Say why a loader's batches are not those of torch's `default_collate`; empty if they are."""
    from torch.utils.data import default_collate
    from torch.utils.data._utils import collate

    if loader._dataset_kind != 0:
        return "an iterable dataset has no indices"
    if not loader._auto_collation:
        return "the loader makes no batches (batch_size=None)"
    if loader.collate_fn is not default_collate or default_collate is not collate.default_collate:
        return "the loader has a collate_fn of its own"
    known: Any = collate.default_collate_fn_map
    own = [*known.values(), default_collate, collate.collate]
    if not all(getattr(function, "__globals__", None) is vars(collate) for function in own):
        return "default_collate was taught other types"
    return ""


def _why_not(dataset: Any) -> str:
    """Say why the rows of a dataset cannot be gathered; empty where they can."""
    found = leaves(dataset)
    return found if isinstance(found, str) else _first(map(_why_not_leaf, found))


def _why_not_leaf(leaf: Any) -> str:
    import torch
    from torch.utils.data import StackDataset, TensorDataset

    kind: Any = type(leaf)
    if kind is torch.Tensor:
        return _why_not_rows(leaf)
    if kind not in (TensorDataset, StackDataset):
        return f"a {kind.__name__} may do anything to make an item"
    if not untouched(leaf):
        return f"methods of {kind.__name__} were replaced"
    if kind is TensorDataset:
        return _first(map(_why_not_rows, leaf.tensors))
    inside = leaf.datasets
    return _first(map(_why_not, inside.values() if type(inside) is dict else inside))


def _why_not_rows(tensor: Any) -> str:
    import torch

    if why := why_not_tensor(tensor):
        return why
    if tensor.dim() == 0:
        return "a tensor without dimensions has no rows"
    try:  # torch supports it for some newer dtypes, in some dimensions
        take(tensor[:1], tensor.new_zeros(min(1, len(tensor)), dtype=torch.int64))
    except RuntimeError:
        return f"torch cannot select rows of {tensor.dtype}"
    return ""


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")
