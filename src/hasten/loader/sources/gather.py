"""Batches of in-memory tensors by one `index_select` per tensor.

Torch takes a `TensorDataset` apart row by row and puts the rows together again. Both ways copy
the same numbers into fresh contiguous memory: only Python's work for each row is saved.
The tensors are read again for each batch, so what a script writes into them is seen.

Gains measured by users: https://github.com/pytorch/pytorch/issues/106704
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from hasten.loader.sources.subsets import ByRows, assemble, leaves, take, untouched


class _Kinds(NamedTuple):
    tensor: Any
    tensors: Any
    stack: Any
    strided: Any
    int64: Any


@cache
def _kinds() -> _Kinds:
    import torch
    from torch.utils.data import StackDataset, TensorDataset

    return _Kinds(torch.Tensor, TensorDataset, StackDataset, torch.strided, torch.int64)


def _rows(leaf: Any, positions: Any) -> Any:
    kinds = _kinds()
    kind = type(leaf)
    if kind is kinds.tensors:
        return [_taken(tensor, positions) for tensor in leaf.tensors]
    if kind is kinds.tensor:
        return _taken(leaf, positions)
    if kind is not kinds.stack:
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
    kinds = _kinds()
    if type(tensor) is not kinds.tensor:
        return f"a {type(tensor).__name__} is no plain tensor"
    if not tensor.is_cpu:
        return f"a tensor lies on {tensor.device.type}"
    if tensor.requires_grad:
        return "gradients flow back into a tensor"
    if tensor.layout is not kinds.strided or tensor.is_quantized or tensor.is_nested:
        return "a tensor is sparse, quantized or nested"
    return ""


class _Unfit(Exception):
    """Why a dataset cannot be gathered."""


def offer(loader: Any) -> ByRows | str:
    """Return a source for a loader of in-memory tensors, or one sentence why there is none.

    It knows `TensorDataset`, `StackDataset` and tensors themselves, under any number of
    `Subset`s (`random_split`) and `ConcatDataset`s, all of torch's own and untouched.
    """
    if why := why_not_collated(loader):
        return why
    try:
        _form(loader.dataset)
    except _Unfit as unfit:
        return str(unfit)
    return ByRows(loader.dataset, _rows, name="gather")


def why_not_collated(loader: Any) -> str:
    """Say why a loader's batches are not those of torch's `default_collate`; empty if they are."""
    from torch.utils.data import default_collate
    from torch.utils.data._utils import collate

    if loader._dataset_kind != 0:
        return "an iterable dataset has no indices"
    if not loader._auto_collation:
        return "it makes no batches (batch_size=None)"
    if loader.collate_fn is not default_collate or default_collate is not collate.default_collate:
        return "it has a collate_fn of its own"
    known: Any = collate.default_collate_fn_map
    own = [*known.values(), default_collate, collate.collate]
    if not all(getattr(function, "__globals__", None) is vars(collate) for function in own):
        return "default_collate was taught other types"
    return ""


def _form(dataset: Any) -> Any:
    """Return the containers, dtypes and row shapes of a dataset's batches.

    Raises:
        _Unfit: it cannot be gathered.
    """
    found = leaves(dataset)
    if isinstance(found, str):
        raise _Unfit(found)
    forms = [_form_of_leaf(leaf) for leaf in found]
    if any(form != forms[0] for form in forms):
        raise _Unfit("the concatenated datasets have rows of different kinds")
    return forms[0]


def _form_of_leaf(leaf: Any) -> Any:
    kinds = _kinds()
    if type(leaf) is kinds.tensor:
        return _form_of_tensor(leaf)
    if type(leaf) not in (kinds.tensors, kinds.stack):
        raise _Unfit(f"a {type(leaf).__name__} may do anything to make an item")
    if not untouched(leaf):
        raise _Unfit(f"methods of {type(leaf).__name__} were replaced")
    if type(leaf) is kinds.tensors:
        return [_form_of_tensor(tensor) for tensor in leaf.tensors]
    inside = leaf.datasets
    if type(inside) is dict:
        return [(key, _form(child)) for key, child in inside.items()]
    return [_form(child) for child in inside]


def _form_of_tensor(tensor: Any) -> Any:
    if why := why_not_tensor(tensor):
        raise _Unfit(why)
    if tensor.dim() == 0:
        raise _Unfit("a tensor without dimensions has no rows")
    try:  # torch supports it for some newer dtypes, in some dimensions
        tensor[:1].index_select(0, tensor.new_zeros(min(1, len(tensor)), dtype=_kinds().int64))
    except RuntimeError:
        raise _Unfit(f"torch cannot select rows of {tensor.dtype}") from None
    return tensor.dtype, tensor.shape[1:]
