"""The random streams of the script's own workers, replayed in the main process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.workers.worker_info import restore, say_worker
from hasten.torch_threads import with_threads

if TYPE_CHECKING:
    from collections.abc import Callable


class Streams:
    """What `logical_count` workers would draw, while the main process draws nothing.

    Args:
        dataset: the one that `get_worker_info()` reports.
        quiet: the items have drawn nothing so far: then the generators are only watched.

    Attributes:
        starts: the states from which streams that began elsewhere continue.
    """

    def __init__(self, seed: int, logical_count: int, dataset: Any, *, quiet: bool) -> None:
        self.starts: dict[int, random_states.States] = {}
        self._seed = seed
        self._count = logical_count
        self._dataset = dataset
        self._quiet = quiet

    def fetch(self, number: int, fetch: Callable[[], Any]) -> Any:
        """Fetch batch `number` as the worker that the script would give it to."""
        index = number % self._count
        said = say_worker((index, self._count, self._seed + index, self._dataset))
        own = random_states.read()
        try:
            with with_threads(1):
                if self._quiet:
                    batch = fetch()
                    if random_states.read() == own:
                        return batch
                    self._quiet = False
                return self._drawn(index, fetch)
        finally:
            if not self._quiet:
                random_states.restore(own)
            restore(said)

    def _drawn(self, index: int, fetch: Callable[[], Any]) -> Any:
        if index in self.starts:
            random_states.restore(self.starts[index])
        else:
            random_states.seed_as_worker(self._seed, index)
        try:
            return fetch()
        finally:
            self.starts[index] = random_states.read()
