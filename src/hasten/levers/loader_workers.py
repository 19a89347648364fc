"""loader_workers: how many processes fetch batches ahead, kept from epoch to epoch.

Helps: loops that wait for data: decoding, augmentation, slow storage; many short epochs.
Hurts: cheap datasets, where sending a batch costs more than making it; memory, one copy each.
Maths: exact. Items that draw nothing are made anywhere; items that draw get the numbers that
    the script's own workers, or its main process, would have drawn (one worker does that), and
    each batch is checked for it. Failing that, the loader stays as it is.
Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, at_least
from hasten.loader import engine_for
from hasten.loader.worker_counts import counts, replayable_counts, speedup_of, why_none
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if not counts(context):
        return why_none(context)
    loader = context.traits.loader
    if loader and loader.has_own_order:
        return "the script's own sampler may look at anything between two batches"
    if context.traits.worker_count:
        return "more workers than the script has would draw other random numbers"
    return "the items' random draws alternate with the loop's, which no process can foresee"


def apply(training: Training, count: int) -> Callable[[], None]:
    """Take over every map-style loader; batches already requested are drained first."""
    return engine_for(training).want(count)


LEVER = Lever(
    name="loader_workers",
    phases=frozenset({Phase.DATA}),
    effect=Effect.EXACT,
    scope=Scope.PROCESS,
    kind=int,
    validate=at_least(0),
    settings=replayable_counts,
    gain_ratio=50.0,
    why_not=why_not,
    forecast=speedup_of,
    snippet=lambda count: f"DataLoader(..., num_workers={count})  # if samples use no randomness",
    settle_count=10,  # the first batches are proved
    cycle_count=lambda count: max(1, 2 * count),
    provides=lambda count, traits: traits.with_workers(count),
    apply=apply,
    edit="loaders.loader_workers",
    cures=frozenset({"few-workers", "idle-workers", "slow-storage", "worker-respawn"}),
)
