"""What a running total grows by from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class StepGrowth:
    """Read a total now and at the end of each step; `seen` has what each step added to it."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.seen: list[float] = []
        self._read = read
        self._before = read()

    def ended(self) -> None:
        """Note what a step has added."""
        now = self._read()
        self.seen.append(now - self._before)
        self._before = now
