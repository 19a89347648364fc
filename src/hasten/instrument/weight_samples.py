"""A few values of the weights, which show whether a step has moved them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_TENSOR_COUNT, _SLICE_COUNT, _VALUE_COUNT = 4, 4096, 256


def spread(parameters: Sequence[Any]) -> list[Any]:
    """Return a few of the trained tensors, evenly spread and all on one device."""
    import torch

    trained = [
        p for p in parameters
        if p.requires_grad and p.is_floating_point() and p.layout == torch.strided
    ]  # fmt: skip
    trained = [p for p in trained if p.device == trained[0].device]
    return trained[:: max(1, -(-len(trained) // _TENSOR_COUNT))]


def read_some(parameter: Any) -> Any:
    """Return a copy of some values of a tensor, the same ones in any memory layout."""
    part = parameter.detach()
    while part.dim() > 1 and part.numel() > _SLICE_COUNT:
        part = part[len(part) // 2]
    return part.reshape(-1)[:_VALUE_COUNT].clone()
