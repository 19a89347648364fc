"""How long a script takes, as far as a runner has seen: its steps, a launch, a pair, its life."""

from __future__ import annotations

import sys
from math import ceil, inf
from typing import TYPE_CHECKING

from hasten.records import Plan, Scope
from hasten.trials.blocks import (
    BlockShape,
    adds_workers,
    both,
    feeds,
    longest_cycle,
    settle_count,
    steps_ahead,
    whole,
)
from hasten.trials.exit_errors import too_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Step
    from hasten.trials.plan_statistics import PlanStatistics, ScriptRhythm, StartCosts

_WARM_COUNT = 3
_TIMEOUT_FACTOR = 20.0
_MEMORY_MARGIN_RATIO = 1.2
_DEVICE_MARGIN_BYTES = 1 << 30  # the driver's own, for each process
_LEAST_ROOM_COUNT = 8
_LEAST_BLOCK_S, _LONE_BLOCK_S = 0.02, 3.0  # long enough to be worth a signal, or a launch
# A process that was stopped is slower for this long: its caches, its threads. In a step longer than
# `_LONG_S` it does not show.
_COLD_S, _LONG_S = 0.005, 0.1


class ScriptPace:
    """What steps, launches and pairs of a script take, and for how many steps it lives.

    Attributes:
        step_s: seconds of a step of the script as it is; 0 where nobody has seen one.
        cycle_count: batches that its loader workers have in flight, at least one.
        life_count: steps after which it ends; None where it has not.
        single_process: memory holds only one child, so that two live one at a time.
    """

    def __init__(
        self, starts: StartCosts, rhythm: ScriptRhythm, statistics: PlanStatistics, *,
        patience_s: float, available_bytes: int | None,
    ) -> None:  # fmt: skip
        self.step_s = 0.0
        self.cycle_count = 1
        self.life_count: int | None = None
        self.single_process = False
        self._starts = starts
        self._rhythm = rhythm
        self._statistics = statistics
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

        A second one would leave `spare_device_bytes` of an accelerator's memory.
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
        """Return how pairs are run: inside one child if all levers that differ can switch there.

        There they alternate step by step, or in blocks of whole cycles if the loop waits for
        workers. Where one life of the script is too short for such a pair, or if they are to be
        `apart`, two children share it.
        """
        differing = baseline.differing(candidate)
        levers = [lever for lever, _ in both(baseline, candidate) if lever.name in differing]
        inside = bool(levers) and not apart and all(lever.scope is Scope.STEP for lever in levers)
        feeding = any(feeds(lever) for lever in levers)
        # A lever that changes how batches are made shows only after those that are on order.
        cycle_count = (
            self.cycle_count if inside and feeding else self.repeat_count(baseline, candidate)
        )
        period_count, pause_count = self._rhythm.period_count, self._rhythm.pause_count
        if pause_count > 1 and (apart or feeding):  # only levers about the loader shorten it
            period_count = pause_count
        cycle = longest_cycle(cycle_count, baseline, candidate)
        if inside:
            settle = max(lever.settle_count for lever in levers)
            skip = max(settle, steps_ahead(cycle_count, baseline, candidate))
            block = whole(cycle, period_count)
            shape = BlockShape(relay=False, skip_counts=(skip, skip), block_count=block)
            if block == 1 or shape.step_count <= self._left_count():
                return shape
        if self._rhythm.short_pass_count and adds_workers(baseline, candidate):
            period_count = self._rhythm.short_pass_count  # they may begin a pass with a pause
        # With only one child at a time, a turn must be worth a launch.
        least_s = _LONE_BLOCK_S if self.single_process else _LEAST_BLOCK_S
        least_count = 1 + int(least_s / self.step_s) if self.step_s else 1
        block = max(1, min(whole(max(least_count, cycle), period_count), self._left_count()))
        skips = [
            max(self._cold_count(plan, apart=apart), steps_ahead(cycle_count, plan))
            for plan in (baseline, candidate)
        ]
        return BlockShape(relay=True, skip_counts=(skips[0], skips[1]), block_count=block)

    def _cold_count(self, plan: Plan, *, apart: bool) -> int:
        """Return for how many steps of a turn in a relay a child is cold."""
        step_s = self._statistics.step_s(plan) or self.step_s
        # A race that only chooses may take its single step cold, a published figure may not. A
        # child that was just launched has trained and was never stopped.
        is_long = self.single_process or step_s > (_LONG_S if apart else _LEAST_BLOCK_S)
        return ceil(_COLD_S / step_s) if step_s and not is_long else 0

    def pair_s(self, baseline: Plan, candidate: Plan, *, apart: bool = False) -> float:
        """Return about how long a pair takes, with the launches that a short life costs."""
        shape = self.shape(baseline, candidate, apart=apart)
        launch_count = shape.step_count / max(1, self._left_count())
        if shape.relay and self.single_process:
            launch_count = 2
        return shape.step_count * self.step_s + launch_count * self.launch_s(candidate)

    def timeout_s(self, count: int) -> float:
        """Return how long to wait for so many steps before looking whether the script computes."""
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
