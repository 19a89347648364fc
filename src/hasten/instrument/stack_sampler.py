"""Samples of where the main thread is, by an alarm.

An alarm interrupts the main thread wherever it is; Python handles it between instructions, or
after the C call during which it rang, and all the time until then is that call's. A separate
thread must first be woken and get Python's lock: where every core is busy it comes
milliseconds late, and only when the other releases the lock, which some calls do and others
never do. So a loop in another thread, and a script that sets alarms, are not sampled at all.
Weighting a sample by its delay follows Scalene (Berger, Stern and Altmayer Pizzorno, OSDI 2023,
https://www.usenix.org/conference/osdi23/presentation/berger).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Look = Callable[[FrameType | None, int], None]
    """Takes the innermost frame of the thread, and how many samples it counts for."""

_GOLDEN_RATIO = 0.6180339887498949


def begin(look: Look, thread: int, *, shortest_s: float) -> StackSampler | None:
    """Call `look` now and then with the frame of `thread`; to be called in that thread.

    None where no alarm can wake it.

    Args:
        look: may raise; that sample is then lost.
        thread: its identity, as `threading.get_ident` has it.
        shortest_s: seconds between two samples, at least; twice that at most. After a call
            that could not be interrupted, the next one may follow sooner.
    """
    return StackSampler(look, shortest_s) if _alarm.can_wake(thread) else None


def _gaps(shortest_s: float) -> Iterator[float]:
    """Yield seconds between two samples.

    Evenly spread over an interval without a random generator (Weyl, 1916): a loop with a steady
    period is seen in all its parts.
    """
    turn = 0.0
    while True:
        turn = (turn + _GOLDEN_RATIO) % 1.0
        yield shortest_s * (1.0 + turn)


class _Alarm:
    """The system's alarm, which interrupts the main thread for all listeners in this process.

    Calls that were interrupted go on (SA_RESTART, PEP 475), and a fork inherits no alarm. A script
    that takes the signal for itself meanwhile keeps it, and is no longer sampled.
    """

    def __init__(self) -> None:
        self._listeners: list[StackSampler] = []

    def can_wake(self, thread: int) -> bool:
        """Return whether the thread can be interrupted, and nobody else does so."""
        if not thread == threading.get_ident() == threading.main_thread().ident:
            return False
        idle = signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        return self._is_set() or (signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and idle)

    def add(self, listener: StackSampler) -> None:
        """Ring for one more listener."""
        if not self._is_set():
            self._listeners.clear()  # the script took the signal from them, and gave it back
            signal.signal(signal.SIGALRM, self._ring)
            signal.siginterrupt(signal.SIGALRM, False)
            atexit.register(self.stop)  # an alarm during Python's shutdown kills the process
        self._listeners.append(listener)
        self._wind()

    def remove(self, listener: StackSampler) -> None:
        """Ring for one listener fewer, and give the signal back after the last."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)
        if not self._listeners:
            self.stop()

    def _wind(self) -> None:
        until_s = min(listener.due_s for listener in self._listeners) - time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, until_s))

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        for listener in list(self._listeners):
            if listener.due_s <= now_s:
                listener.rung(frame, now_s)
        if self._listeners and self._is_set():
            self._wind()

    def _is_set(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._ring

    def stop(self) -> None:
        """Give the signal back; nobody is sampled any more."""
        atexit.unregister(self.stop)
        # One that rang a moment ago is handled between the next two calls, and must not set the
        # alarm again: its default action kills the process.
        self._listeners.clear()
        if self._is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


class StackSampler:
    """Looks when the alarm rings and its own sample is due."""

    def __init__(self, look: Look, shortest_s: float) -> None:
        self._look = look
        self._gaps = _gaps(shortest_s)
        self.due_s = time.monotonic() + next(self._gaps)
        _alarm.add(self)

    def rung(self, frame: FrameType | None, now_s: float) -> None:
        """Look once, for all the samples that are due."""
        count = 0
        while self.due_s <= now_s:
            count += 1
            self.due_s += next(self._gaps)
        with contextlib.suppress(Exception):
            self._look(frame, count)
        # The next one stays due when it was: a full gap from here would be blind to what
        # follows a long call. The time in which we looked is charged to nobody.
        now_s = time.monotonic()
        while self.due_s <= now_s:
            self.due_s += next(self._gaps)

    def end(self) -> None:
        """Look no longer."""
        _alarm.remove(self)


class ThreadSampler:
    """Look from a separate thread, as from `begin`; it stands back while the process forks."""

    def __init__(self, look: Look, thread: int, shortest_s: float) -> None:
        self._look = look
        self._about = thread
        self._shortest_s = shortest_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        _living.append(self)
        self.go_on()

    def go_on(self) -> None:
        """Start looking, or resume after a fork."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="hasten-pulse", daemon=True)
        self._thread.start()

    def stand_back(self) -> None:
        """Have no thread running at a fork: Python warns of it, and a lock could stay held."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        gaps = _gaps(self._shortest_s)
        while not self._stop.wait(next(gaps)):
            frame = sys._current_frames().get(self._about)
            with contextlib.suppress(Exception):
                self._look(frame, 1)
            del frame  # it would keep alive what the thread has released

    def end(self) -> None:
        """Look no longer."""
        if self in _living:
            _living.remove(self)
            self.stand_back()


_alarm = _Alarm()
_living: list[ThreadSampler] = []


def _before_fork() -> None:
    for pulse in list(_living):
        pulse.stand_back()


def _after_fork() -> None:
    for pulse in list(_living):
        pulse.go_on()


def _in_fork() -> None:
    """Leave nothing in a fork, which inherits the handler but no alarm."""
    _living.clear()
    _alarm.stop()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork)
