"""How the shares of helpers stand in the script's graph.

Autograd runs what was made last first: `deliver`, made after the script's own share, sends the
gradients of the outputs to the helpers; the own share follows, and `collect`, made before it, waits
for the helpers' gradients. They are added to those of the own share before any weight sees them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def gradients(
    outputs: Sequence[Any], given: Sequence[Any], tensors: Sequence[Any], *, keeps_graph: bool
) -> tuple[Any, ...]:
    """Return the gradients of outputs by tensors, None where there is none.

    What `torch.autograd.grad` does, which is watched for the script's calls.
    """
    import torch

    engine: Any = torch.autograd.Variable._execution_engine
    found: tuple[Any, ...] = engine.run_backward(
        tuple(outputs), tuple(given), keeps_graph, False, tuple(tensors), allow_unreachable=True,
        accumulate_grad=False,
    )  # fmt: skip
    return found


@cache
def functions() -> tuple[Any, Any]:
    """Return the two ends of the helpers' shares; `call` is a `served.SharedCall`.

    `collect(call, *tensors)` returns a token, through which gradients flow to them.
    `deliver(call, token, differentiable)` returns the helpers' outputs; the last argument says of
    each whether a gradient goes through it.
    """
    import torch
    from torch.autograd.function import once_differentiable

    class Collect(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Any, *tensors: Any) -> Any:
            ctx.call = call
            return torch.zeros(())

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            return (None, *ctx.call.served.gradients(ctx.call))

    class Deliver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Any, token: Any, differentiable: Any) -> Any:
            ctx.call = call
            ctx.set_materialize_grads(False)
            outputs = call.outputs()
            pairs = zip(outputs, differentiable, strict=True)
            ctx.mark_non_differentiable(*(output for output, is_one in pairs if not is_one))
            return tuple(outputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            ctx.call.served.send_back(ctx.call, grads)
            return None, torch.zeros(()), None

    return Collect.apply, Deliver.apply
