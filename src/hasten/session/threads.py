"""Steps with another number of threads beside steps as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten import compare
from hasten.errors import HastenError
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.records import Machine, Plan, Profile
    from hasten.trials.runner import TrialRunner

_LEVER = "intra_op_threads"
_LEAST_COUNT, _MOST_COUNT = 12, 60
_LEAST_SHARE_RATIO = 0.2
_COMPUTE = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)


def other_count(machine: Machine, traits: Mapping[str, Any], ranks_count: int) -> int | None:
    """Return the number of threads that is worth a try; None where none is.

    That is as many as there are cores where there are more threads, all cores of a rank that
    has one thread, and else a single one: operations may be too small to be shared.
    """
    threads, budget = traits.get("threads"), machine.budget
    if threads is None or budget.limited_by == "unknown" or traits.get("compiled"):
        return None
    shared = 1 if budget.slurm_count is not None else ranks_count
    cores = max(1, budget.core_count // shared)
    if threads > cores:
        return cores
    if threads == 1:
        return cores if ranks_count > 1 and cores > 1 else None
    return 1


def try_threads(
    runner: TrialRunner, plan: Plan, seen: Profile, count: int, *, seconds: float
) -> dict[str, Any]:
    """Run pairs of steps as they are and with `count` threads.

    The trial is thrown away: that sums are split differently in it has no consequence.

    Args:
        runner: where the script runs.
        plan: what the user set.
        seen: its profile.
        count: threads.
        seconds: how long the pairs may take, about.

    Returns:
        How many times faster `count` threads are, for `Case.found`; nothing where the time is
        too short to tell, or the CPU does too little of the step.
    """
    cycle = runner.cycle_count
    turns = ((0, 1, cycle, True), (1, 1, cycle, True))
    pair_s = 2 * (1 + cycle) * max(1e-6, seen.step_s)
    pair_count = min(_MOST_COUNT, int(seconds / pair_s))
    if pair_count < _LEAST_COUNT or _LEVER in dict(plan.settings):
        return {}
    if seen.share_ratio(*_COMPUTE) < _LEAST_SHARE_RATIO or seen.share_ratio(Phase.TRANSFER):
        return {}
    try:
        pairs, _ = runner.within((plan, plan.with_lever(_LEVER, count)), pair_count, turns)
    except HastenError:
        return {}
    if len(pairs) < _LEAST_COUNT:
        return {}
    faster = compare.settle(pairs).speedup
    ends = (faster.low_ratio, faster.mid_ratio, faster.high_ratio)
    names = ("threads.low_ratio", "threads.mid_ratio", "threads.high_ratio")
    return {"threads.count": count, **dict(zip(names, ends, strict=True))}
