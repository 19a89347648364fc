"""One sample of a workers' batch, made again: in long runs, checks what a proof assumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.sources.source import Stock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.loader.notices import Notices

EVERY = 32
"""Batches from one such sample to the next."""


class SpotCheck:
    """How far the batches of added workers have been found equal to the main process's."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._count = self._equal_count = 0

    def delivered(self) -> int:
        """Count a batch; return its number in the training, from 0."""
        self._count += 1
        return self._count - 1

    def found_equal(self) -> None:
        """Note that the batch counted last was compared and is the same."""
        self._equal_count = self._count

    def tell_broken(self, why: str) -> None:
        """Tell the user that workers that were trusted are no longer trusted."""
        if self._equal_count:  # before that they were only tried
            self._notices.tell(
                f"loader workers stopped at their batch {self._count:,}: {why}; the last that was "
                f"compared and equal is batch {self._equal_count:,}"
            )


def differs(loader: Any, indices: Sequence[Any], batch: Any, number: int) -> bool:
    """Return whether one sample of a batch differs when it is made here; nothing is drawn for it.

    Some batches are checked, each time at a different place. Batches from the script's own
    collate function cannot tell: which part of them comes from which sample is not known.
    """
    from torch.utils.data import default_collate

    if number % EVERY or loader.collate_fn is not default_collate or type(indices) is not list:
        return False
    place = number // EVERY % len(indices)
    before = random_states.read()
    try:
        again = Stock(loader).fetch([indices[place]])
    except Exception:  # the whole batch is made again, and raises it where the script sees it
        return True
    if random_states.read() != before:
        random_states.restore(before)
        return True
    return _other(batch, again, place, len(indices))


def _other(batch: Any, again: Any, place: int, count: int) -> bool:
    import torch

    if isinstance(batch, torch.Tensor) and batch.dim() and len(batch) == count:
        row = batch[place : place + 1].cpu().clone()  # a batch may be pinned, one sample is not
        return bool(difference(row.contiguous(), again.cpu().contiguous()))
    if isinstance(batch, dict):
        return any(_other(part, again[key], place, count) for key, part in batch.items())
    if isinstance(batch, (list, tuple)) and len(batch) == len(again):
        return any(
            _other(part, also, place, count) for part, also in zip(batch, again, strict=True)
        )
    return False
