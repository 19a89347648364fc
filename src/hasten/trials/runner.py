"""Steps and pairs of steps of one script, under any plans."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hasten.errors import NoRoom, TooFewSteps
from hasten.protocol import CostsRead, ReadCosts, ReadTraits, TraitsRead, Turn
from hasten.trials.blocks import CpuCompetition, cost_s, pair, pairs_of, reordered
from hasten.trials.children import Children
from hasten.trials.plan_statistics import PlanStatistics, ScriptRhythm, StartCosts
from hasten.trials.script_pace import ScriptPace
from hasten.trials.trial_process import TrialProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.records import Pair, Plan, Step, Workload
    from hasten.trials.blocks import BlockShape
    from hasten.trials.children import Seats
    from hasten.trials.process import Isolation

_T = TypeVar("_T")
_PARTS_COUNT, _WATCH_LEAST_COUNT, _WATCH_RATIO = 4, 8, 2.0


class TrialRunner:
    """Run blocks of steps of two plans next to one another.

    Plans that differ only in levers that switch at a step boundary alternate inside one child.
    Others run in two children that take turns; the one that waits is stopped, with its loader
    workers. A script that comes to its end is started again.

    Attributes:
        children: those that live.
        pace: what a step, a launch and a pair take.
        starts: what plans cost once.
        rhythm: after how many steps the times of the script repeat.
        statistics: where the steps under each plan go.

    Args:
        available_bytes: free memory before the first child, None if unknown; two children that
            do not fit live one at a time.
        make_trial: makes a child; tests pass one that computes its answers.
    """

    def __init__(
        self, workload: Workload, *, isolation: Isolation, patience_s: float,
        available_bytes: int | None = None,
        make_trial: Callable[..., TrialProcess] = TrialProcess,
    ) -> None:  # fmt: skip
        self.starts, self.rhythm = StartCosts(), ScriptRhythm()
        self.statistics = PlanStatistics()
        self.pace = ScriptPace(
            self.starts,
            self.rhythm,
            self.statistics,
            patience_s=patience_s,
            available_bytes=available_bytes,
        )
        launch = partial(make_trial, workload, isolation=isolation, patience_s=patience_s)
        self.children = Children(launch, self.pace)
        self._patience_s = patience_s

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *ended: object) -> None:
        self.children.clear()

    # ---- what children say

    def facts(self, plan: Plan) -> TraitsRead:
        """Return what a child under `plan` says about itself."""
        found = self.children.trial(plan).ask(ReadTraits(), TraitsRead, self._patience_s)
        self.pace.cycle_count = found.traits.cycle_count
        self.rhythm.pass_count = found.traits.pass_step_count
        return found

    def note_costs(self, plan: Plan) -> None:
        """Ask the children that stand under `plan` what they have paid once."""
        for trial in self.children.under(plan):
            trial.resume()
            costs = trial.ask(ReadCosts(), CostsRead, self._patience_s)
            self.starts.paid_once(plan, trial, costs)

    # ---- before a comparison

    def prepare(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> None:
        """Bring the children of a comparison to life and settle them, outside every clock."""
        self.rhythm.look(self.statistics, baseline, candidate)
        self.repeat(lambda: self.children.sit(self._seats(baseline, candidate, apart=apart)))

    def prepare_s(self, baseline: Plan, candidate: Plan) -> float:
        """Return about how long `prepare` takes with the children that live now."""
        return self.children.sit_s(self._seats(baseline, candidate))

    def launches(self, baseline: Plan, candidate: Plan) -> int:
        """Return how many children `prepare` has to start, with those that live now."""
        return self.children.launches(self._seats(baseline, candidate))

    def _seats(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> Seats:
        relay = self.pace.shape(baseline, candidate, apart=apart).relay
        return self.children.seats(baseline, candidate, relay=relay)

    # ---- steps and pairs

    def steps(self, plan: Plan, count: int) -> tuple[list[Step], dict[str, float]]:
        """Run `count` steps under `plan`; return them, and what `TurnsRun` says of them."""

        def run() -> tuple[list[Step], dict[str, float]]:
            room = self.pace.room(count, spent_count=1)
            trial = self.children.with_life((plan,), 0, room + 1)
            _, before = trial.turns([Turn(0, 0, 1, True)], timeout_s=self._patience_s)
            self.statistics.faulted(plan, trial, before["faults_count"], step_count=1)
            steps, after = _watched(trial, room, self.pace)
            if len(steps) < room and self.pace.life_count is not None:
                self.children.clear()
            self.statistics.faulted(plan, trial, after["faults_count"], step_count=len(steps))
            spent = {name: after[name] - before[name] for name in ("faults_count", "cpu_s")}
            if self.rhythm.watched(plan, steps):
                self.pace.watched(steps)
            self.statistics.watched(plan, steps, self.rhythm.pass_count)
            return steps, {**after, **spent}

        return self.repeat(run)

    def pairs(
        self, baseline: Plan, candidate: Plan, coins: Sequence[bool], *, apart: bool = False
    ) -> list[Pair]:
        """Run one pair for each coin (True: the baseline first).

        If they are to be `apart`, two children are used even where one could alternate.

        Raises:
            TooFewSteps: the script ends before a single pair is done.
        """

        def run() -> list[Pair]:
            shape = self.pace.shape(baseline, candidate, apart=apart)
            seats = self.children.seats(baseline, candidate, relay=shape.relay)
            if shape.relay:
                self.pace.room(shape.block_count)
                return self._relay(seats, coins, shape)
            size = shape.step_count
            room = self.pace.room(size * len(coins), least_count=size) // size
            return self._alternate(seats, coins[:room], shape)

        return self.repeat(run)

    def _alternate(self, seats: Seats, coins: Sequence[bool], shape: BlockShape) -> list[Pair]:
        """Alternate inside one child."""
        ((slot, plans),) = seats.items()
        count = shape.step_count * len(coins)
        trial = self.children.with_life(plans, slot, count)
        skips = enumerate(shape.skip_counts)
        turns = reordered([Turn(at, skip, shape.block_count, True) for at, skip in skips], coins)
        waiting = CpuCompetition()
        answer, _ = trial.turns(turns, timeout_s=self.pace.timeout_s(count))
        pressure = waiting.share_ratio()
        for turn, steps in zip(turns, answer, strict=True):
            self.statistics.ran(plans[turn.plan_index], steps)
        return pairs_of([cost_s(steps) for steps in answer], coins, pressure)

    def _relay(self, seats: Seats, coins: Sequence[bool], shape: BlockShape) -> list[Pair]:
        """Let two children take turns; the one that waits is stopped."""
        turns = list(zip(seats.items(), shape.skip_counts, strict=True))
        pairs = []
        for coin in coins:
            waiting = CpuCompetition()
            costs = []
            for (slot, plans), skip in reordered(turns, [coin]):
                count = skip + shape.block_count
                trial = self.children.with_life(plans, slot, count)
                turn = Turn(0, skip, shape.block_count, True)
                (steps,), usage = trial.turns([turn], timeout_s=self.pace.timeout_s(count))
                self.statistics.ran(plans[0], steps)
                self.statistics.faulted(plans[0], trial, usage["faults_count"], step_count=count)
                costs.append(cost_s(steps))
            pairs.append(pair(costs, coin, waiting.share_ratio()))
        return pairs

    def within(self, plans: tuple[Plan, ...], count: int, turns: tuple[Turn, Turn]) -> list[Pair]:
        """Run `count` pairs of two turns inside one child.

        Where the script has no room for a single pair, there are none.
        """

        def run() -> list[Pair]:
            size = sum(turn.skip_count + turn.step_count for turn in turns)
            coins = [random.random() < 0.5 for _ in range(self.pace.room(size * count) // size)]
            if not coins:
                return []
            trial = self.children.with_life(plans[:1], 0, size * count)
            trial.switch(plans)
            timeout_s = self.pace.timeout_s(size * count)
            answer, _ = trial.turns(reordered(turns, coins), timeout_s=timeout_s)
            trial.switch(plans[:1])
            walls = [sum(step.wall_s for step in steps) / len(steps) for steps in answer]
            return pairs_of(walls, coins, None)

        return self.repeat(run)

    def repeat(self, run: Callable[[], _T]) -> _T:
        """Run, and run again with fresh children if the script came to its end meanwhile.

        Where an accelerator has no room for two children, one lives at a time from then on, unless
        one alone does not fit either.
        """
        try:
            return run()
        except TooFewSteps as ended:
            self.pace.life_count = ended.step_count
            self.children.clear()
            return run()
        except NoRoom:
            if not self.children.were_two:
                raise
        self.children.clear()
        self.pace.single_process = True
        try:
            return run()
        except NoRoom:
            self.pace.single_process = False
            raise


def _parts(count: int) -> list[int]:
    """Return a number of steps in up to four parts.

    >>> _parts(10), _parts(2)
    ([3, 3, 2, 2], [1, 1])
    """
    whole, rest = divmod(count, _PARTS_COUNT)
    return [whole + (index < rest) for index in range(min(count, _PARTS_COUNT))]


def _watched(
    trial: TrialProcess, count: int, pace: ScriptPace
) -> tuple[list[Step], Mapping[str, float]]:
    """Run steps in parts: those before the one in which the script ends are kept.

    What lies between steps, such as an evaluation, takes time, too: where the steps have taken
    twice as long as their own times let expect, there are fewer of them.
    """
    end_s = time.monotonic() + _WATCH_RATIO * count * pace.step_s
    parts = [count] if pace.life_count is not None else _parts(count)
    watched: list[Step] = []
    after: Mapping[str, float] = {}
    for part in parts:
        if len(watched) >= _WATCH_LEAST_COUNT and time.monotonic() > end_s:
            break
        try:
            turns = [Turn(0, 0, part, True)]
            (steps,), after = trial.turns(turns, timeout_s=pace.timeout_s(part))
        except TooFewSteps as ended:
            if len(watched) < 2:
                raise
            pace.life_count = ended.step_count
            break
        watched += steps
    return watched, after
