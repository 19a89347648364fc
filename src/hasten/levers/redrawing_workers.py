"""redrawing_workers: processes that fetch batches ahead and draw random numbers of their own.

Helps: loops that wait for data whose augmentation nobody can replay in another process.
Hurts: cheap datasets, where sending a batch costs more than making it; memory, one copy each.
Maths: redraw. The samples and the law of their order stay. The items draw other numbers of the
    same law, as with `num_workers` set by hand, and where they drew in the main process, later
    passes are shuffled otherwise.
Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, at_least
from hasten.loader import board_of
from hasten.loader.worker_counts import counts, replayable, speedup_of, why_none
from hasten.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def settings(scene: ScriptContext) -> tuple[int, ...]:
    """Return the numbers whose batches cannot be the script's own."""
    if _asks_each_time(scene):
        return ()
    return tuple(count for count in counts(scene) if not replayable(scene, count))


def why_not(scene: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if counts(scene) and _asks_each_time(scene):
        return (
            "the script's own sampler is asked for one batch at a time: none is made ahead of use"
        )
    return "workers can make the script's own batches here" if counts(scene) else why_none(scene)


def _asks_each_time(scene: ScriptContext) -> bool:
    """Return whether the script's own sampler may look at anything between two batches."""
    return bool(scene.traits.get("loader.own_order")) and not scene.traits.get("loader.workers")


def pull(training: Training, count: int) -> Callable[[], None]:
    """Take every map-style loader over; batches that were asked for are drained first."""
    return board_of(training).want(count, redraws=True)


LEVER = Lever(
    name="redrawing_workers",
    phases=frozenset({Phase.DATA}),
    effect=Effect.REDRAW,
    switch=Switch.CHILD,
    kind=int,
    wants=at_least(0),
    settings=settings,
    gain_ratio=50.0,
    why_not=why_not,
    forecast=speedup_of,
    lines=lambda count: f"DataLoader(..., num_workers={count}, persistent_workers={count > 0})",
    settle_count=4,
    cycle_count=lambda count: max(1, 2 * count),
    pull=pull,
)
