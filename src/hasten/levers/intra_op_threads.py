"""intra_op_threads: how many threads share one operation on the CPU.

Helps: jobs whose default counts hyper-threads, other sockets or cores beyond their quota, scripts
    that set a number which does not fit the job, small models that spend more on waking threads
    than on arithmetic, and loops that leave their cores to loader workers.
Hurts: large matrix products and convolutions, where too few threads leave cores idle.
Maths: rounding. Sums are split between threads, so their order changes.
Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.lever import COMPUTE_AND_DATA, Lever, PairProbe, at_least
from hasten.loader.worker_counts import threads_beside
from hasten.records import Effect, Scope
from hasten.root_calls.threads import hold_threads
from hasten.units import counted

if TYPE_CHECKING:
    from hasten.lever import ScriptContext


def settings(context: ScriptContext) -> tuple[int, ...]:
    """Return the budget, half of it, a quarter and one thread, except what is set already.

    A count that leaves cores to `loader_workers` comes first. Beside an accelerator there
    is nothing to gain, unless there are more threads than cores.
    """
    if context.off_cpu() and not _exceeds(context):
        return ()
    cores, few = context.machine.budget.core_count, threads_beside(context)
    ladder = (few or cores, cores, max(1, cores // 2), max(1, cores // 4), 1)
    return tuple(dict.fromkeys(n for n in ladder if n != context.traits.thread_count))


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    return context.off_cpu() or "the job has one core and torch uses one thread"


def promising(context: ScriptContext) -> bool:
    """Return whether torch has more threads than cores, or than workers would leave to it.

    Elsewhere a number of threads is a gamble.
    """
    return _exceeds(context) or threads_beside(context) is not None


def other_count(context: ScriptContext) -> int | None:
    """Return the number of threads that the closer look tries; None where none is worth it.

    That is one per core where there are more threads than cores, all cores of a rank that
    has one thread, and otherwise a single one: operations may be too small to split.
    """
    traits, budget = context.traits, context.machine.budget
    threads, ranks_count = traits.thread_count, traits.local_rank_count
    if threads is None or budget.limited_by == "unknown" or traits.compiler.is_used:
        return None
    cores = budget.cores_per_rank(ranks_count)
    if threads > cores:
        return cores
    if threads == 1:
        return cores if ranks_count > 1 and cores > 1 else None
    return 1


def _exceeds(context: ScriptContext) -> bool:
    return (context.traits.thread_count or 0) > context.machine.budget.core_count


def advice(context: ScriptContext) -> str:
    """Say that the script itself asks for more threads than there are cores.

    The facts of the machine give torch's own count; any difference is the script's doing.
    """
    budget, torch = context.machine.budget, context.machine.torch
    count = context.traits.thread_count
    stock = torch.thread_count if torch else None
    if count is None or stock in (None, count) or budget.limited_by == "unknown":
        return ""
    if not _exceeds(context):
        return ""
    cores = counted(budget.core_count, "core")
    return f"The script asks for {count} threads and the job has {cores}."


LEVER = Lever(
    name="intra_op_threads",
    phases=COMPUTE_AND_DATA,
    effect=Effect.ROUNDING,
    scope=Scope.STEP,
    kind=int,
    validate=at_least(1),
    settings=settings,
    gain_ratio=8.0,
    shares_cpus=lambda _: True,
    why_not=why_not,
    snippet=lambda count: f"torch.set_num_threads({count})",
    promising=promising,
    advice=advice,
    redundant_with=lambda _, traits: (
        "the cores are divided among the helpers' threads" if traits.helper_count else ""
    ),
    provides=lambda count, traits: replace(traits, thread_count=count),
    settle_count=1,
    cures=frozenset({"oversubscribed-threads", "small-ops-threads"}),
    probe=PairProbe(fact="threads", setting=other_count),
    apply=hold_threads,
    edit="process.intra_op_threads",
)
