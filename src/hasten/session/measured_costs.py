"""How long the parts of a tuning take, as a runner has measured so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.records import Effect
from hasten.search.costs import Costs
from hasten.trials.blocks import TOGETHER_RATIO, both_start_s
from hasten.verify.proof_runs import effects, recorded_count, wave_count

if TYPE_CHECKING:
    from hasten.records import Machine, Plan, Profile
    from hasten.trials.runner import TrialRunner

_USUAL = frozenset({Effect.ROUNDING, Effect.DISTRIBUTION})
_BUSY_RATIO = 1.5


def first_costs(runner: TrialRunner, spent_s: float) -> Costs:
    """Return the costs estimated from the first start alone, even an unfinished one."""
    start_s, step_s = runner.starts.start_s or spent_s, runner.pace.step_s
    return Costs(
        step_s=step_s, launch_s=start_s, launches_s=TOGETHER_RATIO * start_s, pair_s=2 * step_s,
        records_start_s=TOGETHER_RATIO * start_s, recorded_count=recorded_count(step_s),
        wave_count=wave_count(_USUAL), busy_ratio=_BUSY_RATIO,
    )  # fmt: skip


def costs_of(
    runner: TrialRunner,
    seen: Profile,
    machine: Machine,
    *,
    baseline: Plan,
    candidate: Plan,
    proved: Plan | None = None,
) -> Costs:
    """Return the costs of a script as the runner and its profile have measured it so far.

    The candidate is the plan that is to be proved, with what the user set; a proof of it is about
    `proved`, which is None where the search has not begun.
    """
    pace = runner.pace
    busy_ratio = 2.0 if pace.single_process else _BUSY_RATIO
    if seen.cores_ratio is not None and not pace.single_process:
        busy_ratio = min(2.0, max(1.0, 2 * seen.cores_ratio / machine.budget.core_count))
    launches_s = (pace.launch_s(baseline), pace.launch_s(candidate))
    return Costs(
        step_s=pace.step_s,
        launch_s=sum(launches_s) / 2,
        launches_s=both_start_s(*launches_s, single_process=pace.single_process),
        pair_s=pace.pair_s(baseline, candidate, apart=True),
        records_start_s=TOGETHER_RATIO * runner.starts.start_s,
        recorded_count=recorded_count(pace.step_s),
        wave_count=wave_count(_USUAL if proved is None else effects(proved)),
        busy_ratio=busy_ratio,
        cycle_count=pace.repeat_count(baseline, candidate),
        pass_count=runner.rhythm.pass_count,
    )
