"""How the loop would run if batches cost nothing: it gets a few of them again and again.

For measurement only: not a lever, and never part of a plan. DALI's Loader Evaluator and SPDL's
`CacheDataLoader` answer the same question, but need the script to be edited. Source:
https://facebookresearch.github.io/spdl/latest/generated/spdl.dataloader.CacheDataLoader.html
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

REPLAYED_COUNT = 4
_PATIENT_COUNT = 1000


class Replay:
    """Make the iterators that feed a loop's steps cycle through their first batches.

    An iterator feeds a step if it gave the last batch before the step ended. Others, such as
    those of an evaluation, run as usual, since they must reach their end. Switch it at a step
    boundary.

    Args:
        advancers: callables for an iterator's next batch, of which only the first is called;
            the replay inserts itself before the levers'.

    Attributes:
        replays: whether batches are being replayed.
    """

    def __init__(self, advancers: list[Callable[[Any, Any], Any]]) -> None:
        self.replays = False
        self._kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._turn = self._left_count = 0
        self._last: Any = None
        self._advancers = advancers

    def switch(self, *, replays: bool) -> None:
        """Start or stop replaying."""
        if replays == self.replays:
            return
        self.replays = replays
        self._kept.clear()
        self._last = None
        if replays:
            self._advancers.insert(0, self._advance)
        else:
            self._advancers.remove(self._advance)

    def stepped(self) -> None:
        """Note that a step has ended: the iterator that gave the last batch feeds the loop."""
        self._left_count = _PATIENT_COUNT
        if self._last is not None:
            self._kept.setdefault(self._last, [])
            self._last = None

    def _advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        kept = self._kept.get(iterator)
        # A loop that no longer steps is running its loader to the end.
        if kept is not None and len(kept) == REPLAYED_COUNT and self._left_count:
            self._left_count -= 1
            self._turn += 1
            return _as_new(kept[self._turn % REPLAYED_COUNT])
        later = self._advancers[1:2]
        batch = later[0](original, iterator) if later else original(iterator)
        self._last = iterator
        if kept is not None and len(kept) < REPLAYED_COUNT:
            kept.append(_as_new(batch))
        return batch


def _as_new(batch: Any) -> Any:
    """Return a batch in new containers, since a script may remove parts from them."""
    if type(batch) in (list, tuple):
        return type(batch)(_as_new(part) for part in batch)
    if type(batch) is dict:
        return {name: _as_new(part) for name, part in batch.items()}
    import torch

    return batch if isinstance(batch, torch.Tensor) else copy(batch)
