"""Where a training step ends: as a rule, after the last optimizer of a cycle."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Table, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.live import LiveTraining

_LEARNED_AFTER_COUNT = 3
_LONE_AFTER_COUNT = 8  # more than a critic's steps for one of a generator
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


class Roles:
    """Number optimizers by what they are for.

    One that is made anew again and again (the inner optimizer of each task in meta-learning) takes
    the number of one that is gone, if both are of one class and for as many weights.
    """

    def __init__(self) -> None:
        self._numbers = Table()
        self._by_kind: dict[Any, list[int]] = {}

    def of(self, optimizer: Any) -> int:
        """Return the number of an optimizer."""
        number: int | None = self._numbers.get(optimizer)
        if number is None:
            kind = type(optimizer), len(parameters_of(optimizer))
            known, living = self._by_kind.setdefault(kind, []), set(self._numbers.values())
            number = next((one for one in known if one not in living), None)
            if number is None:
                number = sum(map(len, self._by_kind.values()))
                known.append(number)
            self._numbers[optimizer] = number
        return number


class Cycle:
    """Learn the period of several optimizers from the order of their steps.

    One optimizer: each of its steps ends a training step. Several (GANs, actor and critic): the
    cycle ends with the optimizer that steps least often, the last one seen if there is a tie, so
    D-D-D-D-D-G is one training step that ends with G. An optimizer that is silent while the
    others step 24 times each (a warm-up, once in an epoch, frozen from now on) is given up on. One
    that steps 8 times alone from the start ends steps until another joins it.
    """

    def __init__(self) -> None:
        self._habits: dict[int, _Habit] = {}
        self._given_up: set[int] = set()
        self._ender: int | None = None

    def ends_step(self, optimizer: int, alive_count: int) -> bool:
        """Return whether this step of an optimizer (its number in `Roles`) ends a training step.

        While the script has made only one for parameters of its own, there is nothing to learn.
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
        """Leave out an optimizer silent for too long: any while learning, later only the ender."""
        least_count = _GIVE_UP_AFTER_COUNT * max(1, len(self._habits) - 1)
        for key, habit in list(self._habits.items()):
            patience_count = least_count
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
        return max(counts) >= _LONE_AFTER_COUNT

    def _rarest(self) -> int:
        rarest = min(habit.step_count for habit in self._habits.values())
        return [key for key, habit in self._habits.items() if habit.step_count <= rarest + 1][-1]


class StepsInProgress:
    """The steps in progress, the outermost first, and what to call when each ends.

    A closure or a wrapper such as SAM may nest one step inside another.
    """

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[Callable[[], None], ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def begin(self, optimizer: Any, leaves: tuple[Callable[[], None], ...]) -> None:
        """Note that a step of an optimizer has begun inside the others."""
        self._leaves[id(optimizer)] = leaves

    def end(self, optimizer: Any) -> bool:
        """Leave a step and those inside it; return whether it was in progress."""
        if id(optimizer) not in self._leaves:
            return False
        self._unwind(list(self._leaves).index(id(optimizer)))
        return True

    def leave_raised(self, optimizer: Any, around_count: int) -> None:
        """Leave steps that raised earlier, before a step with this many steps around it."""
        if not self.end(optimizer):
            self._unwind(around_count)

    def _unwind(self, around_count: int) -> None:
        while len(self._leaves) > around_count:
            _, leaves = self._leaves.popitem()
            for leave in leaves:
                leave()


def steps_around() -> int:
    """Return how many optimizers are in their step around the one whose pre-hook asks.

    Nothing reports a step that raised, so the frames of torch's wrapper are counted. To keep
    a frame instead would keep alive what it holds.
    """
    around, count = sys._getframe(2), 0  # the frame of the wrapper; 1 is that of the hook
    code, frame = around.f_code, around.f_back
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count


class StepEnds:
    """Decide where a training step ends: after an optimizer, a backward pass, or updates by hand.

    A script without optimizers updates by hand. In one that has made some, many passes say
    little: it accumulates gradients, takes inner steps, or skips those whose gradients are not
    finite.

    Attributes:
        backward_id: tells which backward pass this thread is in, -1 for none.
        by_hand: the script updates its weights without an optimizer.
        made: the optimizers that it has made.
    """

    def __init__(self, live: LiveTraining, steps: StepsInProgress) -> None:
        import torch

        internals: Any = torch._C
        self.backward_id: Callable[[], int] = internals._current_graph_task_id
        self.by_hand = False
        self.made = Table()
        self._live = live
        self._steps = steps
        self._cycle, self._roles = Cycle(), Roles()
        self._in_backward = self._ends_late = self._waits = False
        self._counted = 0, 0, 0

    @property
    def needs_seams(self) -> bool:
        """Whether it takes seams to see where a step ends, not just optimizer hooks."""
        return self.by_hand or self._in_backward

    @property
    def due(self) -> bool:
        """Whether a step ends where the script goes on to the next forward pass or batch."""
        return self.by_hand and self._waits

    @property
    def made_count(self) -> int:
        """Optimizers that the script has made, without those that only hold others' parameters.

        One around another, as in SAM, has its parameters and may never step itself.
        """
        known = self._live.optimizers.known
        counts = len(self.made), len(known)
        if self._counted[:2] != counts:
            held: dict[bool, list[frozenset[int]]] = {True: [], False: []}
            for one in self.made:
                held[one in known].append(frozenset(map(id, parameters_of(one))))
            self._counted = *counts, len(held[True]) + len({*held[False]} - {*held[True]})
        return self._counted[2]

    def constructed(self, optimizer: Any) -> None:
        """Note that the script has made an optimizer, before its first step."""
        self.made[optimizer] = None

    def moves_here(self) -> bool:
        """Return whether the loop runs in this thread: no optimizer has stepped in another."""
        if len(self._live.optimizers.known):
            return False
        if self.backward_id() != -1:  # in a hook, on a thread of autograd's
            self._in_backward = self._ends_late = True
            return False
        return True

    def begins_backward(self) -> None:
        """Note a backward pass."""
        self._waits = True
        stepping = bool(self._steps) or self._in_backward
        if not (stepping or len(self.made) or len(self._live.optimizers.known)):
            self.by_hand = True

    def ends_after_backward(self) -> bool:
        """Return whether a backward pass that is over ends a step."""
        return self._ends_late and not self._steps and self.backward_id() == -1

    def ends_after(self, optimizer: Any) -> bool:
        """Return whether a step of an optimizer that is over ends a training step."""
        if self._steps:
            return False
        if self.backward_id() != -1:  # a hook: what is left of the pass belongs to the step
            self._in_backward = self._ends_late = True
            return False
        return self._cycle.ends_step(self._roles.of(optimizer), self.made_count)

    def ended(self) -> None:
        """Note that a training step has ended."""
        self._ends_late = self._waits = False
