"""Whether items remember that they were fetched, seen from a process that is thrown away."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from upshift.loader import states
from upshift.loader.same import difference

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 10.0


def tells_apart(fetch: Callable[[], Any]) -> bool:
    """Fetch twice in a fork of this process; return whether the second batch is another one.

    A counter in a closure, a clock, the system's own randomness: what no look at the dataset
    shows, and what a second fetch in this process would move on. The fork sees it, and ends
    with it. What cannot be told (no fork, no answer in time) counts as another one.
    """
    try:
        reading, writing = os.pipe()
        pid = os.fork()
    except (OSError, AttributeError):
        return True
    if pid == 0:
        _answer(fetch, writing)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _PATIENCE_S)
        return not ready or os.read(reading, 1) != b"="
    finally:
        os.close(reading)
        _end(pid)


def _answer(fetch: Callable[[], Any], writing: int) -> None:
    """Say whether two fetches are the same, and end this process at once."""
    answer = b"?"
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        before = states.read()
        first = fetch()
        states.restore(before)
        answer = b"!" if difference(first, fetch()) else b"="
    except Exception:  # the real fetch raises it, too
        answer = b"="
    finally:
        os.write(writing, answer)
        os._exit(0)


def _end(pid: int) -> None:
    """Wait for the fork, which has nothing more to do; one that hangs is killed."""
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
