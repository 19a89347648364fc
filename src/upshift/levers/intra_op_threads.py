"""intra_op_threads: how many threads share one operation on the CPU.

Helps: jobs whose default counts hyper-threads, other sockets or cores beyond their quota, and
    small models that spend more on waking threads than on arithmetic.
Hurts: large matrix products and convolutions, where too few threads leave cores idle.
Maths: rounding. Sums are split between threads, so their order changes.
Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from upshift.lever import Lever
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training


def settings(scene: Scene) -> tuple[int, ...]:
    """Return the budget, its half, its quarter and one thread, without what is set already."""
    cores = scene.machine.budget.core_count
    ladder = (cores, max(1, cores // 2), max(1, cores // 4), 1)
    return tuple(dict.fromkeys(n for n in ladder if n != scene.traits.get("threads")))


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    return "the job has one core and torch uses one thread"


def promising(scene: Scene) -> bool:
    """Return whether torch uses more threads than the job has cores; else it is a gamble."""
    return int(scene.traits.get("threads", 0)) > scene.machine.budget.core_count


def pull(training: Training, count: int) -> Callable[[], None]:
    """Set the count now and again when training starts, over what the script sets itself."""
    import torch

    def set_count() -> Callable[[], None] | None:
        before = torch.get_num_threads()
        if before == count:
            return None
        torch.set_num_threads(count)
        return lambda: torch.set_num_threads(before)

    return training.on_training(set_count)


LEVER = Lever(
    name="intra_op_threads",
    phases=frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER, Phase.DATA}),
    effect=Effect.ROUNDING,
    switch=Switch.STEP,
    settings=settings,
    gain_ratio=8.0,
    why_not=why_not,
    lines=lambda count: f"torch.set_num_threads({count})",
    promising=promising,
    settle_count=1,
    pull=pull,
)
