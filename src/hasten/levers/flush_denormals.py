"""flush_denormals: let the processor treat numbers near zero (below 1.2e-38) as zero.

Helps: training that slows down as gradients, moments or states decay: many processors compute
    with denormal numbers a hundred times slower.
Hurts: nothing but the numbers themselves, in Python and NumPy too: `numpy.finfo` may warn, and
    float64 loses what lies below 2.2e-308. Processors that compute them at full speed gain nothing.
Maths: precision. Results and inputs below 1.2e-38 become zero; all others keep their bits.
Source: https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hasten.lever import COMPUTE, Lever, undo_all, unless
from hasten.records import Effect, Scope
from hasten.torch_threads import in_team

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_LEAST_RATIO = 1e-4  # some 150 cycles each, against one for any other number


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    ratio = context.traits.denormal_ratio
    if ratio is None:
        return "no torch optimizer was seen updating weights on the CPU"
    if ratio >= _LEAST_RATIO:
        return ""
    return f"{ratio:.3%} of weights, gradients and optimizer state are denormal numbers"


def _is_flushing() -> bool:
    """Return whether this thread flushes; torch cannot tell, but arithmetic can."""
    return sys.float_info.min * 0.5 == 0.0


def _in_every_thread(act: Callable[[], object]) -> None:
    """Run `act` here and in the threads among which torch splits its operations.

    The mode belongs to a thread: new ones inherit it from the one that starts them; OpenMP's
    existing threads are reached through a parallel region of our own.
    """
    import torch

    act()
    count = torch.get_num_threads()
    if count > 1:
        in_team(act, count)


def _flush() -> Callable[[], None]:
    import torch

    if _is_flushing():
        return lambda: None
    _in_every_thread(lambda: torch.set_flush_denormal(True))
    return lambda: _in_every_thread(lambda: torch.set_flush_denormal(False))


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Wait until training begins, in its thread: libraries check number formats on import."""
    flushed: list[Callable[[], None]] = []

    def begin(_: Any) -> None:
        if not flushed:
            flushed.append(_flush())

    return undo_all([training.on_root(begin), training.on_optimizer(begin), undo_all(flushed)])


LEVER = Lever(
    name="flush_denormals",
    phases=COMPUTE,
    effect=Effect.PRECISION,
    # What was flushed stays zero: after switching back, steps are not the script's own.
    scope=Scope.PROCESS,
    settings=unless(why_not, True),
    gain_ratio=10.0,
    epsilon_ratio=lambda _: 2.0**-23,
    why_not=why_not,
    snippet=lambda _: "torch.set_flush_denormal(True)  # before the first operation on tensors",
    apply=apply,
    edit="process.flush_denormals",
    cures=frozenset({"denormals"}),
)
