"""Whether workers that the script never asked for pay off, judged by the pace of its loop."""

from __future__ import annotations

import time
from collections import deque
from math import inf
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOW_COUNT = 16
_SLOWEST_COUNT = 2
_WHOLE_WAIT_RATIO = 0.75
_SOME_WAIT_RATIO = 0.2
_CHEAPER_RATIO = 0.5
_FIRST_PAUSE_COUNT = 64


class WorkerAdvantage:
    """Compare how fast a loop runs with workers and with the main process making the batches.

    Handing a batch over takes time too: once the slow part of all samples is kept in memory, it
    takes longer than making the batch. A loop waits for `n` busy workers no longer than a fetch
    divided by `n`. If it waits for about a whole fetch, or still waits once fetches are much
    cheaper, the main process makes a window of batches as a test, and whichever was faster goes
    on. Once all samples are kept in memory, the main process begins, and workers are used again
    only if batches still take a good part of the loop. Every exact way gives the same batches,
    so only time depends on the choice.

    Attributes:
        is_home: whether the main process should make the batches.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_home = False
        self._clock = clock
        self._began_s: float | None = None
        self._cycles_s: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._waits_s: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._fetches_s: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._cycle_s = self._known_s = 0.0
        self._is_kept = False
        self._pause_count = _FIRST_PAUSE_COUNT
        self._left_count = 0

    def begin_pass(self) -> None:
        """Note that the time before the next batch was not spent in the loop alone."""
        self._began_s = None

    def kept(self) -> None:
        """Note that all samples are kept, so that making a batch is just copying it."""
        if not self._is_kept:
            self._is_kept, self.is_home, self._cycle_s = True, True, inf
            self._forget()

    def ask(self) -> None:
        """Note that the loop asks for a batch."""
        now_s = self._clock()
        if self._began_s is not None:
            self._cycles_s.append(now_s - self._began_s)
        self._began_s = now_s

    def of_workers(self, fetch_s: float) -> bool:
        """Note a batch made by workers; return whether to switch."""
        self._left_count -= 1
        if self._began_s is not None:
            self._waits_s.append(self._clock() - self._began_s)
        self._fetches_s.append(fetch_s)
        if len(self._cycles_s) < _WINDOW_COUNT:
            return False
        cycle_s, waited_s, fetched_s = self._window()
        is_cheaper = fetched_s < _CHEAPER_RATIO * self._known_s
        least_ratio = _SOME_WAIT_RATIO if is_cheaper else _WHOLE_WAIT_RATIO
        self._known_s = fetched_s if is_cheaper else max(fetched_s, self._known_s)
        if (self._left_count > 0 and not is_cheaper) or waited_s < least_ratio * fetched_s:
            return False
        self._cycle_s, self.is_home = cycle_s, True
        return True

    def of_main(self, fetch_s: float) -> bool:
        """Note a batch made by the main process; return whether to switch."""
        self._fetches_s.append(fetch_s)
        if len(self._cycles_s) < _WINDOW_COUNT:
            return False
        cycle_s, _, fetched_s = self._window()
        if self._cycle_s == inf:  # workers that copy kept samples were never timed
            is_slow = fetched_s > _SOME_WAIT_RATIO * cycle_s
        else:
            is_slow = cycle_s > self._cycle_s
        if not is_slow:
            return False
        self.is_home = False
        self._left_count, self._pause_count = self._pause_count, 2 * self._pause_count
        return True

    def _window(self) -> tuple[float, float, float]:
        """Return the seconds of a cycle, a wait and a fetch, and begin a new window."""
        ordinary_s = sorted(self._cycles_s)[:-_SLOWEST_COUNT]  # some were also compared
        waits_s, fetches_s = self._waits_s or [0.0], self._fetches_s or [0.0]
        found = fmean(ordinary_s), fmean(waits_s), median(fetches_s)
        self._forget()
        return found

    def _forget(self) -> None:
        for one in (self._cycles_s, self._waits_s, self._fetches_s):
            one.clear()
