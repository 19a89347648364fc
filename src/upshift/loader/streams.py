"""The random streams of the script's own workers, replayed in the main process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from upshift.loader import states

if TYPE_CHECKING:
    from collections.abc import Iterator


class Streams:
    """What `logical_count` workers would draw, while the main process draws nothing.

    Args:
        key: of the pass; the streams start anew with each.
        seed: the base seed of the pass.
        logical_count: workers that the script has.
    """

    def __init__(self, key: int, seed: int, logical_count: int) -> None:
        self.key = key
        self._seed = seed
        self._count = logical_count
        self._states: dict[int, states.States] = {}

    @contextmanager
    def entered(self, number: int) -> Iterator[None]:
        """Draw as the worker does that the script gives batch `number` to."""
        index = number % self._count
        own = states.read()
        if index in self._states:
            states.restore(self._states[index])
        else:
            states.seed_as_worker(self._seed, index)
        try:
            yield
        finally:
            self._states[index] = states.read()
            states.restore(own)
