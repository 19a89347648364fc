"""The guard of a real run: its losses are compared with those of the script without levers.

After the first steps they are compared with what the run itself has seen: a loss that is not
finite, or stays far above all others, undoes the levers. A script whose loss does so without
levers loses only their speed. Where steps are so short that reading a loss would cost time, a few
steps in a row are looked at, and then none for a while.

One recorded run does not show how much another seed changes, so the band is wide: the guard is
there for what has clearly gone wrong, and says nothing that a user could not see in the losses.
A loss below the band never counts: resumed training begins there.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from hasten.instrument.training_health import WINDOW_COUNT, TrainingHealthMonitor
from hasten.rank import own_rank
from hasten.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.instrument.watch import Watch
    from hasten.records import LossEnvelope

STEP_COUNT = 50
_SPREADS, _LEAST_RATIO = 6.0, 0.5
_TIGHT_SPREADS, _TIGHT_RATIO = 4.0, 0.25
_MOVES_RATIO = 10.0
_FALL_SPREADS, _FALL_WINDOWS_COUNT = 10.0, 4
_LEAST_MOVE_RATIO = 1e-7
_SLOW_RATIO = 1.5
_LEAST_KNOWN_COUNT, _KNOWN_COUNT = 4, 16
_LATE_COUNT = 64
_SHORT_STEP_S, _RARE_COUNT = 3e-3, 256  # a look costs up to 50 us
_REACHES, _HIGH_WINDOWS_COUNT = 10.0, 4


class Guard:
    """Watch the losses of a run, its first steps more closely.

    Args:
        watch: of this process.
        envelope: what the script did without levers.
        astray: called once with the number of a step and what is wrong there.
        slow: called with the seconds of a step and those without levers, if that is too many.
    """

    def __init__(
        self,
        watch: Watch,
        envelope: LossEnvelope,
        *,
        astray: Callable[[int, str], None],
        slow: Callable[[float, float], None],
    ) -> None:
        self._envelope = envelope
        self._astray = astray
        self._slow = slow
        self._pid = os.getpid()
        self._looked_count = self._good_count = 0
        self._next_count, self._rests = WINDOW_COUNT, False
        self._levels: list[float] = []
        self._start = math.nan
        self._highs = _Highs()
        self._health = TrainingHealthMonitor(watch, by_hand=envelope.by_hand, boundary=self._look)

    def _look(self) -> None:
        """Look at what is new at the end of a step."""
        health = self._health
        count = health.step_count
        # Among ranks, the losses of the first are known.
        if os.getpid() != self._pid or (count == 1 and own_rank().number):
            health.close()
            return
        at_window = count >= self._next_count
        if at_window or count == STEP_COUNT:
            health.read()
        wrong = self._not_finite()
        if wrong is None and at_window and count <= STEP_COUNT:
            wrong = self._leaves_the_envelope(count // WINDOW_COUNT - 1)
        elif wrong is None and at_window:
            new = [value for _, value, _ in health.losses]
            level = median(new) if new else math.nan
            high = self._highs.exceeded(level, count, health.role_count)
            wrong = None if high is None else (count, high)
        if wrong is not None:
            health.close()
            self._astray(*wrong)
            return
        if count == STEP_COUNT:
            self._look_at_the_time()
        if at_window:
            self._end_window(count)

    def _end_window(self, count: int) -> None:
        if count < STEP_COUNT:
            last = count + WINDOW_COUNT > STEP_COUNT
            self._next_count = _LATE_COUNT if last else count + WINDOW_COUNT
            return
        is_rare = self._rests and self._highs.are_known
        period_count = _RARE_COUNT if is_rare else _LATE_COUNT
        self._health.forget(period_count - WINDOW_COUNT if self._rests else 0)
        self._looked_count = 0
        self._next_count = count + period_count

    def _not_finite(self) -> tuple[int, str] | None:
        """Find a loss that is not finite among those that are known and new."""
        for step, value, _ in self._health.losses[self._looked_count :]:
            if not isinstance(value, float):  # on an accelerator, until the window ends
                break
            self._looked_count += 1
            if not math.isfinite(value):
                good = self._good_count
                if step < WINDOW_COUNT * len(self._envelope.losses):
                    return step + 1, f"the loss is {value}, and without levers it was finite"
                known = f"; it was last known good at step {good}" if good else ""
                return step + 1, f"the loss is {value}{known}"
            self._good_count = step + 1
            if step < STEP_COUNT:
                self._highs.start_size = max(self._highs.start_size, abs(value))
        return None

    def _leaves_the_envelope(self, window: int) -> tuple[int, str] | None:
        health, first = self._health, window * WINDOW_COUNT
        losses = [value for step, value, _ in health.losses if step >= first]
        moved = health.moves[window] if window < len(health.moves) else None
        if not self._levels:
            self._start = max((v for step, v, _ in health.losses if step == 0), default=math.nan)
        self._levels.append(median(losses) if losses else math.nan)
        message = judge(self._envelope, self._levels, start=self._start, moved=moved)
        if message is None and health.learns:
            message = stuck(self._envelope, health.moves)
        return None if message is None else (first + WINDOW_COUNT, message)

    def _look_at_the_time(self) -> None:
        """Compare the lower quartile: compiling, evaluation and a short load are not in it."""
        ends = self._health.ends_ns
        times = sorted(late - early for early, late in pairwise(ends))
        step_s = times[len(times) // 4] * 1e-9
        if step_s < _SHORT_STEP_S:
            self._rests = True
        usual_s, rank = self._envelope.step_s, own_rank()
        if usual_s is None or rank.total_count > rank.local_count:
            return  # what the network takes was in no trial
        if step_s > _SLOW_RATIO * usual_s:
            self._slow(step_s, usual_s)


class _Highs:
    """How high the losses of a run have been, and whether they now stay far above that.

    Attributes:
        start_size: the largest loss of the first steps, or of the first window of a later stage.
        are_known: enough windows are known to compare with.
    """

    def __init__(self) -> None:
        self.start_size = 0.0
        self._known: tuple[float, ...] = ()
        self._range, self._role_count = (math.inf, -math.inf), 0
        self._high_count = self._calm_count = 0

    @property
    def are_known(self) -> bool:
        return len(self._known) >= _LEAST_KNOWN_COUNT

    def exceeded(self, level: float, count: int, role_count: int) -> str | None:
        """Say what is wrong if several windows in a row were too high, relative to their range.

        Args:
            level: the median loss of the window that ends.
            count: the steps so far.
            role_count: the optimizers so far: another stage has other losses.
        """
        if math.isnan(level):
            return None
        if self._role_count != role_count:
            self._role_count, self.start_size = role_count, abs(level)
            self._known, self._range = (), (math.inf, -math.inf)
        known, were_known = self._known, self.are_known
        self._known = (*known, level)[-_KNOWN_COUNT:]
        self._range = min((self._range[0], *known)), max((self._range[1], *known))
        lowest, highest = self._range
        reach = max(highest - lowest, abs(highest), self.start_size)
        if not were_known or level <= highest + _REACHES * reach:
            self._high_count, self._calm_count = 0, count
            return None
        self._known = known  # what has gone astray does not become usual
        self._high_count += 1
        if self._high_count < _HIGH_WINDOWS_COUNT:
            return None
        return (
            f"the loss is {level:.4g}, and was {highest:.4g} at most; it was last known good"
            f" at step {self._calm_count}"
        )


def judge(
    envelope: LossEnvelope, levels: Sequence[float], *, start: float, moved: float | None
) -> str | None:
    """Say what is wrong with the latest window, or return None where nothing is.

    Args:
        envelope: the script without levers.
        levels: the median loss of each window.
        start: the loss of the first step, which no update has changed yet: a run that begins
            higher than the recorded one, from other initial weights, has not gone astray.
        moved: how far the weights moved in the last one, relative to their size.
    """
    level = levels[-1]
    if not envelope.losses or math.isnan(level):
        return None
    index, fall = len(levels) - 1, max(envelope.losses) - min(envelope.losses)
    spread = max(envelope.spreads)
    # Beyond the recorded steps, less and less is known.
    beyond = max(1.0, len(levels) / len(envelope.losses))
    margin = beyond * max(_SPREADS * spread, fall, _LEAST_RATIO * abs(envelope.losses[0]))
    if level > max(envelope.highest, start) + margin:
        return f"the loss is {level:.4g}, and without levers it was {envelope.highest:.4g} at most"
    usual = envelope.losses[min(index, len(envelope.losses) - 1)]
    tight = usual + beyond * (_TIGHT_SPREADS * spread + _TIGHT_RATIO * fall)
    if moved is not None and envelope.moves and level > tight:
        times = moved / max(*envelope.moves, _LEAST_MOVE_RATIO)
        if times > _MOVES_RATIO:
            return (
                f"the weights move {times:.3g} times as far as without levers, and the loss is "
                f"{level:.4g} in place of {usual:.4g}"
            )
    return _never_falls(envelope, levels, spread)


def _never_falls(envelope: LossEnvelope, levels: Sequence[float], spread: float) -> str | None:
    """Find a loss that stays where it began, though without levers it fell clearly and early."""
    usual = envelope.losses
    fall, half = usual[0] - usual[-1], usual[len(usual) // 2]
    clear = fall > max(_FALL_SPREADS * spread, 0.1 * abs(usual[0])) and usual[0] - half > 0.4 * fall
    if len(usual) < _FALL_WINDOWS_COUNT or not clear or len(levels) * WINDOW_COUNT + 2 < STEP_COUNT:
        return None
    if min(levels) > usual[0] - 0.05 * fall and levels[0] - levels[-1] < 0.05 * fall:
        return (
            f"the loss stays at {levels[-1]:.4g}, and without levers it had fallen from "
            f"{usual[0]:.4g} to {usual[-1]:.4g}"
        )
    return None


def stuck(envelope: LossEnvelope, moves: Sequence[float]) -> str | None:
    """Say that no weight moves at all, where all of them did without levers."""
    if len(moves) < 2 or not envelope.moves or min(envelope.moves) < _LEAST_MOVE_RATIO:
        return None
    return "the weights do not move" if max(moves) == 0.0 else None


def astray_said(step_count: int, wrong: str, done: Sequence[str], stay: Sequence[str]) -> str:
    """Say what went wrong, what was done about it, and what the user can do."""
    said = [f"hasten: step {step_count}: {wrong}."]
    if done:
        said.append(f"Disabled: {', '.join(done)}.")
    if stay:
        said.append(f"Only a new process is without: {', '.join(stay)}.")
    said.append(
        "If it does not recover, start again without the plan; `hasten tune` makes a new one."
    )
    return " ".join(said) + "\n"


def slow_said(step_s: float, usual_s: float) -> str:
    """Say that the run is slower than the script without levers was."""
    return (
        f"hasten: a step takes {duration(step_s)}, and took {duration(usual_s)} without levers "
        "when this was tuned: something else may load the machine. If it stays like this, run "
        "`hasten tune` again.\n"
    )
