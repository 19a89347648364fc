"""How long a script takes, as far as a runner has seen: its steps, a launch, a pair, its life."""

from __future__ import annotations

import sys
from math import inf
from typing import TYPE_CHECKING

from hasten.records import Plan
from hasten.trials.blocks import settle_count, shape_of
from hasten.trials.exit_errors import too_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Step
    from hasten.trials.blocks import BlockShape
    from hasten.trials.plan_statistics import ScriptRhythm, StartCosts

_WARM_COUNT = 3
_TIMEOUT_FACTOR = 20.0
_MEMORY_MARGIN_RATIO = 1.2
_DEVICE_MARGIN_BYTES = 1 << 30  # the driver's own, for each process
_LEAST_ROOM_COUNT = 8


class ScriptPace:
    """What steps, launches and pairs of a script take, and for how many steps it lives.

    Attributes:
        step_s: seconds of a step of the script as it is; 0 where nobody has seen one.
        cycle_count: batches that its loader workers have in flight, at least one.
        life_count: steps after which it ends; None where it has not.
        single_process: memory holds only one child, so that two live one at a time.
    """

    def __init__(
        self, starts: StartCosts, rhythm: ScriptRhythm, *, patience_s: float,
        available_bytes: int | None,
    ) -> None:  # fmt: skip
        self.step_s = 0.0
        self.cycle_count = 1
        self.life_count: int | None = None
        self.single_process = False
        self._starts = starts
        self._rhythm = rhythm
        self._patience_s = patience_s
        self._available_bytes = available_bytes

    def started(self, plan: Plan, *, start_s: float, first_step_s: float) -> None:
        """Note a launch, and the first step of a child if no consecutive steps were seen."""
        self._starts.started(plan, start_s)
        self.step_s = self.step_s or first_step_s

    def watched(self, steps: Sequence[Step]) -> None:
        """Note consecutive steps of the script as it is."""
        self.step_s = sum(step.wall_s for step in steps) / len(steps)

    def check_memory(self, resident_bytes: float, spare_device_bytes: float | None = None) -> None:
        """Decide whether two children fit into memory, by the size of the first.

        Args:
            resident_bytes: of the first child.
            spare_device_bytes: what a second one would leave of an accelerator's memory.
        """
        limit_bytes = inf if self._available_bytes is None else self._available_bytes
        is_short = spare_device_bytes is not None and spare_device_bytes < _DEVICE_MARGIN_BYTES
        self.single_process = is_short or 2 * resident_bytes * _MEMORY_MARGIN_RATIO > limit_bytes

    # ---- launches and pairs

    def repeat_count(self, *plans: Plan) -> int:
        """Return the steps after which the times of plans repeat, by default of any so far."""
        return self._rhythm.cycle_count(self.cycle_count, *plans)

    def warm_count(self, plan: Plan) -> int:
        """Return the steps that a new child needs until it is warm under `plan`."""
        return _WARM_COUNT + self.repeat_count(plan) + settle_count(Plan(), plan)

    def launch_s(self, plan: Plan) -> float:
        """Return about how long it takes until a new child is warm under `plan`."""
        return self._starts.start_s + self.warm_count(plan) * self.step_s

    def shape(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> BlockShape:
        """Return how the pairs of two plans are run; `apart` forces two children."""
        return shape_of(
            baseline, candidate, apart=apart,
            cycle_count=self.repeat_count(baseline, candidate),
            ahead_count=self.cycle_count, period_count=self._rhythm.period_count,
            pause_count=self._rhythm.pause_count, pass_count=self._rhythm.short_pass_count,
            step_s=self.step_s, single_process=self.single_process, left_count=self._left_count(),
        )  # fmt: skip

    def pair_s(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> float:
        """Return about how long a pair takes, with the launches that a short life costs."""
        shape = self.shape(baseline, candidate, apart=apart)
        launch_count = shape.step_count / max(1, self._left_count())
        if shape.relay and self.single_process:
            launch_count = 2
        return shape.step_count * self.step_s + launch_count * self.launch_s(candidate)

    def timeout_s(self, count: int) -> float:
        """Return how long to wait for so many steps before looking whether the script computes.

        What lies between steps, such as an evaluation, is in the time of none of them.
        """
        return self._patience_s + _TIMEOUT_FACTOR * count * self.step_s

    # ---- one life of the script

    def room(self, count: int, *, spent_count: int = 0, least_count: int = 0) -> int:
        """Return how many of `count` steps one life of the script has room for.

        Raises:
            TooFewSteps: these are fewer than `least_count`, or too few for anything.
        """
        room, least_count = self._left_count(spent_count), max(_LEAST_ROOM_COUNT, least_count)
        if self.life_count is not None and room < least_count:
            raise too_short(self.life_count, self.life_count - room + least_count)
        return min(count, room)

    def is_spent(self, step_count: int, count: int) -> bool:
        """Return whether a child is known to have at most `count` steps left after `step_count`."""
        return (
            self.life_count is not None
            and step_count + count >= self.life_count
            and step_count > 2 * (_WARM_COUNT + self.repeat_count())
        )

    def _left_count(self, spent_count: int = 0) -> int:
        """Return the steps that one life of the script has left once it is warm."""
        if self.life_count is None:
            return sys.maxsize
        return self.life_count - (1 + _WARM_COUNT + self.repeat_count() + spent_count)
