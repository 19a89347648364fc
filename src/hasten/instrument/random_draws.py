"""Who draws random numbers: the items of the loader, the rest of the loop, or both in turn."""

from __future__ import annotations

import random
import sys
from typing import Any

_WATCHED_COUNT = 8


class DrawWatch:
    """Compare the global generators before and after the first batches are fetched.

    Attributes:
        items: the items of the loader draw in this process; None while nobody knows.
        loop: the rest of the loop draws; None while nobody knows.
    """

    def __init__(self) -> None:
        self.items: bool | None = None
        self.loop: bool | None = None
        self._left_count = _WATCHED_COUNT
        self._before: Any = None
        self._after: Any = None

    def loading(self) -> None:
        """Look before a batch is fetched."""
        if self._left_count <= 0:
            return
        self._before = _states()
        if self._after is not None:
            self.loop = bool(self.loop or self._before != self._after)

    def loaded(self) -> None:
        """Look after it. The first one does not count: a sampler draws with it."""
        if self._left_count <= 0 or self._before is None:
            return
        first, self._after = self._after is None, _states()
        if not first:
            self.items = bool(self.items or self._before != self._after)
        self._left_count -= 1


def _states() -> Any:
    import torch

    numpy = sys.modules.get("numpy.random")
    own = None
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        own = name, keys.tobytes(), *rest
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), own
