"""At most two living children of one script, of which only one runs at a time."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, TypeVar

from hasten.errors import TooFewSteps
from hasten.protocol import ReadTraits, TraitsRead, Turn
from hasten.records import Pair, Plan, Step
from hasten.trials.blocks import (
    TOGETHER_RATIO,
    CpuCompetition,
    can_take,
    cost_s,
    pair,
    settle_count,
    shape_of,
)
from hasten.trials.plan_statistics import PlanStatistics
from hasten.trials.trial_process import TrialProcess, too_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.records import Workload
    from hasten.trials.blocks import BlockShape
    from hasten.trials.process import Isolation

_T = TypeVar("_T")
WARM_COUNT = 3
_TIMEOUT_FACTOR = 20.0
_MEMORY_MARGIN_RATIO = 1.2
_LEAST_ROOM_COUNT = 8


class TrialRunner:
    """Run blocks of steps of two plans next to one another.

    Plans that differ only in levers that switch at a step boundary alternate inside one child.
    Others stand in two children that take turns; the one that waits is stopped, with its loader
    workers. A script that comes to its end is started again.

    Args:
        workload: the user's command.
        isolation: how the children's writes are kept away from the user's files.
        patience_s: how long to wait for a first step.
        available_bytes: free memory before the first child, None if unknown; two children that
            do not fit take turns at living.
        make_trial: makes a child; tests give one of arithmetic.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        isolation: Isolation,
        patience_s: float,
        available_bytes: int | None = None,
        make_trial: Callable[..., TrialProcess] = TrialProcess,
    ) -> None:
        self.launch_count, self.step_s = 0, 0.0
        self.life_count: int | None = None
        self.cycle_count = 1
        self.single_process = False
        self._workload = workload
        self._isolation = isolation
        self._patience_s = patience_s
        self._available_bytes = available_bytes
        self._make_trial = make_trial
        self.statistics = PlanStatistics()
        self.notes: tuple[str, ...] = ()  # what the isolation could not do in full
        self._slots: list[TrialProcess | None] = [None, None]
        self._current: dict[int, tuple[Plan, ...]] = {}

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *ended: object) -> None:
        self.clear()

    def clear(self) -> None:
        """End every child."""
        for slot in (0, 1):
            self._vacate(slot)

    # ---- children

    def trial(self, *plans: Plan, slot: int = 0, fresh: bool = False) -> TrialProcess:
        """Return a living, warm child that stands under the first of `plans`.

        A child can take any plan that has the same levers of the kind LAUNCH; another one is
        ended and started anew.

        Args:
            plans: one plan, or two that will alternate.
            slot: which of the two children.
            fresh: start it anew in any case.
        """
        trial = self._slots[slot]
        if trial is not None and (fresh or not can_take(trial.plan, plans[0])):
            self._vacate(slot)
            trial = None
        self._set_aside(1 - slot)
        trial = trial or self._start({slot: plans[0]})[slot]
        trial.resume()
        current = self._current[slot]
        if current != plans:
            trial.switch(plans)
            self._current[slot] = plans
            self._settle(
                trial, max(settle_count(old, plans[0], self.cycle_count) for old in current)
            )
        return trial

    def _start(self, plans: Mapping[int, Plan]) -> Mapping[int, TrialProcess]:
        """Start a child in each slot, all at once: to import takes each of them one core.

        They compute one after the other: each trains only once it is waited for.
        """
        trials: dict[int, TrialProcess] = {}
        try:
            for slot, plan in plans.items():
                self._slots[slot] = trials[slot] = self._make_trial(
                    self._workload, plan, isolation=self._isolation, patience_s=self._patience_s
                )
                self.launch_count += 1
            for slot, trial in trials.items():
                trial.begin()
                self.notes = tuple(dict.fromkeys((*self.notes, *trial.notes)))
                self.statistics.started(plans[slot], trial.start_s)
                self.step_s = self.step_s or trial.first_step_s
            for (slot, plan), trial in zip(plans.items(), trials.values(), strict=True):
                trial.switch((plan,))
                self._settle(trial, WARM_COUNT + self.cycle_count + settle_count(Plan(), plan))
                self._current[slot] = (plan,)
        except BaseException:
            for slot in trials:
                self._vacate(slot)
            raise
        return trials

    def _settle(self, trial: TrialProcess, count: int) -> None:
        if count:
            trial.turns([Turn(0, count, 0, True)], timeout_s=self.timeout_s(count))

    def _set_aside(self, slot: int) -> None:
        """Stop a child, or end it where memory holds only one."""
        trial = self._slots[slot]
        if trial is not None and self.single_process:
            self._vacate(slot)
        elif trial is not None:
            trial.park()

    def _vacate(self, slot: int) -> None:
        trial, self._slots[slot] = self._slots[slot], None
        self._current.pop(slot, None)
        if trial is not None:
            trial.close()

    def facts(self, plan: Plan) -> TraitsRead:
        """Return what a child under `plan` says of itself."""
        found = self.trial(plan).ask(ReadTraits(), TraitsRead, self._patience_s)
        self.cycle_count = found.traits.cycle_count
        self.statistics.know_passes(found.traits)
        return found

    def check_memory(self, resident_bytes: float) -> None:
        """Decide whether two children fit into memory, by the size of the first."""
        if self._available_bytes is not None:
            self.single_process = 2 * resident_bytes * _MEMORY_MARGIN_RATIO > self._available_bytes

    # ---- how long it takes

    @property
    def start_s(self) -> float:
        """Seconds from a launch to the first step; the very first one had to read the disk."""
        return self.statistics.start_s

    def launch_s(self, plan: Plan) -> float:
        """Return about how long it takes until a new child is warm under `plan`."""
        count = WARM_COUNT + self.cycle_count + settle_count(Plan(), plan)
        return self.start_s + count * self.step_s

    def prepare_s(self, baseline: Plan, candidate: Plan) -> float:
        """Return about how long `prepare` takes with the children that live now."""
        slots = self._seating(baseline, candidate)
        at_once = len(slots) == 2 and self._slots == [None, None] and not self.single_process
        return (TOGETHER_RATIO / 2 if at_once else 1.0) * sum(
            self.launch_s(plan)
            if self._fits(plan, slot) <= 0
            else settle_count(Plan(), plan, self.cycle_count) * self.step_s
            for slot, plan in slots.items()
        )

    def launches(self, baseline: Plan, candidate: Plan) -> int:
        """Return how many children `prepare` has to start, with those that live now."""
        return sum(self._fits(p, s) <= 0 for s, p in self._seating(baseline, candidate).items())

    def _seating(self, baseline: Plan, candidate: Plan) -> dict[int, Plan]:
        if self.shape(baseline, candidate).relay:
            return self._slots_for(baseline, candidate)
        return {self._slot_for(baseline): baseline}

    def note_costs(self, plan: Plan) -> None:
        """Ask the child that stands under `plan` what it has paid once."""
        for slot, plans in self._current.items():
            if plan in plans and (trial := self._slots[slot]) is not None:
                trial.resume()
                facts = trial.ask(ReadTraits(), TraitsRead, self._patience_s)
                self.statistics.paid_once(plan, trial, facts)

    def pair_s(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> float:
        """Return about how long a pair takes, with the launches that a short life costs."""
        shape = self.shape(baseline, candidate, apart=apart)
        launch_count = shape.step_count / max(1, self._left_count())
        if shape.relay and self.single_process:
            launch_count = 2
        return shape.step_count * self.step_s + launch_count * self.launch_s(candidate)

    # ---- pairs

    def steps(self, plan: Plan, count: int) -> tuple[list[Step], dict[str, float]]:
        """Run `count` steps under `plan`; return them, and what they used (differences)."""
        return self.repeat(lambda: self._steps(plan, self.room(count, spent_count=1)))

    def _steps(self, plan: Plan, count: int) -> tuple[list[Step], dict[str, float]]:
        trial = self.with_life((plan,), 0, count + 1)
        _, before = trial.turns([Turn(0, 0, 1, True)], timeout_s=self._patience_s)
        (steps,), after = trial.turns([Turn(0, 0, count, True)], timeout_s=self.timeout_s(count))
        used = {name: after[name] - before[name] for name in ("faults_count", "cpu_s")}
        self.step_s = sum(step.wall_s for step in steps) / len(steps)
        self.statistics.watched(plan, steps)
        return steps, {**used, "peak_rss_bytes": after["peak_rss_bytes"]}

    def pairs(
        self, baseline: Plan, candidate: Plan, coins: Sequence[bool], *, apart: bool = False
    ) -> list[Pair]:
        """Run one pair for each coin (True: the baseline first).

        Args:
            baseline: one plan.
            candidate: the other.
            coins: the order of each pair.
            apart: in two children, also where one could alternate.

        Raises:
            TooFewSteps: the script ends before a single pair is done.
        """

        def run() -> list[Pair]:
            shape = self.shape(baseline, candidate, apart=apart)
            if shape.relay:
                self.room(shape.block_count)
                return self._relay(baseline, candidate, coins, shape)
            room = self.room(shape.step_count * len(coins)) // shape.step_count
            return self._alternate(baseline, candidate, coins[:room], shape)

        return self.repeat(run)

    def prepare(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> None:
        """Bring the children of a comparison to life and settle them, outside every clock."""
        self.statistics.know_late(baseline, candidate)

        def sit() -> None:
            if not self.shape(baseline, candidate, apart=apart).relay:
                self.trial(baseline, candidate, slot=self._slot_for(baseline))
                return
            slots = self._slots_for(baseline, candidate)
            if self._slots == [None, None] and not self.single_process:
                self._start(slots)
            for slot, plan in slots.items():
                self.trial(plan, slot=slot)

        self.repeat(sit)

    def shape(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> BlockShape:
        """Return how the pairs of two plans are run."""
        return shape_of(
            baseline, candidate, apart=apart,
            cycle_count=self.statistics.cycle_count(self.cycle_count, baseline, candidate),
            ahead_count=self.cycle_count, period_count=self.statistics.period_count,
            pass_count=self.statistics.short_pass_count, step_s=self.step_s,
            single_process=self.single_process, left_count=self._left_count(),
        )  # fmt: skip

    def _alternate(
        self, baseline: Plan, candidate: Plan, coins: Sequence[bool], shape: BlockShape
    ) -> list[Pair]:
        """Alternate inside one child."""
        slot = self._slot_for(baseline)
        plans = (baseline, candidate)
        count = shape.step_count * len(coins)
        trial = self.with_life(plans, slot, count)
        turns = [
            Turn(index, shape.skip_counts[index], shape.block_count, True)
            for baseline_first in coins
            for index in ((0, 1) if baseline_first else (1, 0))
        ]
        waiting = CpuCompetition()
        answer, _ = trial.turns(turns, timeout_s=self.timeout_s(count))
        pressure = waiting.share_ratio()
        for turn, steps in zip(turns, answer, strict=True):
            self.statistics.ran(plans[turn.plan_index], steps)
        costs = [cost_s(steps) for steps in answer]
        return [
            pair(costs[2 * i : 2 * i + 2], baseline_first, pressure)
            for i, baseline_first in enumerate(coins)
        ]

    def _relay(
        self, baseline: Plan, candidate: Plan, coins: Sequence[bool], shape: BlockShape
    ) -> list[Pair]:
        """Let two children take turns; the one that waits is stopped."""
        plans = self._slots_for(baseline, candidate)
        turns = tuple(zip(plans.items(), shape.skip_counts, strict=True))
        pairs = []
        for baseline_first in coins:
            waiting = CpuCompetition()
            costs = []
            for (slot, plan), skip in turns if baseline_first else turns[::-1]:
                count = skip + shape.block_count
                trial = self.with_life((plan,), slot, count)
                timeout_s = self.timeout_s(count)
                (steps,), _ = trial.turns(
                    [Turn(0, skip, shape.block_count, True)], timeout_s=timeout_s
                )
                self.statistics.ran(plan, steps)
                costs.append(cost_s(steps))
            pairs.append(pair(costs, baseline_first, waiting.share_ratio()))
        return pairs

    def within(
        self,
        plans: tuple[Plan, ...],
        count: int,
        turns: tuple[Turn, Turn],
        *,
        replayed_index: int | None = None,
    ) -> tuple[list[Pair], list[Step]]:
        """Run pairs of two turns inside one child; return the steps of the second, too.

        Args:
            plans: what the turns are about.
            count: pairs.
            turns: one pair.
            replayed_index: the plan whose turns get batches that are there already.
        """

        def run() -> tuple[list[Pair], list[Step]]:
            size = sum(turn.skip_count + turn.step_count for turn in turns)
            coins = [random.random() < 0.5 for _ in range(self.room(size * count) // size)]
            trial = self.with_life(plans[:1], 0, size * count)
            trial.switch(plans, replayed_index=replayed_index)
            order = [turn for first in coins for turn in (turns if first else turns[::-1])]
            answer, _ = trial.turns(order, timeout_s=self.timeout_s(size * count))
            trial.switch(plans[:1])
            walls = [sum(step.wall_s for step in steps) / len(steps) for steps in answer]
            pairs = [pair(walls[2 * i : 2 * i + 2], coin, None) for i, coin in enumerate(coins)]
            return pairs, [step for i, coin in enumerate(coins) for step in answer[2 * i + coin]]

        return self.repeat(run)

    # ---- lives

    def with_life(self, plans: tuple[Plan, ...], slot: int, count: int) -> TrialProcess:
        """Return a child that still has `count` steps to live, as far as is known."""
        trial = self._slots[slot]
        spent = (
            trial is not None
            and self.life_count is not None
            and trial.step_count + count >= self.life_count
            and trial.step_count > 2 * (WARM_COUNT + self.cycle_count)
        )
        return self.trial(*plans, slot=slot, fresh=spent)

    def _left_count(self, spent_count: int = 0) -> int:
        """Return the steps that one life of the script has left once it is warm."""
        if self.life_count is None:
            return sys.maxsize
        return self.life_count - (1 + WARM_COUNT + self.cycle_count + spent_count)

    def room(self, count: int, *, spent_count: int = 0) -> int:
        """Return how many of `count` steps one life of the script has room for."""
        room = self._left_count(spent_count)
        if self.life_count is not None and room < _LEAST_ROOM_COUNT:
            raise too_short(self.life_count, self.life_count - room + _LEAST_ROOM_COUNT)
        return min(count, room)

    def repeat(self, run: Callable[[], _T]) -> _T:
        """Run, and once more from fresh children when the script came to its end meanwhile."""
        try:
            return run()
        except TooFewSteps as ended:
            self.life_count = ended.step_count
            self.clear()
            return run()

    def _slots_for(self, baseline: Plan, candidate: Plan) -> dict[int, Plan]:
        """Return who sits where, the baseline first, with the fewest new launches."""
        if self._fits(baseline, 0) + self._fits(candidate, 1) >= (
            self._fits(baseline, 1) + self._fits(candidate, 0)
        ):
            return {0: baseline, 1: candidate}
        return {1: baseline, 0: candidate}

    def _slot_for(self, plan: Plan) -> int:
        return max((0, 1), key=lambda slot: self._fits(plan, slot))

    def _fits(self, plan: Plan, slot: int) -> int:
        trial = self._slots[slot]
        if trial is None:
            return 0
        if not can_take(trial.plan, plan):
            return -1
        return 2 if self._current.get(slot) == (plan,) else 1

    def timeout_s(self, count: int) -> float:
        """Return how long to wait for so many steps."""
        return self._patience_s + _TIMEOUT_FACTOR * count * self.step_s
