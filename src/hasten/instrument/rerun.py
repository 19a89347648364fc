"""What denormal numbers cost: operations run again on copies, with and without them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hasten.instrument.operation_timing import timed_ns
from hasten.instrument.samples import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

DENORMAL_RATIO = 1e-4
"""Share of denormal numbers from which a tensor is worth a second look."""
_LEAST_COUNT = 1024
_REPEAT_COUNT = 2
_SAMPLE_COUNT = 4096
# Only arithmetic, all of it without random numbers or hidden state: what writes into
# an argument says so in its schema, and batch_norm does not.
_KNOWN = frozenset({
    "mul", "mul_", "add", "add_", "sub", "sub_", "div", "div_", "lerp", "lerp_", "addcmul",
    "addcmul_", "addcdiv", "addcdiv_", "sqrt", "pow", "exp", "tanh", "sigmoid", "relu", "silu",
    "gelu", "gelu_backward", "tanh_backward", "sigmoid_backward", "silu_backward",
    "threshold_backward", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "mean", "sum",
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward", "_foreach_mul_", "_foreach_add_", "_foreach_lerp_",
    "_foreach_addcmul_", "_foreach_addcdiv_", "_foreach_sqrt", "_foreach_div_", "_fused_sgd_",
    "_fused_adam_", "_fused_adamw_", "_fused_adagrad_",
})  # fmt: skip


def denormal_counts(tensor: Any, sample_count: int) -> tuple[int, int]:
    """Return how many of a tensor's elements are denormal, and how many were looked at.

    About this many, evenly spaced; none of what the CPU does not compute. A thread that flushes
    denormal numbers to zero sees none.
    """
    import torch

    if not (isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout is torch.strided):
        return 0, 0
    if tensor.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return 0, 0
    part = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // sample_count].abs()
    denormal = (part != 0) & (part < torch.finfo(part.dtype).tiny)
    return int(denormal.sum()), part.numel()


def denormal_share(tensor: Any) -> float:
    """Return the share of denormal numbers in a tensor that lies in memory in one piece."""
    import torch

    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return 0.0
    found_count, seen_count = denormal_counts(tensor, _SAMPLE_COUNT)
    return found_count / max(1, seen_count)


class Rerun:
    """Try operations on copies of their arguments before they run."""

    def __init__(self) -> None:
        self.waste_ns = 0

    def try_out(self, name: str, operation: Any, args: Any, kwargs: Any) -> int:
        """Return the nanoseconds that denormal numbers cost; 0 where it is not tried."""
        from torch import clone

        if name not in _KNOWN:
            return 0
        large = (t for t in tensors_in((args, kwargs)) if t.numel() >= _LEAST_COUNT)
        if not any(denormal_share(tensor) > DENORMAL_RATIO for tensor in large):
            return 0
        plain_ns, cleaned_ns = (
            min(_time_on(act, operation, args, kwargs) for _ in range(_REPEAT_COUNT))
            for act in (clone, _cleaned)
        )
        waste_ns = plain_ns - cleaned_ns
        self.waste_ns += waste_ns
        return waste_ns


def _time_on(act: Callable[[Any], Any], operation: Any, args: Any, kwargs: Any) -> int:
    own = _mapped(args, act)
    named = {name: _mapped(value, act) for name, value in kwargs.items()}
    return timed_ns(lambda: operation(*own, **named), time.thread_time_ns)


def _cleaned(tensor: Any) -> Any:
    """Return a copy with zeros in place of denormal numbers."""
    import torch

    clone = tensor.clone()
    if clone.is_floating_point():
        clone.masked_fill_(clone.abs() < torch.finfo(clone.dtype).tiny, 0)
    return clone


def _mapped(value: Any, act: Callable[[Any], Any]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(part, act) for part in value)
    return value
