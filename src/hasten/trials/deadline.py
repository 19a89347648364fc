"""The end of the time that a piece of work may take, handed down to everything that waits."""

from __future__ import annotations

import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

from hasten.errors import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """A moment after which nobody waits any more.

    Args:
        end_s: by the clock; infinite for never.
        clock: seconds.

    >>> Deadline().cut(60.0)
    60.0
    """

    def __init__(self, end_s: float = inf, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.end_s = end_s
        self._clock = clock

    @property
    def left_s(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(0.0, self.end_s - self._clock())

    def cut(self, timeout_s: float) -> float:
        """Return how long to wait, at most until the deadline.

        Raises:
            OutOfTime: it has passed.
        """
        self.check()
        return min(timeout_s, self.left_s)

    @contextmanager
    def sooner(self, left_s: float) -> Iterator[None]:
        """Let it be so many seconds from now for a while, if that is earlier."""
        own_s = self.end_s
        self.end_s = min(own_s, self._clock() + left_s)
        try:
            yield
        finally:
            self.end_s = own_s

    def check(self) -> None:
        """Raise once the deadline has passed.

        Raises:
            OutOfTime: it has.
        """
        if not self.left_s:
            raise OutOfTime


NEVER = Deadline()
