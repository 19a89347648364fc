"""What the loop would do if batches cost nothing: it gets some of the last ones again and again.

Only to measure: no lever, and no part of a plan. DALI's Loader Evaluator and SPDL's
`CacheDataLoader` ask the same question of a script that was edited for it. Source:
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
    """Let the iterators that feed the steps of a loop give their first batches in turn.

    An iterator feeds a step if it gave the last batch before the step's end. Others, such as
    those of an evaluation, go on as they are: they must come to their end. Switch it at a step
    boundary.

    Args:
        advancers: what is asked for the next batch of an iterator, the first one only; it
            comes before the levers'.

    Attributes:
        replays: the batches are those that were there already.
    """

    def __init__(self, advancers: list[Callable[[Any, Any], Any]]) -> None:
        self.replays = False
        self._kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._turn = self._left_count = 0
        self._last: Any = None
        self._advancers = advancers

    def switch(self, *, replays: bool) -> None:
        """Begin or end to replay."""
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
        """Note that a step has ended: who gave the last batch feeds the loop."""
        self._left_count = _PATIENT_COUNT
        if self._last is not None:
            self._kept.setdefault(self._last, [])
            self._last = None

    def _advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        kept = self._kept.get(iterator)
        # A loop that does not step any more looks for the end of its loader.
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
    """Return a batch in containers of its own: a script may take its parts out of them."""
    if type(batch) in (list, tuple):
        return type(batch)(_as_new(part) for part in batch)
    if type(batch) is dict:
        return {name: _as_new(part) for name, part in batch.items()}
    import torch

    return batch if isinstance(batch, torch.Tensor) else copy(batch)
