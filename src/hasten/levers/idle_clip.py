"""idle_clip: leave gradients alone where `clip_grad_norm_` would multiply them by one.

Helps: scripts that clip by a norm that is seldom reached: the second pass is skipped (1.2 times
    as fast for 60 gradients of 20,000 elements, no faster for small ones).
Hurts: nothing where the norm is below the limit; one comparison of a number where it is above.
Maths: exact. The norm is computed as before, and x * 1 is x; where denormal numbers are flushed
    to zero it is not, so the pass is made, as it is where operations are counted or profiled.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, unless
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.fit import plain_surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_SEAM = "_clip_grads_with_norm_"  # looked up at each call, so imports by name are served
_SELDOM_RATIO = 0.1


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    ratio = context.traits.idle_clip_ratio
    if ratio is None:
        return "no call of torch's clip_grad_norm_ was seen"
    if ratio > _SELDOM_RATIO:
        return ""
    return f"{1 - ratio:.0%} of the calls of clip_grad_norm_ do scale the gradients"


def _keeps_bits(gradient: Any) -> bool:
    """Return whether a gradient times one keeps its bits; a complex minus zero does not."""
    import torch

    return (
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and torch.is_floating_point(gradient)
        and not gradient.requires_grad  # of a graph, which would see that it was written to
    )


def _is_one(max_norm: Any, total_norm: Any) -> bool:
    """Return whether the clipping comes to a factor of one, by torch's own arithmetic."""
    import torch

    if not (isinstance(total_norm, torch.Tensor) and total_norm.is_cpu):
        return False  # elsewhere the question would wait for the device
    tiny = torch.full((), 1e-40, dtype=torch.float32) * 1.0
    return bool(float(max_norm) / (total_norm + 1e-6) >= 1.0) and bool(tiny != 0)


def _clip(
    original: Any, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
) -> Any:
    """Answer `_clip_grads_with_norm_`: make the pass over the gradients only if it changes them."""
    import torch

    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    with torch.no_grad():
        is_idle = _is_one(max_norm, total_norm) and all(map(_keeps_bits, gradients))
    return None if is_idle else original(parameters, max_norm, total_norm, *args, **kwargs)


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Stand in for the second half of `clip_grad_norm_`."""
    from torch.nn.utils import clip_grad

    if not hasattr(clip_grad, _SEAM):  # before torch 2.6
        return lambda: None
    plain = plain_surroundings()

    def answer(original: Any, *args: Any, **kwargs: Any) -> Any:
        return _clip(original, *args, **kwargs) if plain() else original(*args, **kwargs)

    return training.on_function(clip_grad, _SEAM, answer)


LEVER = Lever(
    name="idle_clip",
    phases=frozenset({Phase.OTHER}),
    effect=Effect.EXACT,
    scope=Scope.STEP,
    settings=unless(why_not, True),
    gain_ratio=1.6,
    why_not=why_not,
    snippet=lambda _: (
        "norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])\n"
        "if max_norm / (norm + 1e-6) < 1:\n"
        "    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)"
    ),
    apply=apply,
    edited_calls=(
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
    ),
)
