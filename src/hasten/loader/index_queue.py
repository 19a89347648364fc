"""The batches of one pass that nobody has been asked to fetch yet, by their indices."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.loader.cache_warmup import CacheWarmup
    from hasten.loader.indices import Stream
    from hasten.loader.workers.tasks import Task


class IndexQueue:
    """Hands out the batches of a pass in order; some are put back and handed out again.

    Args:
        stream: the indices of the pass.

    Attributes:
        stream: as given.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._number = 0
        self._again: deque[Any] = deque()
        self._warmup: CacheWarmup | None = None
        self._raw = False

    def draw_from(self, warmup: CacheWarmup | None, *, raw: bool) -> None:
        """Note where the next batches come from.

        Args:
            warmup: what a trial's pass shows; None for the script's own order.
            raw: our own tensors will do.
        """
        self._warmup, self._raw = warmup, raw

    def take(self, *, now: bool) -> tuple[int, Any] | None:
        """Return the number and indices of the next batch, or None if there are none (yet).

        Args:
            now: the script wants this very batch.
        """
        if self._again:
            indices = self._again.popleft()
        elif self._warmup is not None:
            indices = self._warmup.take(self.stream, now=now)
        else:
            indices = self.stream.take(now=now, raw=self._raw)
        if indices is None:
            return None
        self._number += 1
        return self._number - 1, indices

    def put_back(self, tasks: list[Task]) -> None:
        """Queue the batches of these tasks again, ahead of all others."""
        if tasks:
            self._number = tasks[0].number
            self._again.extendleft(task.indices for task in reversed(tasks))

    def regroup(self) -> None:
        """Regroup the batches, because the script has changed their size."""
        self.stream.regroup(list(self._again))
        self._again.clear()
