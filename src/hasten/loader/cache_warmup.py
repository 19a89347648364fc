"""Show in a trial, as it will be then, what pays off from the second pass on."""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from hasten.loader.workers.stateful_fetch import doubtful

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.indices import Stream

_MOST_S = 4.0
_MOST_BATCHES = 64
_MADE = struct.Struct("<qddd")


class CacheWarmups:
    """Warms the sources that keep samples, once for each dataset of a trial."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._done: list[CacheWarmup] = []

    def of(
        self, source: Any, loader: Any, stream: Stream, *, process_count: int
    ) -> CacheWarmup | None:
        """Return the rehearsal of the passes over `loader`, held now if there was none yet.

        A source that keeps samples has `warm(indices)`, which keeps some ahead of use; its
        `kept_ratio` is the share of the dataset that will be kept, and `saved_ratio` that of the
        time which this saves. Other sources have no rehearsal. `process_count` workers make the
        batches; 0 is the main process.
        """
        if not hasattr(source, "warm"):
            return None
        for known in self._done:
            if known.suits(source, loader):
                known.process_count = process_count
                return known
        found = CacheWarmup(source, loader, process_count=process_count, clock=self._clock)
        found.hold(source, stream)
        self._done.append(found)
        return found

    def cost_s(self) -> tuple[float, float]:
        """Return how much longer first passes take than later ones, and the first rehearsal's cost.

        The second is what a trial spends instead, before its first step.
        """
        if not self._done:
            return 0.0, 0.0
        return sum(known.first_pass_s for known in self._done), self._done[0].held_s


class CacheWarmup:
    """The first batches of a pass, prepared beforehand and then repeated.

    A trial sees seconds of a training that takes hours: with a cache it would see only the pass
    that fills it. So the samples of some batches are kept before any step is timed, and the
    rest of the trial draws its batches from them; if the budget holds only part of the dataset,
    that part of each batch. The order of samples does not matter in a trial; a real run and
    a proof have no rehearsal.

    Attributes:
        process_count: workers that make the batches; 0 for the main process.
        held_s: seconds that it took.
    """

    def __init__(
        self, source: Any, loader: Any, *, process_count: int, clock: Callable[[], float]
    ) -> None:
        self.process_count = process_count
        self.held_s = 0.0
        self._token = source.token
        self._source = weakref.ref(source)
        self._dataset = weakref.ref(loader.dataset)
        self._size = int(loader.batch_size or 1)
        self._clock = clock
        self._new_count = _new_count(loader, self._size)
        self._window: list[Any] = []
        self._withheld: deque[Any] = deque()
        self._kept_ratio = self._saved_ratio = 1.0
        self._place = 0
        self._owed = 0.0
        self._began_s: float | None = None

    def suits(self, source: Any, loader: Any) -> bool:
        """Return whether what was warmed is what this pass would find."""
        same = self._dataset() is loader.dataset and self._size == int(loader.batch_size or 1)
        return same and bool(self._token == source.token)

    def hold(self, source: Any, stream: Stream) -> None:
        """Keep the samples of the first batches, in a process like those that will make them.

        The stream is left as it was, unless only part of the dataset will be kept: then these
        batches come last. If it turns out that nothing will be kept, there is no window.
        """
        batches: list[Any] = []
        while len(batches) < _MOST_BATCHES and (indices := stream.take(now=True)) is not None:
            batches.append(indices)
            if type(indices) is not list:
                break
        lists = [indices for indices in batches if type(indices) is list]
        make = _made_elsewhere if self.process_count else _made
        count, self.held_s, self._kept_ratio, self._saved_ratio = make(source, lists)
        self._window = lists[:count] if self._kept_ratio else []
        if self._window and self._kept_ratio < 1.0:
            self._withheld.extend(self._window)
            batches = batches[count:]
        stream.put_back(batches)

    def take(self, stream: Stream, *, now: bool) -> Any:
        """Return the indices of the next batch in place of the stream's own."""
        own = stream.take(now=now)
        if own is None and stream.ended and self._withheld:
            own = self._withheld.popleft()
        if own is None or not self._window or self._is_off:
            return own
        if self._began_s is None:
            self._began_s = self._clock()
        known = self._window[self._place % len(self._window)][: len(own)]
        self._place += 1
        if self._kept_ratio >= 1.0:
            return known
        self._owed += self._kept_ratio * len(own)
        count = int(self._owed)
        self._owed -= count
        return [*known[:count], *own[len(known[:count]) :]]

    @property
    def is_whole(self) -> bool:
        """Whether everything that is repeated is kept."""
        return bool(self._window) and self._kept_ratio >= 1.0 and not self._is_off

    @property
    def indices(self) -> list[Any]:
        """The samples that are repeated."""
        return [index for indices in self._window for index in indices]

    @property
    def _is_off(self) -> bool:
        source = self._source()
        return source is not None and bool(source.is_off)

    @property
    def first_pass_s(self) -> float:
        """Seconds by which the pass that fills the cache takes longer than one that reads it.

        Workers fill it while the loop computes, on the cores that both share: only the time beyond
        the loop's own counts.
        """
        if not self._window or self._is_off:
            return 0.0
        each_s = self._saved_ratio * self.held_s / len(self._window)
        if self.process_count:
            shared_s = (each_s + self._loop_s) / len(os.sched_getaffinity(0))
            each_s = max(0.0, each_s / self.process_count - self._loop_s, shared_s - self._loop_s)
        return self._kept_ratio * each_s * self._new_count / self._size

    @property
    def _loop_s(self) -> float:
        """Seconds from one batch to the next, as the trial has seen them."""
        if self._began_s is None or self._place < 2:
            return 0.0
        return (self._clock() - self._began_s) / self._place


def _new_count(loader: Any, size: int) -> int:
    """Return how many samples a first pass meets; 0 where the dataset has no length."""
    try:
        count = len(loader.dataset)
    except Exception:  # the script's own code
        return 0
    try:
        return min(count, len(loader) * size)
    except Exception:
        return count


def _made(source: Any, batches: Sequence[Any]) -> tuple[int, float, float, float]:
    """Keep samples for some seconds; return the batches, the seconds and two shares.

    One is that of the samples that is kept, the other that of the seconds that is saved later.
    """
    began_s, count = time.monotonic(), 0
    for indices in batches:
        if time.monotonic() >= began_s + _MOST_S or not source.warm(indices):
            break
        count += 1
    return count, time.monotonic() - began_s, float(source.kept_ratio), float(source.saved_ratio)


def _made_elsewhere(source: Any, batches: Sequence[Any]) -> tuple[int, float, float, float]:
    """Do the same in a fork, as workers would: each has one thread and its own open files."""
    told = mmap.mmap(-1, _MADE.size)

    def make() -> bool:
        import torch

        torch.set_num_threads(1)
        _MADE.pack_into(told, 0, *_made(source, batches))
        return False

    if doubtful(make):
        return 0, 0.0, 0.0, 0.0
    count, spent_s, kept_ratio, saved_ratio = _MADE.unpack_from(told)
    return int(count), float(spent_s), float(kept_ratio), float(saved_ratio)
