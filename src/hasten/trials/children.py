"""Which children of a script live: at most two, of which one runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hasten.protocol import Turn
from hasten.records import Plan
from hasten.trials.blocks import TOGETHER_RATIO, can_take, settle_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.trials.script_pace import ScriptPace
    from hasten.trials.trial_process import TrialProcess

Seats: TypeAlias = "Mapping[int, tuple[Plan, ...]]"
"""For each slot, the plans that its child alternates between, beginning with the first."""


class Children:
    """At most two living children of one script, each in a slot: one runs, the other is stopped.

    Attributes:
        launch_count: children so far.
        were_two: both slots have been taken since all were ended last.
        notes: what the isolation could not do in full.
    """

    def __init__(self, launch: Callable[[Plan], TrialProcess], pace: ScriptPace) -> None:
        self.launch_count = 0
        self.were_two = False
        self.notes: tuple[str, ...] = ()
        self._launch = launch
        self._pace = pace
        self._slots: list[TrialProcess | None] = [None, None]
        self._current: dict[int, tuple[Plan, ...]] = {}

    def clear(self) -> None:
        """End every child."""
        self.were_two = False
        for slot in (0, 1):
            self._vacate(slot)

    def trial(self, *plans: Plan, slot: int = 0, fresh: bool = False) -> TrialProcess:
        """Return a living, warm child that runs under the first of `plans`.

        A child can take any plan with the same levers of scope LAUNCH; otherwise, or where it is to
        be `fresh`, it is ended and a new one is started.
        """
        trial = self._slots[slot]
        if trial is not None and (fresh or not can_take(trial.plan, plans[0])):
            self._vacate(slot)
            trial = None
        self._set_aside(1 - slot)
        trial = trial or self._start({slot: plans})[slot]
        trial.resume()
        current = self._current[slot]
        if current != plans:
            trial.switch(plans)
            self._current[slot] = plans
            ahead_count = self._pace.cycle_count
            self._settle(trial, max(settle_count(old, plans[0], ahead_count) for old in current))
        return trial

    def with_life(self, plans: tuple[Plan, ...], slot: int, count: int) -> TrialProcess:
        """Return a child that has at least `count` steps left, as far as is known."""
        trial = self._slots[slot]
        spent = trial is not None and self._pace.is_spent(trial.step_count, count)
        return self.trial(*plans, slot=slot, fresh=spent)

    def under(self, plan: Plan) -> list[TrialProcess]:
        """Return the children that stand under `plan` now."""
        slots = [slot for slot, plans in self._current.items() if plan in plans]
        return [trial for slot in slots if (trial := self._slots[slot]) is not None]

    # ---- who sits where

    def seats(self, baseline: Plan, candidate: Plan, *, relay: bool) -> Seats:
        """Return who sits where, the baseline first, with the fewest new launches.

        Both alternate inside one child unless they `relay`: then each has its own.
        """
        if not relay:
            slot = max((0, 1), key=lambda slot: self._fits(baseline, slot))
            return {slot: (baseline, candidate)}
        if self._fits(baseline, 0) + self._fits(candidate, 1) >= (
            self._fits(baseline, 1) + self._fits(candidate, 0)
        ):
            return {0: (baseline,), 1: (candidate,)}
        return {1: (baseline,), 0: (candidate,)}

    def sit(self, seats: Seats) -> None:
        """Bring children to life and settle them."""
        if self._both_start(seats):
            self._start(seats)
        for slot, plans in seats.items():
            self.trial(*plans, slot=slot)

    def sit_s(self, seats: Seats) -> float:
        """Return about how long `sit` takes with the children that live now."""
        return (TOGETHER_RATIO / 2 if self._both_start(seats) else 1.0) * sum(
            self._pace.launch_s(plans[0])
            if self._fits(plans[0], slot) <= 0
            else settle_count(Plan(), plans[0], self._pace.cycle_count) * self._pace.step_s
            for slot, plans in seats.items()
        )

    def launches(self, seats: Seats) -> int:
        """Return how many children `sit` has to start, with those that live now."""
        return sum(self._fits(plans[0], slot) <= 0 for slot, plans in seats.items())

    def _both_start(self, seats: Seats) -> bool:
        nobody = self._slots == [None, None]
        return len(seats) == 2 and nobody and not self._pace.single_process

    def _fits(self, plan: Plan, slot: int) -> int:
        trial = self._slots[slot]
        if trial is None:
            return 0
        if not can_take(trial.plan, plan):
            return -1
        return 2 if self._current.get(slot) == (plan,) else 1

    # ---- come and go

    def _start(self, seats: Seats) -> Mapping[int, TrialProcess]:
        """Start a child in each slot, all at once: importing takes each of them one core.

        They compute one after the other: each trains only once it is waited for.
        """
        trials: dict[int, TrialProcess] = {}
        try:
            for slot, (plan, *_) in seats.items():
                self._slots[slot] = trials[slot] = self._launch(plan)
                self.launch_count += 1
                self.were_two = self.were_two or None not in self._slots
            for slot, trial in trials.items():
                trial.begin()
                self.notes = tuple(dict.fromkeys((*self.notes, *trial.notes)))
                self._pace.started(
                    seats[slot][0], start_s=trial.start_s, first_step_s=trial.first_step_s
                )
            for slot, trial in trials.items():
                plan = seats[slot][0]
                trial.switch((plan,))
                self._settle(trial, self._pace.warm_count(plan))
                self._current[slot] = (plan,)
        except BaseException:
            for slot in trials:
                self._vacate(slot)
            raise
        return trials

    def _settle(self, trial: TrialProcess, count: int) -> None:
        if count:
            trial.turns([Turn(0, count, 0, True)], timeout_s=self._pace.timeout_s(count))

    def _set_aside(self, slot: int) -> None:
        """Stop a child, or end it where memory holds only one."""
        trial = self._slots[slot]
        if trial is not None and self._pace.single_process:
            self._vacate(slot)
        elif trial is not None:
            trial.park()

    def _vacate(self, slot: int) -> None:
        trial, self._slots[slot] = self._slots[slot], None
        self._current.pop(slot, None)
        if trial is not None:
            trial.close()
