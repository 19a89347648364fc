"""The ledger: every nanosecond of the loop belongs to exactly one phase."""

from __future__ import annotations

import time
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hasten.instrument.device_timeline import DeviceTimeline

PHASES = tuple(Phase)
INDEX = {phase: index for index, phase in enumerate(PHASES)}
_OTHER = INDEX[Phase.OTHER]
_LOSS = INDEX[Phase.LOSS]
_EVALUATION, _CHECKPOINT = INDEX[Phase.EVALUATION], INDEX[Phase.CHECKPOINT]
_IDLE = (Phase.DATA, Phase.OTHER)


class Followed(NamedTuple):
    """What an accelerator that was followed says of the steps; empty if none was.

    Attributes:
        steps: what `Ledger.cut` would have returned each time, by the accelerator's time.
        caught_up_ratio: the share of cuts at which it was less than one phase behind.
        idles_ns: for each cut, how long it had nothing to do while the loop was at its data or
            in its own code.
    """

    steps: Sequence[tuple[int, ...]] = ()
    caught_up_ratio: float | None = None
    idles_ns: Mapping[Phase, Sequence[int]] = MappingProxyType({})


class Ledger:
    """Charge each stretch of time to the phase that was current, exactly once.

    At every transition `now - last` is added to the current phase, in integer nanoseconds, so
    the phases sum to the wall by construction. Some time can be named only in hindsight: a
    batch turns out to be for evaluation when a module is called without gradients, and what
    ran between forward and backward turns out to be the loss. Such time waits in `waiting`
    until an anchor (`commit`) settles it.

    What it does can be replayed later with the times at which an accelerator got there
    (`follow`).
    """

    __slots__ = ("_clock", "_last_ns", "_late", "_settled", "_stack", "_waiting", "current")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._last_ns = clock()
        self._settled = [0] * len(PHASES)
        self._waiting = [0] * len(PHASES)
        self._stack: list[int] = []
        self._late: _LateLedger | None = None
        self.current = INDEX[Phase.BETWEEN]

    def follow(self, timeline: DeviceTimeline) -> None:
        """Leave a mark on the timeline of an accelerator at each transition from now on."""
        self._late = _LateLedger(self.current, list(self._stack), timeline, self._clock)

    def followed(self) -> Followed:
        """Stop following, and wait until the accelerator has passed the last mark."""
        late, self._late = self._late, None
        return Followed() if late is None else late.read()

    def enter(self, phase_index: int) -> None:
        """Begin a stretch of `phase_index`; the phase around it is suspended."""
        self._charge()
        self._stack.append(self.current)
        self.current = phase_index
        self._note(Ledger.enter, phase_index)

    def leave(self) -> None:
        """End the current stretch and go back to the phase around it."""
        self._charge()
        self.current = self._stack.pop() if self._stack else _OTHER
        self._note(Ledger.leave)

    def again(self) -> None:
        """Let a stretch of the same phase begin; work that was given before is told from later."""
        self._charge()
        self._note(Ledger.again)

    def commit(self) -> None:
        """Settle what was waiting, each under its own phase."""
        self._settle()
        self._note(Ledger.commit)

    def commit_as_evaluation(self) -> None:
        """Settle what was waiting as evaluation: it served a call without gradients.

        A checkpoint that was written before it still counts as a checkpoint.
        """
        saved_ns = self._waiting[_CHECKPOINT]
        self._settled[_CHECKPOINT] += saved_ns
        self._settled[_EVALUATION] += sum(self._waiting) - saved_ns
        self._waiting = [0] * len(PHASES)
        self._note(Ledger.commit_as_evaluation)

    def commit_as_loss(self) -> None:
        """Settle what was waiting; unnamed time since the forward pass was the loss."""
        self._settled[_LOSS] += self._waiting[_OTHER]
        self._waiting[_OTHER] = 0
        self._settle()
        self._note(Ledger.commit_as_loss)

    def cut(self) -> tuple[int, ...]:
        """End a step: return nanoseconds per phase (in the order of PHASES) and start over."""
        self._charge()
        self._settle()
        step, self._settled = tuple(self._settled), [0] * len(PHASES)
        self._note(Ledger.cut)
        return step

    def start(self) -> None:
        """Forget everything so far: the next step begins here, outside every phase."""
        self._settled = [0] * len(PHASES)
        self._waiting = [0] * len(PHASES)
        self._last_ns = self._clock()
        self._note(Ledger.start)

    def loop_begins(self) -> None:
        """From now on unnamed time is OTHER: a training loop has been reached."""
        if self.current == INDEX[Phase.BETWEEN]:
            self.start()
            self.current = _OTHER
            self._note(Ledger.loop_begins)

    def _note(self, move: Callable[..., Any], *args: int) -> None:
        if self._late is not None:
            self._late.note(move, *args)

    def _charge(self) -> None:
        now = self._clock()
        self._waiting[self.current] += now - self._last_ns
        self._last_ns = now

    def _settle(self) -> None:
        for index, ns in enumerate(self._waiting):
            if ns:
                self._settled[index] += ns
                self._waiting[index] = 0


_CLOCKLESS = (Ledger.commit, Ledger.commit_as_evaluation, Ledger.commit_as_loss)


class _Mark(NamedTuple):
    """The phase up to a mark, and when the host placed it and the accelerator passed it."""

    phase_index: int
    placed_ns: int
    passed_ns: int


class _LateLedger:
    """What a ledger does, to be replayed when an accelerator's times are known."""

    def __init__(
        self, current: int, stack: list[int], timeline: DeviceTimeline, clock: Callable[[], int]
    ) -> None:
        self._current, self._stack = current, stack
        self._timeline, self._clock = timeline, clock
        self._first, self._began_ns = timeline.mark(), clock()
        self._moves: list[tuple[Callable[..., Any], tuple[int, ...], Any, int]] = []
        self._last_phase = self._first
        self._cut_count = self._caught_up_count = 0

    def note(self, move: Callable[..., Any], *args: int) -> None:
        """Note a move; mark its place on the timeline if it reads the clock."""
        if move in _CLOCKLESS:
            self._moves.append((move, (), None, 0))
            return
        mark = self._timeline.mark()
        self._moves.append((move, args, mark, self._clock()))
        if move is Ledger.enter:
            self._last_phase = mark
        elif move is Ledger.cut:
            self._cut_count += 1
            self._caught_up_count += self._timeline.has_passed(self._last_phase)

    def read(self) -> Followed:
        """Wait until the last mark is passed; return what it says.

        Marks on different streams may be passed out of order: time never runs backwards here.
        No times are returned while a graph is being captured.
        """
        ratio = self._caught_up_count / self._cut_count if self._cut_count else None
        if self._timeline.is_capturing():
            return Followed(caught_up_ratio=ratio)
        now_ns = 0
        ledger = Ledger(lambda: now_ns)
        ledger.current, ledger._stack = self._current, self._stack
        steps: list[tuple[int, ...]] = []
        idles_ns: dict[Phase, list[int]] = {phase: [] for phase in _IDLE}
        marks = [_Mark(self._current, self._began_ns, now_ns)]
        for (move, args, mark, placed_ns), now_ns in zip(
            self._moves, self._passed_ns(), strict=True
        ):
            if mark is not None:
                marks.append(_Mark(ledger.current, placed_ns, now_ns))
            step = move(ledger, *args)
            if move is Ledger.cut:
                steps.append(step)
                for phase, found in idles_ns.items():
                    found.append(_idle_ns(marks, INDEX[phase]))
            if move in (Ledger.cut, Ledger.start):
                marks = marks[-1:]
        return Followed(steps, ratio, idles_ns)

    def _passed_ns(self) -> Iterator[int]:
        """Yield for each move when its mark was passed, in nanoseconds since the first mark."""
        now_ns, before = 0.0, self._first
        self._timeline.mark().synchronize()
        for *_, mark, _ in self._moves:
            if mark is not None and mark is not before:
                mark.synchronize()
                if (passed_ms := before.elapsed_time(mark)) > 0.0:
                    now_ns, before = now_ns + passed_ms * 1e6, mark
            yield round(now_ns)


def _idle_ns(marks: list[_Mark], phase_index: int) -> int:
    """Return how long an accelerator had nothing to do within one phase of one step.

    A mark is passed at once where nothing is to be done before it, so the one that was passed
    soonest sets the accelerator's clock by the host's. What is given to do within the phase
    keeps it busy for at least as long as it then lags behind.
    """
    late_ns = min(mark.passed_ns - mark.placed_ns for mark in marks)
    idle_ns = 0
    for before, mark in pairwise(marks):
        if mark.phase_index == phase_index:
            begin_ns = max(before.placed_ns, before.passed_ns - late_ns)
            lag_ns = mark.passed_ns - late_ns - mark.placed_ns
            idle_ns += max(0, mark.placed_ns - begin_ns - lag_ns)
    return idle_ns
