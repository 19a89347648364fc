"""What a runner has seen: what plans cost once, where steps go, after how many they repeat."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hasten.records import Phase
from hasten.trials.blocks import compiling, cost_s, filling, pair

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.protocol import CostsRead
    from hasten.records import Pair, Plan, Step
    from hasten.trials.trial_process import TrialProcess

_RECENT_COUNT = 3
_LEAST_FAULT_STEPS = 16
_WAITING_SHARE, _BURSTY_SHARE = 0.1, 0.05
_LONGEST_PERIOD, _LEAST_PERIODS, _LEAST_COUNT = 64, 4, 24
_PERIODIC_RATIO, _EQUAL_RATIO = 0.7, 0.95
_MOST_TIMES, _RARE_TIMES, _LONG_TIMES, _LEAST_GAPS = 20.0, 5.0, 2.0, 2
_REGULAR_SHARE, _CHANCE_TIMES, _ALIKE_RATIO = 0.5, 2.0, 0.8
_EVENT_RATIO, _HELD_RATIO = 0.5, 0.5
_PAUSE_SHARE, _LONGEST_PASS_S, _SHORT_PASS_S = 0.05, 2.0, 0.25


class StartCosts:
    """What is paid once under each plan: the launch, compiling, a longer first pass.

    Attributes:
        is_kept: real runs begin with what trials have compiled.
    """

    def __init__(self) -> None:
        self.is_kept = False
        self._starts: list[tuple[Plan, float]] = []
        self._compiled_s: dict[Plan, float] = {}
        self._warm_s: dict[Plan, float] = {}
        self._first_pass_s: dict[Plan, tuple[float, float]] = {}
        self._children: dict[int, tuple[object, float]] = {}

    def started(self, plan: Plan, wall_s: float) -> None:
        """Note the seconds from a launch under `plan` to its first step."""
        self._starts.append((plan, wall_s))

    def paid_once(self, plan: Plan, child: object, costs: CostsRead) -> None:
        """Note what a child reports about its compiling and its first pass over the data.

        Compiling that is new since the last report is charged to `plan`.

        Trials hand on what they have compiled, so the longest time is that of a first run, and the
        others are those of a run that begins with compiled code.
        """
        total_s = costs.compile_s
        _, before_s = self._children.get(id(child), (child, 0.0))
        self._children[id(child)] = (child, total_s)  # held, so that its id is not reused
        if (part := filling(plan)).settings:
            self._first_pass_s[part] = costs.first_pass_s
        key, part_s = _compiled_by(plan), total_s - before_s
        first_s = self._compiled_s.get(key, 0.0)
        if first_s and part_s and not before_s:  # another child, which began with compiled code
            self._warm_s[key] = max(min(part_s, first_s), self._warm_s.get(key, 0.0))
        self._compiled_s[key] = max(part_s, first_s)

    def has_compiled(self, plan: Plan) -> bool:
        """Return whether a trial has compiled what a plan compiles."""
        return _compiled_by(plan) in self._compiled_s

    @property
    def start_s(self) -> float:
        """Seconds from a launch to the first step; the very first one had to read the disk."""
        seconds = [wall_s for _, wall_s in self._starts]
        return max(seconds[1:][-_RECENT_COUNT:] or seconds, default=0.0)

    def later_s(self, baseline: Plan, candidate: Plan) -> float | None:
        """Return how much later the first step comes under `candidate`, compiling included.

        Where code is kept that is what a run takes that begins with it, once that has been seen.
        It comes from launches under both plans and from what children report about compiling;
        None without either. The launch that had to read the disk does not count. The extra
        time of the first pass over the data comes later, but is included.
        """
        own, other = self._own(baseline), self._own(candidate)
        held_s = self._once(candidate)[1] - self._once(baseline)[1]
        launched_s = median(other) - median(own) - held_s if own and other else None
        key = _compiled_by(candidate)
        compiled_s = self._warm_s.get(key) if self.is_kept else None
        if compiled_s is None:
            compiled_s = self._compiled_s.get(key)
        found = [s for s in (launched_s, compiled_s) if s is not None]
        if not found:
            return None
        return max(found) + self.first_pass_s(baseline, candidate)

    def first_pass_s(self, baseline: Plan, candidate: Plan) -> float:
        """Return the extra seconds of a first pass over later ones that `candidate` adds."""
        if filling(baseline) == filling(candidate):
            return 0.0
        return self._once(candidate)[0] - self._once(baseline)[0]

    def _once(self, plan: Plan) -> tuple[float, float]:
        return self._first_pass_s.get(filling(plan), (0.0, 0.0))

    def _own(self, plan: Plan) -> list[float]:
        return [wall_s for own, wall_s in self._starts[1:] if own == plan]


def _compiled_by(plan: Plan) -> Plan:
    """Return what identifies compiled code: the levers that compile, else the whole plan."""
    part = compiling(plan)
    return part if part.settings else plan


class _FaultCounts(NamedTuple):
    """Steps and page faults of one launch under one plan."""

    step_count: int = 0
    faults_count: float = 0.0


class PlanStatistics:
    """Where the time of steps under each plan goes, time outside of steps, and page faults."""

    def __init__(self) -> None:
        self._faults: dict[Plan, dict[int, _FaultCounts]] = {}
        self._last_faults: dict[int, tuple[TrialProcess, int, float]] = {}
        self._phases: dict[Plan, dict[Phase, float]] = {}
        self._counts: dict[Plan, int] = {}
        self._outside_s, self._seen_count = 0.0, 0
        self._by_pass_s: dict[Plan, float] = {}

    def ran(self, plan: Plan, steps: Sequence[Step]) -> None:
        """Note steps that were counted under `plan`."""
        sums = self._phases.setdefault(plan, {})
        self._counts[plan] = self.step_count(plan) + len(steps)
        for step in steps:
            for phase, spent_ns in step.phase_ns.items():
                sums[phase] = sums.get(phase, 0.0) + spent_ns * 1e-9
        self.saw(steps)

    def faulted(
        self, plan: Plan, child: TrialProcess, faults_count: float, *, step_count: int
    ) -> None:
        """Note how many pages a child has faulted in by now, after a turn under `plan`.

        What happened before the steps of the turn, as under another plan, is left out.
        """
        _, steps_before, faults_before = self._last_faults.get(id(child), (child, -1, 0.0))
        self._last_faults[id(child)] = child, child.step_count, faults_count  # held: keeps its id
        if child.step_count - steps_before == step_count:
            counts = self._faults.setdefault(plan, {})
            so_far = counts.get(id(child), _FaultCounts())
            counts[id(child)] = _FaultCounts(
                so_far.step_count + step_count, so_far.faults_count + faults_count - faults_before
            )

    def faults(self, plan: Plan) -> list[float]:
        """Return the page faults per step of each launch of a plan."""
        counts = self._faults.get(plan, {}).values()
        enough = [each for each in counts if each.step_count >= _LEAST_FAULT_STEPS]
        return [each.faults_count / each.step_count for each in enough]

    def saw(self, steps: Sequence[Step]) -> None:
        """Note the time outside of steps, such as that of evaluation."""
        self._seen_count += len(steps)
        self._outside_s += outside_s(steps)

    def watched(self, plan: Plan, steps: Sequence[Step], pass_count: int) -> None:
        """Note consecutive steps, as `saw`; whole passes, each with an evaluation, tell most.

        Trials begin at the first step, and many end before the evaluation after the first pass.
        """
        self.saw(steps)
        whole_count = len(steps) // pass_count if pass_count else 0
        if not whole_count:
            return
        spent_s = [outside_s([step]) for step in steps[-whole_count * pass_count :]]
        longest_s = max(spent_s)
        if longest_s and sum(s > _EVENT_RATIO * longest_s for s in spent_s) == whole_count:
            self._by_pass_s[plan] = sum(spent_s) / len(spent_s)

    def outside_s(self, own: Plan, other: Plan) -> tuple[float, float]:
        """Return the mean seconds outside of steps for each step, under two plans.

        They are the same where whole passes were not watched under both.
        """
        known, pooled_s = self._by_pass_s, self._outside_s / max(1, self._seen_count)
        before_s = known.get(own, known.get(other, pooled_s))
        return before_s, known.get(other, before_s)

    def phase_s(self, plan: Plan) -> Mapping[Phase, float] | None:
        """Return the mean seconds of a step in each phase, None where no step was seen."""
        if not self._counts.get(plan):
            return None
        return {phase: s / self._counts[plan] for phase, s in self._phases[plan].items()}

    def step_s(self, plan: Plan) -> float:
        """Return the mean seconds of a step, 0 where none was seen."""
        phase_s = self.phase_s(plan) or {}
        return sum(seconds for phase, seconds in phase_s.items() if phase.in_step)

    def step_count(self, plan: Plan) -> int:
        """Return how many steps were counted under `plan`."""
        return self._counts.get(plan, 0)

    def forget_steps(self) -> None:
        """Start counting afresh: the machine may have changed since the earlier steps ran."""
        self._phases.clear()
        self._counts.clear()


def outside_s(steps: Sequence[Step]) -> float:
    """Return the seconds that passed outside of steps, such as those of evaluation."""
    parts = (part for step in steps for part in step.phase_ns.items())
    return 1e-9 * sum(spent_ns for phase, spent_ns in parts if not phase.in_step)


class ScriptRhythm:
    """After how many steps the step times of the unmodified script repeat.

    Attributes:
        period_count: steps after which the times of its loop were seen to repeat, leaving out its
            waits for the loader.
        pause_count: the steps of a pass where each of the short passes begins with a pause; else 1.
        pass_count: steps of a pass over the data; 0 where that is unknown.
        short_pass_count: the same where a pass is so short that a pause at its beginning, which
            workers may bring, would matter; else 0.
    """

    def __init__(self) -> None:
        self.period_count = self.pause_count = 1
        self.pass_count = self.short_pass_count = 0
        self._watched: Sequence[Step] = ()
        self._busy_s: list[float] = []
        self._watched_under: Plan | None = None
        self._kept_up_count = 0
        self._late: set[Plan] = set()

    def watched(self, plan: Plan, steps: Sequence[Step]) -> bool:
        """Note consecutive steps of the first plan, and whether the script waits for its loader.

        Later plans were found by the search; races compare with the script as it is.

        Returns:
            Whether they are of the first plan.
        """
        if self._watched_under not in (None, plan):
            return False
        self._watched_under = plan
        self._kept_up_count = 0 if waits(steps) else len(steps)
        self._watched = steps
        # How often the loop waits for loader workers is known anyway: see `cycle_count`.
        self._busy_s = [step.wall_s - step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in steps]
        self.period_count = period(self._busy_s)
        pass_s = sum(step.wall_s for step in steps) * self.pass_count / len(steps)
        self.short_pass_count = self.pass_count if pass_s <= _SHORT_PASS_S else 0
        self.pause_count = self.pass_count if pauses(steps, self.pass_count) else 1
        return True

    def neighbours(self, block_count: int) -> list[Pair]:
        """Return pairs of neighbouring blocks of the script as it is.

        Each pair is listed in both orders, as the coin of a race may fall.
        """
        begins = range(0, len(self._watched) - block_count + 1, block_count)
        costs = [cost_s(self._watched[at : at + block_count]) for at in begins]
        two = zip(costs[::2], costs[1::2], strict=False)
        return [pair(both, first, None) for both in two for first in (True, False)]

    def rare_s(self, block_count: int) -> tuple[float, float]:
        """Return the seconds of a mean step that rare long ones add, where most blocks have none.

        A training is all of its steps, those that draw or save something once in a thousand too,
        and a median of blocks does not see them. What they take counts as time outside of steps.

        Returns:
            That, and how far it may be off: as many steps may hold one more of them, or one fewer.
        """
        found = rare_steps(self._busy_s) if self._busy_s else []
        if not found or len(found) * block_count >= _HELD_RATIO * len(self._busy_s):
            return 0.0, 0.0
        usual_s = median(self._busy_s)
        rare_s = sum(self._busy_s[index] - usual_s for index in found) / len(self._busy_s)
        return rare_s, rare_s / len(found)

    def look(self, statistics: PlanStatistics, *plans: Plan) -> None:
        """Decide before a race of plans whether their steps have been seen to wait for a loader."""
        for plan in plans:
            self.know_late(plan, statistics.phase_s(plan) or {})

    def know_late(self, plan: Plan, phase_s: Mapping[Phase, float]) -> None:
        """Decide by the seconds of each phase whether the steps of a plan wait for a loader."""
        if phase_s.get(Phase.DATA, 0.0) > _WAITING_SHARE * sum(phase_s.values()):
            self._late.add(plan)

    def cycle_count(self, ahead_count: int, *plans: Plan) -> int:
        """Return the steps after which the times of plans repeat.

        Args:
            ahead_count: batches that loader workers have in flight. Where the loop waits for them,
                times repeat after that many steps; where they keep up, every step is like the rest.
            plans: what is raced; none for any plan so far.
        """
        late = self._late & set(plans) if plans else self._late
        keeps_up = self._kept_up_count >= ahead_count and not late
        return 1 if keeps_up else ahead_count


def waits(steps: Sequence[Step]) -> bool:
    """Return whether a loop waits for its loader, all the time or in bursts.

    If workers keep up, most batches are ready; what others take longer than these is waiting.
    """
    data_s = [step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in steps]
    whole_s, usual_s = sum(step.wall_s for step in steps), median(data_s)
    late_s = sum(max(0.0, s - usual_s) for s in data_s)
    return sum(data_s) > _WAITING_SHARE * whole_s or late_s > _BURSTY_SHARE * whole_s


def pauses(steps: Sequence[Step], pass_count: int) -> bool:
    """Return whether each of the short passes has a pause, as when workers are restarted.

    If one block in twenty held a pause, a median would show only the others: it hides the pause,
    and what a lever takes away from it.

    """
    if not pass_count or len(steps) < 2 * pass_count:
        return False
    data_s = [step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in steps]
    least_s = sorted(min(data_s[at::pass_count]) for at in range(pass_count))
    pass_s = sum(step.wall_s for step in steps) * pass_count / len(steps)
    pause_s = least_s[-1] - (least_s[-2] if pass_count > 1 else 0.0)
    return pass_s <= _LONGEST_PASS_S and pause_s > _PAUSE_SHARE * pass_s


def rare_steps(walls_s: Sequence[float], times: float = _RARE_TIMES) -> list[int]:
    """Return which steps take so many `times` the usual that they are a good part of the time.

    >>> rare_steps([1.0, 1.0, 9.0, 1.0, 1.0]), rare_steps([1.0] * 999 + [9.0])
    ([2], [])
    """
    usual_s = median(walls_s)
    found = [index for index, seconds in enumerate(walls_s) if seconds > times * usual_s]
    longer_s = sum(walls_s[index] - usual_s for index in found)
    return found if longer_s > _PAUSE_SHARE * sum(walls_s) else []


def _gap(walls_s: Sequence[float], times: float) -> int:
    """Return the steps from one long step to the next; 0 where gaps differ or are too long.

    A loop that logs every tenth step begins to count anew with each pass over the data, and other
    processes lengthen a step here and there: most long steps, not all, have one so far behind.
    """
    found, count = set(rare_steps(walls_s, times)), len(walls_s)
    if not found:
        return 0
    most = min(count // _LEAST_GAPS, int(_LONGEST_PASS_S * count / sum(walls_s)))
    met = {gap: sum(index + gap in found for index in found) for gap in range(2, most + 1)}
    by_chance = _CHANCE_TIMES * len(found) ** 2 / count
    least = max(
        _LEAST_GAPS, by_chance, _REGULAR_SHARE * (len(found) - 1),
        _ALIKE_RATIO * max(met.values(), default=0),
    )  # fmt: skip
    return next((gap for gap, times_met in met.items() if times_met >= least), 0)


def period(walls_s: Sequence[float]) -> int:
    """Return the steps after which times repeat, 1 where they do not.

    A loop that collects new data before every sixteenth update has one long step in sixteen:
    blocks of whole periods are comparable, others are not. The period is the gap between the long
    steps where there are some, else the autocorrelation lag, which must be seen four times; a
    lasting drift correlates at every lag and is not a period.

    >>> period([9.0, 1.0, 1.0, 1.0] * 8), period([1.0, 1.1] * 2), period([1.4, 1.0, 1.0] * 9)
    (4, 1, 3)
    """
    longest = min(_LONGEST_PERIOD, len(walls_s) // _LEAST_PERIODS)
    if len(walls_s) < _LEAST_COUNT:
        return 1
    if count := _gap(walls_s, _RARE_TIMES) or _gap(walls_s, _LONG_TIMES):
        return count
    usual_s = median(walls_s)
    values = np.minimum(np.asarray(walls_s, float), _MOST_TIMES * usual_s)
    values -= values.mean()
    spread = float(values @ values)
    if usual_s <= 0.0 or spread <= 0.0:
        return 1
    count = len(values)
    lags = range(1, longest + 1)
    alike = [float(values[:-lag] @ values[lag:]) / spread * count / (count - lag) for lag in lags]
    most = max(alike[1:])
    if most < _PERIODIC_RATIO or most - median(alike) < _PERIODIC_RATIO / 2:
        return 1
    return next(lag for lag in lags[1:] if alike[lag - 1] >= _EQUAL_RATIO * most)
