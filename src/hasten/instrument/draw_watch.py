"""Who draws random numbers: the items of the loader, the rest of the loop, or both in turn."""

from __future__ import annotations

import pickle
import random
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCHED_COUNT = 8


class DrawWatch:
    """Compare the global generators before and after the first batches of a loader are fetched.

    The first batch of a pass does not count: the loader and its sampler draw for it.

    Attributes:
        items: the items of the loader draw in this process; None while that is unknown.
        loop: the rest of the loop draws; None while that is unknown.
    """

    def __init__(self) -> None:
        self.items: bool | None = None
        self.loop: bool | None = None
        self._left_count = _WATCHED_COUNT
        self._before: Any = None
        self._after: Any = None
        self._pass: Callable[[], Any] = lambda: None

    def loading(self) -> None:
        """Look before a batch is fetched."""
        if self._left_count > 0:
            self._before = _states()

    def loaded(self, iterator: Any) -> None:
        """Look after a batch was fetched."""
        if self._left_count <= 0:
            return
        last, self._after = self._after, _states()
        if self._pass() is iterator:
            self.loop = bool(self.loop or self._before != last)
            self.items = bool(self.items or self._before != self._after)
        self._pass = weakref.ref(iterator)
        self._left_count -= 1


def _states() -> Any:
    import torch

    numpy = sys.modules.get("numpy.random")
    own = None if numpy is None else pickle.dumps(numpy.get_state(legacy=False))
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), own
