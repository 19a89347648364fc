"""How long the parts of a tuning take: one estimate, made of what was measured.

A budget is kept by stopping the search in time, so everything that comes after the search must
be known before it: the proof and the confirmation. Each function here counts the launches, steps
and pairs that its part cannot do without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from hasten.errors import UsageError
from hasten.units import duration, whole_minutes

NOISE_LEAST_COUNT, NOISE_LEAST_S = 8, 3.0
CONFIRM_ROUNDS, CONFIRM_LEAST_COUNT = 2, 10
CONFIRM_LEAST_S = 3.0
GLANCE_COUNT, PROBE_COUNT, PROBE_S = 2, 8, 4.0
LOOK_S, LOOK_LEAST_COUNT = 2.0, 8
WATCH_LEAST_COUNT, WATCH_SLOW_COUNT, WATCH_MOST_COUNT = 8, 4, 400
WATCH_S, WATCH_SLOW_S = 6.0, 12.0
_HASHED_RATIO = 1.25  # a recorded run hashes every step
_SPARE_RATIO = 1.1  # one start may be slower than those before
_ROUGHLY_RATIO = 1.1  # of an estimate that was made before the profile


def probe_count(step_s: float, *, cycle_count: int = 1, waits: bool = True) -> int:
    """Return how many more steps to time after a glance to know the pace; none for slow ones.

    Args:
        step_s: seconds of a step, by the two steps of the glance.
        cycle_count: steps after which the times repeat where the loop waits for its loader; two
            steps of a burst say nothing.
        waits: the glance saw the loop wait. Where it did not, a burst may still come, but it is
            looked for no longer than four seconds: the profile holds a whole cycle anyway.

    >>> probe_count(0.01), probe_count(2.0), probe_count(2.0, cycle_count=4)
    (8, 0, 8)
    >>> [probe_count(s, cycle_count=20, waits=False) for s in (0.01, 0.4, 0.7)]
    [20, 10, 0]
    """
    brief_count = _count(PROBE_S, step_s)
    if brief_count < PROBE_COUNT and (cycle_count == 1 or not waits):
        return 0
    return max(PROBE_COUNT, cycle_count if waits else min(cycle_count, brief_count))


def watch_count(
    step_s: float, *, cycle_count: int = 1, pass_count: int = 0, most_count: int = WATCH_MOST_COUNT
) -> int:
    """Return the steps of a profile: six seconds of them, at most `most_count` or two passes.

    They are at least eight, or four where eight take more than 12 seconds.

    >>> watch_count(0.01), watch_count(0.3), watch_count(1.5), watch_count(1.6)
    (400, 20, 8, 4)
    >>> watch_count(0.002, pass_count=500), watch_count(0.01, pass_count=5000)
    (1000, 600)
    """
    most = max(most_count, 2 * pass_count)
    is_slow = WATCH_LEAST_COUNT * step_s > WATCH_SLOW_S
    least = WATCH_SLOW_COUNT if is_slow else WATCH_LEAST_COUNT
    return max(least, cycle_count, min(most, _count(WATCH_S, step_s)))


def _count(seconds: float, step_s: float) -> int:
    return int(seconds / max(1e-6, step_s))


def too_short(budget_s: float, needed_s: float, *, least_s: float | None = None) -> UsageError:
    """Return the error for a budget that is too short for an answer.

    Args:
        budget_s: of the user.
        needed_s: that is enough.
        least_s: that may be enough if later steps are much quicker than the first one, which is all
            that `needed_s` knows; None where it knows more.

    >>> too_short(10.0, 231.0).remedy
    'Give it --budget 240s or longer.'
    >>> too_short(10.0, 620.0, least_s=81.0).remedy
    'Give it --budget 11m or longer; 90s may do if later steps are quicker than the first.'
    """
    enough, less = _option(needed_s), ""
    if least_s is not None and (least := _option(least_s)) != enough:
        less = f"; {least} may do if later steps are quicker than the first"
    return UsageError(
        f"A budget of {duration(budget_s)} holds no answer for this script: a proved and confirmed "
        f"one needs about {duration(needed_s)}.",
        remedy=f"Give it --budget {enough} or longer{less}.",
    )


def _option(seconds: float) -> str:
    """Return a budget rounded up, to tens of seconds or, from ten minutes, to whole minutes."""
    return whole_minutes(seconds) if seconds > 600 else f"{10 * ceil(seconds / 10)}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The least time that each part of a tuning takes if one given plan is proved.

    Attributes:
        step_s: seconds of a step.
        launch_s: seconds from a launch until the child is warm.
        launches_s: the same for two children, which start together where memory holds both.
        pair_s: seconds of a pair in two children.
        records_start_s: seconds from the launch of two recorded runs to their first steps.
        recorded_count: steps that each of them records.
        wave_count: how many times a proof runs two recorded runs side by side.
        busy_ratio: how much longer two recorded runs take than one, 1 to 2.
        cycle_count: steps after which the times repeat: loader workers x prefetch.
        pass_count: steps of a pass over the data, 0 where that is unknown.
    """

    step_s: float
    launch_s: float
    launches_s: float
    pair_s: float
    records_start_s: float
    recorded_count: int
    wave_count: int
    busy_ratio: float = 1.0
    cycle_count: int = 1
    pass_count: int = 0

    @property
    def noise_s(self) -> float:
        """Seconds of the A/A run: two children, then pairs."""
        return self.launches_s + max(NOISE_LEAST_S, NOISE_LEAST_COUNT * self.pair_s)

    @property
    def observe_s(self) -> float:
        """Seconds of a profile in a child that is warm; one step goes by before each part.

        >>> Costs(
        ...     step_s=2.0, launch_s=11.0, launches_s=14.0, pair_s=4.0, records_start_s=4.0,
        ...     recorded_count=32, wave_count=1,
        ... ).observe_s
        16.0
        """
        probe = probe_count(self.step_s, cycle_count=self.cycle_count)
        watch = watch_count(self.step_s, cycle_count=self.cycle_count, pass_count=self.pass_count)
        parts = [GLANCE_COUNT, probe, watch]
        return sum(1 + count for count in parts if count) * self.step_s

    @property
    def confirm_pairs_s(self) -> float:
        """Seconds of the fewest pairs of a confirmation."""
        return CONFIRM_ROUNDS * max(CONFIRM_LEAST_S, CONFIRM_LEAST_COUNT * self.pair_s)

    @property
    def confirm_s(self) -> float:
        """Seconds of the shortest confirmation: two rounds of two launches each."""
        return CONFIRM_ROUNDS * self.launches_s + self.confirm_pairs_s

    @property
    def proof_s(self) -> float:
        """Seconds of a proof that needs no second attempt."""
        steps_s = self.recorded_count * self.step_s * _HASHED_RATIO * self.busy_ratio
        return self.wave_count * (self.records_start_s + steps_s)

    @property
    def answer_s(self) -> float:
        """The least seconds of what comes after the search: proof and confirmation.

        The last look at the script under its plan gets whatever is left of the budget.
        """
        return _SPARE_RATIO * (self.proof_s + self.confirm_s)


def refuse_too_short(
    budget_s: float, spent_s: float, costs: Costs, *, is_watched: bool = False
) -> None:
    """Raise where a budget ends before anything can be tried.

    Args:
        budget_s: of the user.
        spent_s: of it, so far.
        costs: as far as they are known.
        is_watched: the script has been profiled and looked at.

    Raises:
        UsageError: the budget is too short.
    """
    if spent_s + costs.launch_s + NOISE_LEAST_S < budget_s:
        return

    if is_watched:
        raise too_short(budget_s, _needed_s(spent_s, costs))
    watch_s = costs.observe_s + LOOK_S
    # Where only the first step is known, which is often the slowest: as if others took no time.
    quicker = replace(costs, step_s=0.0, pair_s=0.0)
    least_s = _needed_s(spent_s + quicker.observe_s + LOOK_S, quicker)
    raise too_short(budget_s, _needed_s(spent_s + watch_s, costs), least_s=least_s)


def refuse_too_slow(budget_s: float, spent_s: float, costs: Costs) -> None:
    """Raise where a budget ends before a script has been looked at, by the pace of its glance.

    Raises:
        UsageError: the budget is too short.
    """
    watch_s = costs.observe_s - (1 + GLANCE_COUNT) * costs.step_s  # these steps are spent
    watched_s = spent_s + watch_s + max(LOOK_S, LOOK_LEAST_COUNT * costs.step_s)
    if watched_s >= budget_s:
        raise too_short(budget_s, _needed_s(watched_s, costs))


def _needed_s(watched_s: float, costs: Costs) -> float:
    race_s = costs.noise_s  # a launch and pairs, too
    return _ROUGHLY_RATIO * (watched_s + costs.noise_s + race_s + costs.answer_s)
