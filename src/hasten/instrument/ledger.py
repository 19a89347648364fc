"""The ledger: every nanosecond of the loop belongs to exactly one phase."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

PHASES = tuple(Phase)
INDEX = {phase: index for index, phase in enumerate(PHASES)}
_OTHER = INDEX[Phase.OTHER]
_LOSS = INDEX[Phase.LOSS]
_EVALUATION, _CHECKPOINT = INDEX[Phase.EVALUATION], INDEX[Phase.CHECKPOINT]


class Ledger:
    """Charge each stretch of time to the phase that was current, exactly once.

    At every transition `now - last` is added to the current phase, in integer nanoseconds, so
    the phases sum to the wall by construction. Some time can be named only in hindsight: a
    batch turns out to be for evaluation when a module is called without gradients, and what
    ran between forward and backward turns out to be the loss. Such time waits in `waiting`
    until an anchor (`commit`) settles it.
    """

    __slots__ = ("_clock", "_last_ns", "_settled", "_stack", "_waiting", "current")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._last_ns = clock()
        self._settled = [0] * len(PHASES)
        self._waiting = [0] * len(PHASES)
        self._stack: list[int] = []
        self.current = INDEX[Phase.BETWEEN]

    def enter(self, phase_index: int) -> None:
        """Begin a stretch of `phase_index`; the phase around it is suspended."""
        now = self._clock()
        self._waiting[self.current] += now - self._last_ns
        self._last_ns = now
        self._stack.append(self.current)
        self.current = phase_index

    def leave(self) -> None:
        """End the current stretch and go back to the phase around it."""
        now = self._clock()
        self._waiting[self.current] += now - self._last_ns
        self._last_ns = now
        self.current = self._stack.pop() if self._stack else _OTHER

    def commit(self) -> None:
        """Settle what was waiting, each under its own phase."""
        for index, ns in enumerate(self._waiting):
            if ns:
                self._settled[index] += ns
                self._waiting[index] = 0

    def commit_as_evaluation(self) -> None:
        """Settle what was waiting as evaluation: it served a call without gradients.

        A checkpoint that was written before it is one all the same.
        """
        saved_ns = self._waiting[_CHECKPOINT]
        self._settled[_CHECKPOINT] += saved_ns
        self._settled[_EVALUATION] += sum(self._waiting) - saved_ns
        self._waiting = [0] * len(PHASES)

    def commit_as_loss(self) -> None:
        """Settle what was waiting; unnamed time since the forward pass was the loss."""
        self._settled[_LOSS] += self._waiting[_OTHER]
        self._waiting[_OTHER] = 0
        self.commit()

    def cut(self) -> tuple[int, ...]:
        """End a step: return nanoseconds per phase (in the order of PHASES) and start anew."""
        now = self._clock()
        self._waiting[self.current] += now - self._last_ns
        self._last_ns = now
        self.commit()
        step, self._settled = tuple(self._settled), [0] * len(PHASES)
        return step

    def start(self) -> None:
        """Forget everything up to now: the next step begins here, outside every phase."""
        self._settled = [0] * len(PHASES)
        self._waiting = [0] * len(PHASES)
        self._last_ns = self._clock()

    def loop_begins(self) -> None:
        """From now on unnamed time is OTHER: a training loop has been reached."""
        if self.current == INDEX[Phase.BETWEEN]:
            self.cut()
            self.current = _OTHER
