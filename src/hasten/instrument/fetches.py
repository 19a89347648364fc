"""How long a batch takes to fetch, including inside the worker processes of the script's loader."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from hasten.instrument.dataset_profile import DatasetProfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.seams import Seam
    from hasten.records import LoaderTraits

_SLOT_COUNT = 1024
_FIELD_COUNT = 8
_PID, _DATASET, _WALL, _CPU, _COUNT, _FIRST_WALL, _FIRST_CPU, _UNUSED = range(_FIELD_COUNT)


class FetchClock:
    """Sum up, for each process and dataset, the nanoseconds that torch's fetcher takes.

    The sums are kept in memory that forks share, so forked workers write what this process reads,
    without any messages. Spawned workers import torch themselves: nothing is known of
    them. Only the CPU time of the fetching thread is counted: the threads of a pool keep spinning
    after their work, and a worker's queue has a thread of its own.

    Attributes:
        look: takes a closer look, where somebody wants one; these batches are not summed up.
    """

    def __init__(self) -> None:
        shared = mmap.mmap(-1, _SLOT_COUNT * _FIELD_COUNT * 8)
        self._cells = memoryview(shared).cast("q")
        self._inside = False
        self.look = DatasetProfile()

    def timed(
        self, original: Callable[[Any, Any], Any], seam: Seam | None = None
    ) -> Callable[[Any, Any], Any]:
        """Return the `fetch` of one of torch's fetchers with its time taken, while `seam` is on."""

        @wraps(original)
        def fetch(fetcher: Any, indices: Any) -> Any:
            # Inside: a dataset that reads another loader.
            if self._inside or (seam is not None and not seam.on):
                return original(fetcher, indices)
            self._inside = True
            looked = self.look.is_on
            wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            try:
                if looked:
                    return self.look.fetch(original, fetcher, indices)
                batch = original(fetcher, indices)
            finally:
                self._inside = False
            cpu_ns = time.thread_time_ns() - cpu_ns
            self._charge(id(fetcher.dataset), time.perf_counter_ns() - wall_ns, cpu_ns)
            return batch

        return fetch

    def _charge(self, dataset: int, wall_ns: int, cpu_ns: int) -> None:
        cells, pid = self._cells, os.getpid()
        # One writer per slot, except for collisions too rare to be worth a lock. A slot whose
        # process has ended is taken over.
        at = hash((pid, dataset)) % _SLOT_COUNT * _FIELD_COUNT
        if cells[at + _PID] != pid or cells[at + _DATASET] != dataset:
            fresh = (pid, dataset, 0, 0, 0, wall_ns, cpu_ns, 0)
            for place, value in enumerate(fresh):
                cells[at + place] = value
            return
        cells[at + _WALL] += wall_ns
        cells[at + _CPU] += cpu_ns
        cells[at + _COUNT] += 1

    def add(self, dataset: int, loader: LoaderTraits) -> LoaderTraits:
        """Return a loader's traits with the time of a batch; unchanged if nothing was fetched.

        The first batch of each process is left out where there are others: it also imports,
        opens files and warms caches. `dataset` is its identity, which a fork keeps.
        """
        rows = [
            self._cells[at : at + _FIELD_COUNT].tolist()
            for at in range(0, _SLOT_COUNT * _FIELD_COUNT, _FIELD_COUNT)
            if self._cells[at + _DATASET] == dataset and self._cells[at + _PID]
        ]
        wall_ns, cpu_ns, count = (sum(row[i] for row in rows) for i in (_WALL, _CPU, _COUNT))
        if not count:
            wall_ns, cpu_ns = (sum(row[i] for row in rows) for i in (_FIRST_WALL, _FIRST_CPU))
            count = len(rows)
        if not count or not wall_ns:
            return loader
        fetch_s, cpu_ratio = wall_ns * 1e-9 / count, min(1.0, cpu_ns / wall_ns)
        return replace(loader, fetch_s=fetch_s, fetch_cpu_ratio=cpu_ratio)
