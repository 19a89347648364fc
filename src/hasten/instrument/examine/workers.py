"""What the loader's worker processes do: their threads, their CPUs, their memory."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import sys
import time
from collections import deque
from itertools import islice
from statistics import fmean
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.instrument import processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.instrument.watch import Watch

_SHARED = "/dev/shm"
_SAMPLE_S = 0.02
_LOOKED_COUNT = 4  # at a time: there may be many, with many threads each
_MOST_OBJECTS_COUNT = 200_000
_OF_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType)
_CONTAINERS = (list, tuple, dict, set, frozenset)


class Workers:
    """Look at the workers before the first step, while they work, and after the last step.

    The iterators that feed the loop show which of the script's child processes are workers.
    A loader may start new ones for each pass: of those that have ended, the last look counts.
    """

    def __init__(self, watch: Watch) -> None:
        pids = [child.pid for child in multiprocessing.active_children() if child.pid]
        self._turns_before = {pid: processes.turns(pid) for pid in pids}
        self._memory_before = _memory_of(pids)
        self._pids: set[int] = set()
        self._datasets: dict[int, Any] = {}
        self._free_bytes: list[int] = []
        self._running_counts: list[int] = []
        self._turns: dict[int, dict[int, processes.CpuTurn]] = {}
        self._feeding: deque[int] = deque()
        self._next_s = 0.0

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note whose workers made a batch."""
        pids = {worker.pid for worker in getattr(iterator, "_workers", ())}
        if not pids or pids == set(self._feeding):
            return
        self._feeding = deque(pids)
        self._pids |= pids
        dataset = getattr(iterator, "_dataset", None)
        self._datasets[id(dataset)] = dataset

    def ended(self) -> None:
        """Note how much room is left where workers put their batches, and what some of them do."""
        now = time.monotonic()
        if not self._pids or now < self._next_s:
            return
        self._next_s = now + _SAMPLE_S
        if os.path.ismount(_SHARED):
            space = os.statvfs(_SHARED)
            self._free_bytes.append(space.f_bavail * space.f_frsize)
        self._feeding.rotate(_LOOKED_COUNT)
        for pid in islice(self._feeding, _LOOKED_COUNT):
            self._running_counts.append(processes.runnable_count(pid))
            self._turns[pid] = processes.turns(pid) or self._turns.get(pid, {})

    def end(self) -> dict[str, Any]:
        """Look again; return what each worker did meanwhile."""
        each = []
        for pid in sorted(self._pids):
            after = processes.turns(pid) or self._turns.get(pid)
            if after:
                spent = processes.spent(self._turns_before.get(pid, {}), after).values()
                run_s, wait_s = (sum(times) for times in zip(*spent, strict=True))
                each.append({"run_s": run_s, "wait_s": wait_s, "cpus": sorted(processes.mask(pid))})
        if not each:
            return {}
        memory = _memory_of(self._pids)
        return {
            "each": each,
            "busy_ratio": busy_ratio(self._running_counts),
            "shm_free_bytes": min(self._free_bytes, default=None),
            "private_bytes": fmean(m.private_bytes for m in memory.values()) if memory else None,
            **self._copies(memory),
        }

    def _copies(self, memory: dict[int, processes.Mapped]) -> dict[str, Any]:
        """Return what those workers copied that lived through all the steps."""
        lasting = memory.keys() & self._memory_before.keys()
        if not lasting:
            return {}
        return {
            "copiers_count": len(lasting),
            "copied_bytes": sum(copied(self._memory_before[pid], memory[pid]) for pid in lasting),
            "inherited_bytes": sum(memory[pid].shared_bytes for pid in lasting),
            "object_bytes": object_bytes(self._datasets.values()),
        }


def _memory_of(pids: Iterable[int]) -> dict[int, processes.Mapped]:
    seen = {pid: processes.mapped(pid) for pid in pids}
    return {pid: memory for pid, memory in seen.items() if memory is not None}


def busy_ratio(counts: Sequence[int]) -> float:
    """Return how many threads of a worker run or want to, averaged over times when any does.

    Threads that take turns count as one, however many there are.
    """
    busy = [count for count in counts if count]
    return fmean(busy) if busy else 1.0


def copied(before: processes.Mapped, after: processes.Mapped) -> int:
    """Return the bytes that went from shared to private: pages copied on write.

    A worker that merely grows shares as much as before; one that ends with less shared and as
    much more private wrote to what it had inherited, if only a reference count.
    """
    lost = before.shared_bytes - after.shared_bytes
    return max(0, min(lost, after.private_bytes - before.private_bytes))


def object_bytes(roots: Iterable[Any]) -> int | None:
    """Return the bytes of the Python objects that others hold, at most a page of each.

    These are what reading writes to: a reference count lies in the object, and the numbers of an
    array or a tensor do not. None where there are too many to look at, which may be copied too.
    """
    seen: set[int] = set()
    total_bytes = 0
    layer = list(roots)
    while layer:
        fresh = {id(one): one for one in layer if not isinstance(one, _OF_CODE)}
        for known in seen & fresh.keys():
            del fresh[known]
        seen |= fresh.keys()
        total_bytes += sum(map(_written_bytes, fresh.values()))
        # Before they are looked at: that alone would copy what workers still share.
        members_count = sum(len(one) for one in fresh.values() if type(one) in _CONTAINERS)
        if len(seen) + members_count > _MOST_OBJECTS_COUNT:
            return None
        layer = gc.get_referents(*fresh.values())
    return total_bytes


def _written_bytes(one: Any) -> int:
    is_plain = type(one) in _CONTAINERS or type(one) in (str, bytes)
    return min(sys.getsizeof(one) if is_plain else object.__sizeof__(one), mmap.PAGESIZE)


EXAMINER = Workers
