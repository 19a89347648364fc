"""Where the ranks of a model meet while they compute: numbers of all, combined by the first."""

from __future__ import annotations

from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SPIN_COUNT = 1_000
_SLICE_S = 1.0
_PATIENCE_COUNT = 120


class LostRankError(RuntimeError):
    """A process that computes a share has died, or does not answer."""


class Exchange:
    """A row for each rank in shared memory, one for the result, and semaphores that pass the turn.

    The first rank, that of the script, waits for all others, combines, and lets them go on. It
    writes a result when all are there again, and so have read the one before.

    Args:
        rows: float64 of shape (ranks + 1, numbers), in shared memory.
    """

    def __init__(self, rows: Any) -> None:
        context = get_context("fork")
        self._values, self._result = rows[:-1], rows[-1]
        self._rank = 0
        self._there = [context.Semaphore(0) for _ in range(len(rows) - 2)]
        self._go_on = [context.Semaphore(0) for _ in range(len(rows) - 2)]

    @property
    def is_first(self) -> bool:
        """Whether this process runs the script."""
        return self._rank == 0

    def take(self, rank: int) -> None:
        """Become another rank, in a process that was just forked."""
        self._rank = rank

    def combined(self, own: Any, combine: Callable[[Any], Any]) -> Any:
        """Return what `combine` makes of the numbers of all ranks.

        Args:
            own: numbers of this rank, of shape (n,).
            combine: takes float64 of shape (ranks, n), and returns numbers of shape (m,).

        Returns:
            Float64, the same for all ranks; only the first m numbers are of this result.

        Raises:
            LostRankError: another rank does not come.
        """
        count = len(own)
        if count > len(self._result):
            raise LostRankError("a layer has more channels than the ranks have room for")
        self._values[self._rank, :count] = own
        if self._rank:
            self._there[self._rank - 1].release()
            _wait(self._go_on[self._rank - 1])
        else:
            for semaphore in self._there:
                _wait(semaphore)
            result = combine(self._values[:, :count])
            self._result[: len(result)] = result
            for semaphore in self._go_on:
                semaphore.release()
        return self._result.clone()


def _wait(semaphore: Any) -> None:
    """Wait for another rank, at first without sleeping: it is nearly always close.

    The seconds are counted, not read off a clock: all ranks may be stopped meanwhile.
    """
    for _ in range(_SPIN_COUNT):
        if semaphore.acquire(False):
            return
    for _ in range(_PATIENCE_COUNT):
        if semaphore.acquire(True, _SLICE_S):
            return
    raise LostRankError("a rank waited in vain for another")
