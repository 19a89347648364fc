"""redrawing_workers: processes that fetch batches ahead and draw random numbers of their own.

Helps: loops that wait for data whose augmentation cannot be replayed in several processes.
Hurts: cheap datasets, where sending a batch costs more than making it; memory, one copy each.
Maths: distribution. The samples and the law of their order stay. The items draw different numbers
    of the same law, as with `num_workers` set by hand, and where they drew in the main process,
    later passes are shuffled differently.
Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, at_least
from hasten.loader import engine_for
from hasten.loader.worker_counts import counts, replayable, speedup_of, why_none
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def settings(context: ScriptContext) -> tuple[int, ...]:
    """Return the worker counts whose batches cannot be the script's own."""
    if _asks_each_time(context):
        return ()
    return tuple(count for count in counts(context) if not replayable(context, count))


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if not counts(context):
        return why_none(context)
    if _asks_each_time(context):
        return (
            "the script's own sampler is asked for one batch at a time: none is made ahead of use"
        )
    return "a worker can make the script's own batches here"


def _asks_each_time(context: ScriptContext) -> bool:
    """Return whether the script's own sampler may look at anything between two batches."""
    loader = context.traits.loader
    return loader is not None and loader.has_own_order and not loader.worker_count


def apply(training: Training, count: int) -> Callable[[], None]:
    """Take over every map-style loader; batches already requested are drained first."""
    return engine_for(training).want(count, redraws=True)


LEVER = Lever(
    name="redrawing_workers",
    phases=frozenset({Phase.DATA}),
    effect=Effect.DISTRIBUTION,
    scope=Scope.PROCESS,
    kind=int,
    validate=at_least(0),
    settings=settings,
    gain_ratio=50.0,
    why_not=why_not,
    forecast=speedup_of,
    snippet=lambda count: f"DataLoader(..., num_workers={count})",
    settle_count=4,
    cycle_count=lambda count: max(1, 2 * count),
    provides=lambda count, traits: traits.with_workers(count),
    apply=apply,
    edit="loaders.redrawing_workers",
    cures=frozenset({"few-workers"}),
)
