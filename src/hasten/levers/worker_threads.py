"""worker_threads: how many threads BLAS, OpenMP and OpenCV use inside a loader worker.

Helps: several workers whose items multiply matrices, filter images or sort in NumPy, SciPy,
    OpenCV: each would start one thread per core, and the workers would fight for the cores.
Hurts: one worker with heavy items on many idle cores.
Maths: exact. Each worker fetches its first batch both ways, and from then on every 256th it is
    asked for; if a bit differs, it keeps the threads it had.
Source: https://scikit-learn.org/stable/computing/parallelism.html#oversubscription-spawning-too-many-threads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, at_least
from hasten.loader import engine_for
from hasten.loader.worker_counts import unproven
from hasten.loader.workers.threads import WorkerThreads, openmp_mask
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training
    from hasten.records.traits import Traits


def settings(context: ScriptContext) -> tuple[int, ...]:
    """Return one thread, and an equal share of the cores where it is more than one."""
    if why_not(context):
        return ()
    share = context.machine.budget.core_count // context.traits.worker_count
    return tuple(dict.fromkeys((1, max(1, share))))


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    if context.traits.loader is None:
        return "the loop takes its batches from no DataLoader"
    return _without_workers(1, context.traits) or unproven(context, repeats_only=True)


def _without_workers(count: int, traits: Traits) -> str:
    if traits.worker_count:
        return ""
    return "the loader has no workers: its items use the threads of the main process"


def apply(training: Training, count: int) -> Callable[[], None]:
    """Let every worker that starts from now on check the limit with its first batch."""
    return engine_for(training).in_workers(WorkerThreads(count, openmp_mask()))


LEVER = Lever(
    name="worker_threads",
    phases=frozenset({Phase.DATA}),
    effect=Effect.EXACT,
    scope=Scope.PROCESS,
    kind=int,
    validate=at_least(1),
    settings=settings,
    gain_ratio=8.0,
    why_not=why_not,
    redundant_with=_without_workers,
    snippet=lambda count: (
        f"DataLoader(..., worker_init_fn=lambda _: threadpoolctl.threadpool_limits({count}))"
    ),
    settle_count=4,
    apply=apply,
    run_only="each worker compares its first batch with and without the limit",
    cures=frozenset({"nested-thread-pools", "worker-affinity"}),
)
