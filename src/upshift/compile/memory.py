"""How tensors lie in memory, and who else has theirs."""

from __future__ import annotations

import gc
from typing import Any


def is_mapped(tensor: Any) -> bool:
    """Return whether a tensor is one of vmap and its like, which can be asked for little."""
    import torch

    functions: Any = torch._C._functorch
    return bool(functions.is_functorch_wrapped_tensor(tensor))


def layout_of(tensor: Any) -> Any:
    """Return the layout with channels last for tensors of so many dimensions, None for others."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dim() not in (4, 5):
        return None
    if tensor.layout != torch.strided or not tensor.is_floating_point() or is_mapped(tensor):
        return None
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def is_last(value: Any) -> bool:
    """Return whether a value is a plain tensor with channels last that cannot be read otherwise."""
    import torch

    layout = layout_of(value)
    return (
        layout is not None
        and type(value) in (torch.Tensor, torch.nn.Parameter)
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=layout)
    )


def holder_count(tensor: Any) -> int | None:
    """Return how many tensors have this memory, None where torch does not tell."""
    import torch

    count: Any = getattr(torch._C, "_storage_Use_Count", None)
    fresh, storage = torch.empty(1).untyped_storage(), tensor.untyped_storage()
    return None if count is None else int(count(storage._cdata) - count(fresh._cdata))


def is_whole(tensor: Any) -> bool:
    """Return whether there is nothing else in the memory of a tensor."""
    return bool(tensor.untyped_storage().nbytes() == tensor.nbytes)


def is_lent(tensor: Any) -> bool:
    """Return whether the memory of a tensor is that of a NumPy array, too: torch marks it so."""
    resizable: Any = getattr(tensor.untyped_storage(), "resizable", None)
    return resizable is not None and not resizable()


def is_alone(tensor: Any) -> bool:
    """Return whether nobody else holds these numbers: who does would be left with old ones."""
    return is_whole(tensor) and not tensor.is_shared() and (holder_count(tensor) or 1) <= 1


def lay_out(tensor: Any, layout: Any, *others: Any) -> None:
    """Give a tensor, and others with the same memory, another layout; the objects stay."""
    import torch

    # What is made under inference_mode can never be trained.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        laid = tensor.data.contiguous(memory_format=layout)
        for each in (tensor, *others):
            each.data = laid


def laid_by_place(held: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """Fill `held`, once, with all tensors of this layout that Python knows."""
    import torch

    if not held:
        for one in gc.get_objects():
            if issubclass(type(one), torch.Tensor) and is_last(one):
                held.setdefault(one.data_ptr(), []).append(one)
    return held
