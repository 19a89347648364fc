"""When does a training step end? After the last optimizer of one cycle."""

from __future__ import annotations

from dataclasses import dataclass

_LEARNED_AFTER_COUNT = 3
_GIVE_UP_AFTER_COUNT = 24
_SILENT_PERIODS_COUNT = 4


@dataclass(slots=True)
class _Habit:
    """How often an optimizer steps.

    Attributes:
        step_count: its steps.
        quiet_count: steps of others since its last one.
        period_count: the most steps of others between two of its own.
    """

    step_count: int = 0
    quiet_count: int = 0
    period_count: int = 0


class Cycle:
    """Learn the period of several optimizers from the order of their steps.

    One optimizer: each of its steps ends a training step. Several (GANs, actor and critic): the
    cycle ends with the optimizer that steps most rarely, the one seen last among equals, so
    D-D-D-D-D-G is one training step that ends with G. One that is silent while each of the
    others steps 24 times (a warm-up, once in an epoch, frozen from now on) is given up on.
    """

    def __init__(self) -> None:
        self._habits: dict[int, _Habit] = {}
        self._given_up: set[int] = set()
        self._ender: int | None = None

    def ends_step(self, optimizer: int, alive_count: int) -> bool:
        """Return whether this step of `optimizer` (its id) ends a training step.

        Args:
            optimizer: identity of the optimizer that has just stepped.
            alive_count: optimizers that the script has constructed; while there is only one
                there is nothing to learn.
        """
        known = optimizer in self._habits or optimizer in self._given_up
        if self._ender is not None and not known:
            self._learn_anew()
        self._note(optimizer)
        if self._ender is None and alive_count <= 1:
            return True
        self._give_up()
        if not self._habits:  # only those that were given up on are left
            self._learn_anew()
            self._note(optimizer)
        if self._ender is None and self._learned():
            self._ender = self._rarest()
        return optimizer == self._ender

    def _learn_anew(self) -> None:
        self._habits, self._given_up, self._ender = {}, set(), None

    def _note(self, optimizer: int) -> None:
        for key, other in self._habits.items():
            other.quiet_count += key != optimizer
        if optimizer not in self._given_up:
            habit = self._habits.setdefault(optimizer, _Habit())
            habit.step_count += 1
            habit.period_count = max(habit.period_count, habit.quiet_count)
            habit.quiet_count = 0

    def _give_up(self) -> None:
        """Leave out who is silent for too long: of all while learning, later of the ender."""
        others_count = max(1, len(self._habits) - 1)
        for key, habit in list(self._habits.items()):
            patience_count = _GIVE_UP_AFTER_COUNT * others_count
            if key == self._ender:
                patience_count = max(patience_count, _SILENT_PERIODS_COUNT * habit.period_count)
            if self._ender in (None, key) and habit.quiet_count >= patience_count:
                del self._habits[key]
                self._given_up.add(key)
                self._ender = None

    def _learned(self) -> bool:
        counts = [habit.step_count for habit in self._habits.values()]
        if len(counts) > 1:
            return min(counts) >= _LEARNED_AFTER_COUNT
        return max(counts) >= _GIVE_UP_AFTER_COUNT

    def _rarest(self) -> int:
        rarest = min(habit.step_count for habit in self._habits.values())
        return [key for key, habit in self._habits.items() if habit.step_count <= rarest + 1][-1]
