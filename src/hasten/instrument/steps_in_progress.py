"""Which steps of optimizers are in progress."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class StepsInProgress:
    """The steps in progress, the outermost first, and what to call when each ends.

    A closure or a wrapper such as SAM may nest one step inside another.
    """

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[Callable[[], None], ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def begin(self, optimizer: Any, leaves: tuple[Callable[[], None], ...]) -> None:
        """Note that a step of an optimizer has begun inside the others."""
        self._leaves[id(optimizer)] = leaves

    def end(self, optimizer: Any) -> bool:
        """Leave a step and those inside it; return whether it was in progress."""
        if id(optimizer) not in self._leaves:
            return False
        self._unwind(list(self._leaves).index(id(optimizer)))
        return True

    def leave_raised(self, optimizer: Any, around_count: int) -> None:
        """Leave steps that raised earlier, before a step with this many steps around it."""
        if not self.end(optimizer):
            self._unwind(around_count)

    def _unwind(self, around_count: int) -> None:
        while len(self._leaves) > around_count:
            _, leaves = self._leaves.popitem()
            for leave in leaves:
                leave()


def steps_around() -> int:
    """Return how many optimizers are in their step around the one whose pre-hook asks.

    Nothing reports a step that raised, so the frames of torch's wrapper are counted. To keep
    a frame instead would keep alive what it holds.
    """
    around, count = sys._getframe(2), 0  # the frame of the wrapper; 1 is that of the hook
    code, frame = around.f_code, around.f_back
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count
