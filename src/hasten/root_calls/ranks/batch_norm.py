"""Batch normalization of a batch that is spread over processes.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html; mean and variance
of the shares are combined as by Chan, Golub and LeVeque (1979).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.root_calls.ranks.exchange import Meets


def normalize(*, exchange: Meets, **given: Any) -> Any:
    """Normalize one share, of shape (samples, channels, ...), by the statistics of all shares.

    Args:
        exchange: where the ranks meet, in the forward and again in the backward pass.
        given: the arguments of `torch.nn.functional.batch_norm`, all of them.
    """
    x = given["input"]
    number = exchange.next_number(given["running_mean"], given["weight"])
    mean, var, count = _statistics(x.detach(), number, exchange)
    running = given["running_mean"], given["running_var"]
    _update(running, (mean, var * (count / max(1, count - 1))), given["momentum"])
    dtype = _statistics_dtype(x)
    known = mean.to(dtype), var.to(dtype), count, given["eps"]
    return _function().apply(x, given["weight"], given["bias"], known, (exchange, number))


def _statistics_dtype(x: Any) -> Any:
    import torch

    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _statistics(x: Any, number: int, exchange: Meets) -> tuple[Any, Any, int]:
    """Return mean and variance (biased) of all shares in float64, and values per channel."""
    import torch

    channels = x.shape[1]
    mean, var = torch.ops.aten.batch_norm_update_stats(x, None, None, 0.0)
    own_count = torch.tensor([x.numel() / channels], dtype=torch.float64)

    def combine(found: Any) -> Any:
        counts, means, variances = found.split([1, channels, channels], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        return torch.cat([total[None], mean, var])

    own = torch.cat([own_count, mean.double(), var.double()])
    found = exchange.all_reduce(number, own, combine)
    return found[1 : channels + 1], found[channels + 1 : 2 * channels + 1], int(found[0])


def _update(running: tuple[Any, Any], seen: tuple[Any, Any], momentum: float) -> None:
    """Update running mean and variance as torch's kernel does, without a new version of them."""
    for own, new in zip(running, seen, strict=True):
        if own is not None:
            own.data.copy_(momentum * new.to(own.dtype) + (1 - momentum) * own.data)


@cache
def _function() -> Any:
    import torch
    from torch.autograd.function import once_differentiable

    aten = torch.ops.aten

    class SpreadBatchNorm(torch.autograd.Function):
        """Normalize by statistics that are given, and send gradients through them, too."""

        @staticmethod
        def forward(  # noqa: PLR0917 - autograd takes tensors one by one
            ctx: Any, x: Any, weight: Any, bias: Any, known: tuple[Any, Any, int, float],
            meeting: tuple[Any, int],
        ) -> Any:  # fmt: skip
            ctx.save_for_backward(x, weight)
            ctx.known, ctx.meeting = known, meeting
            mean, var, _, eps = known
            return aten.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            x, weight = ctx.saved_tensors
            mean, var, count, eps = ctx.known
            by_input, by_weight, by_bias = aten.native_batch_norm_backward(
                grad, x, weight, mean, var, None, None, False, eps, [True, True, True]
            )
            channels = len(mean)
            exchange, number = ctx.meeting
            own = torch.cat([by_weight.double(), by_bias.double()])
            total = exchange.all_reduce(-number, own, lambda found: found.sum(0))
            sums = (total / count).to(mean.dtype)
            inverse = (var + eps).rsqrt()
            scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
            # by_input - scale * (bias_sum + (x - mean) * inverse * weight_sum)
            slope = scale * inverse * sums[:channels]
            offset = scale * sums[channels : 2 * channels] - slope * mean

            def wide(values: Any) -> Any:
                return values.view(1, -1, *[1] * (x.dim() - 2)).to(x.dtype)

            by_input.addcmul_(x, wide(slope), value=-1).sub_(wide(offset))
            needs = ctx.needs_input_grad
            return (
                by_input, by_weight if needs[1] else None, by_bias if needs[2] else None, None, None
            )  # fmt: skip

    return SpreadBatchNorm
