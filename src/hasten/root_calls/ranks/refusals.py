"""Why the calls of a model stay in one process, as far as that shows without a call."""

from __future__ import annotations

from typing import Any

from hasten.modules import weights_of
from hasten.root_calls.fit import unfit
from hasten.root_calls.model_code import writes_out
from hasten.root_calls.own_code import second_derivatives
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.weights import others_in


def unshareable(module: Any) -> str:
    """Say why no call of a model with weights can be shared; empty if one may be.

    This takes some milliseconds: it is also asked of a script that is only watched.
    """
    return unfit(module) or _unfit(module) or HeldState(module).unwatchable


def differentiates_twice() -> str:
    """Say where the script asks for gradients of gradients; empty if it does not."""
    where = second_derivatives()
    return f"shares have no gradients of gradients, and {where}" if where else ""


def _unfit(module: Any) -> str:
    import torch

    tensors = [*weights_of(module), *others_in(module)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "the model is not on the CPU"
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return "the model has sparse tensors"
    for part in module.modules():
        if getattr(part, "max_norm", None) is not None:
            return "the model writes to its weights (max_norm)"
        if isinstance(part, torch.nn.RNNBase) and part.training and part.dropout:
            return f"{type(part).__name__} drops out between its layers in one operation"
    if where := writes_out(module):  # of shares of a batch, and by each helper
        return f"the model's code may print or write files: {where}"
    return ""
