"""Moments at which to look at where a thread stands: by an alarm, or from a thread beside it.

An alarm interrupts the main thread wherever it is; Python answers between two instructions, or
after the call into C during which it rang, and all that passed until then is that call's. A thread
beside the loop has to be woken and to get Python's lock first: where every core is busy it comes
milliseconds late, and it comes when the loop lets go of the lock, which some calls do and others
never. So the alarm is taken wherever it is to be had: in the main thread, on systems that have it,
in a script that sets none itself. Weighing a sample by how late it comes is Scalene's way (Berger,
Stern and Altmayer Pizzorno, OSDI 2023, https://www.usenix.org/conference/osdi23/presentation/berger).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Look = Callable[[FrameType | None, int], None]
    """Takes the innermost frame of the thread, and for how many moments it stands."""

_SHORTEST_S, _JITTER_S = 0.005, 0.005
_GOLDEN_RATIO = 0.6180339887498949
_PATIENCE_S = 0.0005


class Pulse(Protocol):
    """Looks every 5 to 10 ms until it ends."""

    def end(self) -> None:
        """Look no longer, and leave nothing behind."""


def begin(look: Look, thread: int) -> Pulse:
    """Call `look` every 5 to 10 ms with where `thread` stands; called in that thread.

    Args:
        look: may raise; such a moment goes by.
        thread: its identity, as `threading.get_ident` has it.
    """
    return Alarm(look) if _has_alarm(thread) else Beside(look, thread)


def _has_alarm(thread: int) -> bool:
    """Return whether the thread can be interrupted, and nobody else does that."""
    return (
        hasattr(signal, "setitimer")
        and thread == threading.get_ident() == threading.main_thread().ident
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    )


class _Gaps:
    """Seconds from one moment to the next.

    Evenly spread over an interval without a random generator (Weyl, 1916): a loop of a steady
    period is seen at all its moments.
    """

    def __init__(self) -> None:
        self._turn = 0.0

    def __next__(self) -> float:
        self._turn = (self._turn + _GOLDEN_RATIO) % 1.0
        return _SHORTEST_S + _JITTER_S * self._turn


class Alarm:
    """Look when the system's alarm interrupts the main thread.

    Calls that were interrupted go on (SA_RESTART, PEP 475), and a fork inherits no alarm. A script
    that takes the signal for itself meanwhile keeps it, and is looked at no longer.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._gaps = _Gaps()
        self._due_s = 0.0
        self._own = self._ring
        signal.signal(signal.SIGALRM, self._own)
        signal.siginterrupt(signal.SIGALRM, False)
        atexit.register(self.end)  # an alarm that rings while Python goes down ends the process
        self._wind()

    def _wind(self) -> None:
        gap_s = next(self._gaps)
        self._due_s = time.monotonic() + gap_s
        signal.setitimer(signal.ITIMER_REAL, gap_s)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        late_s, count = time.monotonic() - self._due_s, 1
        while (late_s := late_s - next(self._gaps)) >= 0.0:
            count += 1
        with contextlib.suppress(Exception):
            self._look(frame, count)
        if self._is_set():
            self._wind()

    def _is_set(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._own

    def end(self) -> None:
        """Look no longer, and give the signal back."""
        atexit.unregister(self.end)
        if self._is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Beside:
    """Look from a thread beside the loop, and stand back while the process forks.

    It waits for Python's lock up to the switch interval, and would then see where the loop lets
    go of it and not where it was; so the interval is made short meanwhile.
    """

    def __init__(self, look: Look, thread: int) -> None:
        self._look = look
        self._about = thread
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._usual_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._usual_s, _PATIENCE_S))
        self.go_on()
        _living.append(self)

    def go_on(self) -> None:
        """Look, after a fork too."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="upshift-pulse", daemon=True)
        self._thread.start()

    def stand_back(self) -> None:
        """Leave no thread beside a fork: Python warns of it, and a lock could stay held."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        gaps = _Gaps()
        while not self._stop.wait(next(gaps)):
            frame = sys._current_frames().get(self._about)
            with contextlib.suppress(Exception):
                self._look(frame, 1)
            del frame  # it would keep alive what the loop has let go of

    def end(self) -> None:
        """Look no longer."""
        _living.remove(self)
        self.stand_back()
        sys.setswitchinterval(self._usual_s)


_living: list[Beside] = []


def _before_fork() -> None:
    for pulse in _living:
        pulse.stand_back()


def _after_fork() -> None:
    for pulse in _living:
        pulse.go_on()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_living.clear)
