"""How long the parts of a tuning take: one estimate, made of what was measured.

A budget is kept by stopping the search in time, so everything that comes after the search must
be known before it: the proof and the confirmation. Each
function here counts the launches, steps and pairs that its part cannot do without.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from hasten.errors import UsageError
from hasten.records import Effect
from hasten.trials.blocks import TOGETHER_RATIO, both_start_s
from hasten.units import duration

if TYPE_CHECKING:
    from collections.abc import Collection

    from hasten.records import Machine, Plan, Profile
    from hasten.trials.runner import TrialRunner

NOISE_LEAST_COUNT, NOISE_LEAST_S = 8, 3.0
CONFIRM_ROUNDS, CONFIRM_TRIAL_COUNT, CONFIRM_LEAST_COUNT = 2, 2, 10
CONFIRM_LEAST_S = 3.0
GLANCE_COUNT, PROBE_COUNT, PROBE_S = 2, 8, 4.0
LOOK_S = 2.0
WATCH_LEAST_COUNT, WATCH_MOST_COUNT, WATCH_S = 8, 400, 6.0
RECORDED_COUNT, SLOW_RECORDED_COUNT = 32, 16
_SLOW_STEP_S = 5.0
_HASHED_RATIO = 1.25  # a recorded run hashes every step
_BUSY_RATIO = 1.5
_SEED_PAIRS_COUNT = 5
_SPARE_RATIO = 1.1  # one start may be slower than those before
_ROUGHLY_RATIO = 1.1  # of an estimate that was made before the profile


def probe_count(step_s: float, *, cycle_count: int = 1) -> int:
    """Return the steps that tell the pace of a script after a glance; none where they are slow.

    Args:
        step_s: seconds of a step, of the two of the glance.
        cycle_count: steps after which the times repeat; two of a burst tell nothing.

    >>> probe_count(0.01), probe_count(2.0), probe_count(2.0, cycle_count=4)
    (8, 0, 8)
    """
    slow = PROBE_COUNT * step_s > PROBE_S
    return 0 if slow and cycle_count == 1 else max(PROBE_COUNT, cycle_count)


def watch_count(step_s: float, *, cycle_count: int = 1, pass_count: int = 0) -> int:
    """Return the steps of a profile: six seconds of them, of quick ones at least two passes.

    >>> watch_count(0.01), watch_count(0.3), watch_count(2.0)
    (400, 20, 8)
    >>> watch_count(0.002, pass_count=500), watch_count(0.01, pass_count=5000)
    (1000, 600)
    """
    most = max(WATCH_MOST_COUNT, 2 * pass_count)
    return max(WATCH_LEAST_COUNT, cycle_count, min(most, _count(WATCH_S, step_s)))


def recorded_count(step_s: float) -> int:
    """Return the steps that each run of a proof records."""
    return RECORDED_COUNT if step_s < _SLOW_STEP_S else SLOW_RECORDED_COUNT


def _count(seconds: float, step_s: float) -> int:
    return int(seconds / max(1e-6, step_s))


def too_short(budget_s: float, needed_s: float) -> UsageError:
    """Return the error of a budget that holds no answer.

    >>> too_short(10.0, 231.0).remedy
    'Give it --budget 240s or longer.'
    """
    return UsageError(
        f"A budget of {duration(budget_s)} holds no answer for this script: a proved and confirmed "
        f"one needs about {duration(needed_s)}.",
        remedy=f"Give it --budget {10 * ceil(needed_s / 10)}s or longer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The least that each part of a tuning takes.

    Attributes:
        step_s: seconds of a step.
        start_s: seconds from a launch to the first step.
        launch_s: seconds from a launch until the child is warm.
        pair_s: seconds of a pair in two children.
        cycle_count: steps after which the times repeat: loader workers x prefetch.
        busy_ratio: how much longer two runs of a proof take than one, 1 to 2.
        pass_count: steps of a pass over the data, 0 where that is unknown.
        is_single_process: memory holds one child at a time.
    """

    step_s: float
    start_s: float
    launch_s: float
    pair_s: float
    cycle_count: int = 1
    busy_ratio: float = _BUSY_RATIO
    pass_count: int = 0
    is_single_process: bool = False

    @property
    def noise_s(self) -> float:
        """Seconds of the A/A run: two children, then pairs."""
        return self.launches_s + max(NOISE_LEAST_S, NOISE_LEAST_COUNT * self.pair_s)

    @property
    def observe_s(self) -> float:
        """Seconds of a profile in a child that is warm; one step goes by before each part.

        >>> Costs(step_s=2.0, start_s=3.0, launch_s=11.0, pair_s=4.0).observe_s
        24.0
        """
        probe = probe_count(self.step_s, cycle_count=self.cycle_count)
        watch = watch_count(self.step_s, cycle_count=self.cycle_count, pass_count=self.pass_count)
        parts = [GLANCE_COUNT, probe, watch]
        return sum(1 + count for count in parts if count) * self.step_s

    @property
    def confirm_pairs_s(self) -> float:
        """Seconds of the fewest pairs of a confirmation: two that tell their length, then ten."""
        pairs_s = (CONFIRM_TRIAL_COUNT + CONFIRM_LEAST_COUNT) * self.pair_s
        return CONFIRM_ROUNDS * max(CONFIRM_LEAST_S, pairs_s)

    @property
    def confirm_s(self) -> float:
        """Seconds of the shortest confirmation: two rounds of two launches each."""
        return CONFIRM_ROUNDS * self.launches_s + self.confirm_pairs_s

    @property
    def launches_s(self) -> float:
        """Seconds until two children are warm; they start at once where memory holds two."""
        return both_start_s(self.launch_s, self.launch_s, single_process=self.is_single_process)

    def proof_s(self, effects: Collection[Effect]) -> float:
        """Return the seconds of a proof that needs no second attempt.

        Runs go two at a time, in waves. What claims equal bits runs beside the script, once. Else
        the script runs twice, then the plan beside the script with one bit changed. What redraws
        needs two more under other seeds. What also redraws or narrows is recorded once more
        without that; what learns otherwise is run under five seeds.

        Args:
            effects: those of the levers in the plan.
        """
        asked = set(effects) - {Effect.EXACT}
        waves = (
            1 if not asked else 2 + bool(asked - {Effect.ROUNDING}) + (Effect.PRECISION in asked)
        )
        if Effect.DISTRIBUTION in asked and asked != {Effect.DISTRIBUTION}:
            waves += 1
        if Effect.LEARNING in asked:
            waves += _SEED_PAIRS_COUNT
        steps_s = recorded_count(self.step_s) * self.step_s * _HASHED_RATIO * self.busy_ratio
        return waves * (TOGETHER_RATIO * self.start_s + steps_s)

    def answer_s(self, effects: Collection[Effect]) -> float:
        """Return what comes after the search at least: proof and confirmation.

        The last look at the script under its plan has what is left of the budget.
        """
        return _SPARE_RATIO * (self.proof_s(effects) + self.confirm_s)


def first_costs(runner: TrialRunner, spent_s: float) -> Costs:
    """Return the costs by the first start alone, as far as it has come.

    Args:
        runner: where it runs.
        spent_s: seconds so far.
    """
    start_s, step_s = runner.start_s or spent_s, runner.step_s
    return Costs(step_s=step_s, start_s=start_s, launch_s=start_s, pair_s=2 * step_s)


def refuse_too_short(budget_s: float, spent_s: float, costs: Costs) -> None:
    """Stop where a budget ends before anything can be tried.

    Args:
        budget_s: of the user.
        spent_s: of it, so far.
        costs: as far as they are known.

    Raises:
        UsageError: it does.
    """
    if spent_s + costs.launch_s + NOISE_LEAST_S < budget_s:
        return
    race_s = costs.noise_s  # a launch and pairs, too
    answer_s = costs.answer_s({Effect.ROUNDING, Effect.DISTRIBUTION})
    before_s = spent_s + costs.observe_s + LOOK_S + costs.noise_s + race_s
    raise too_short(budget_s, _ROUGHLY_RATIO * (before_s + answer_s))


def costs_of(
    runner: TrialRunner, seen: Profile, machine: Machine, *, baseline: Plan, candidate: Plan
) -> Costs:
    """Return the costs of a script as the runner and its profile have measured it so far.

    Args:
        runner: where it runs.
        seen: its profile.
        machine: this machine; its cores decide how much two runs are in each other's way.
        baseline: what the user set.
        candidate: the plan that is to be proved.
    """
    busy_ratio = 2.0 if runner.single_process else _BUSY_RATIO
    if seen.cores_ratio is not None and not runner.single_process:
        busy_ratio = min(2.0, max(1.0, 2 * seen.cores_ratio / machine.budget.core_count))
    return Costs(
        step_s=runner.step_s,
        start_s=runner.start_s,
        launch_s=(runner.launch_s(baseline) + runner.launch_s(candidate)) / 2,
        pair_s=runner.pair_s(baseline, candidate, apart=True),
        cycle_count=runner.cycle_count,
        busy_ratio=busy_ratio,
        pass_count=runner.statistics.pass_count,
        is_single_process=runner.single_process,
    )
