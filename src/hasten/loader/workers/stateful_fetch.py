"""Whether items remember that they were fetched, observed in a throwaway process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.quiet_forks import quiet_forks

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 10.0


def tells_apart(fetch: Callable[[], Any]) -> bool:
    """Fetch twice in a fork of this process; return whether the second batch differs.

    It finds a counter in a closure, a clock, the system's randomness: what no look at the dataset
    shows, and what a second fetch in this process would advance. Whatever a fetch raises, the real
    one raises, too.
    """

    def differ() -> bool:
        before = random_states.read()
        try:
            first = fetch()
        except Exception:
            return False
        random_states.restore(before)
        return bool(difference(first, fetch()))

    return doubtful(differ)


def doubtful(question: Callable[[], bool]) -> bool:
    """Ask in a fork of this process, which then ends, so that it changes nothing here.

    No fork, no answer in time, or an exception counts as yes.
    """
    try:
        reading, writing = os.pipe()
        with quiet_forks():
            pid = os.fork()
    except OSError:
        return True
    if pid == 0:
        _answer(question, writing)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _PATIENCE_S)
        return not ready or os.read(reading, 1) != b"="
    finally:
        os.close(reading)
        _end(pid)


def _answer(question: Callable[[], bool], writing: int) -> None:
    """Write the answer, and end this process at once."""
    answer = b"?"
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer = b"!" if question() else b"="
    finally:
        os.write(writing, answer)
        os._exit(0)


def _end(pid: int) -> None:
    """End the fork, which has nothing more to do, or hangs."""
    # The script's handler of SIGCHLD may be faster.
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        if not os.waitpid(pid, os.WNOHANG)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
