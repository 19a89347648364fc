"""Page faults of each step, and what one of them takes here."""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import TYPE_CHECKING, Any

from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_PROBE_BYTES = 1 << 24
_PROBE_COUNT = 3


def faults_count() -> int:
    """Return how many small pages this process has faulted in."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def fault_s() -> float | None:
    """Return the seconds that a fault for one small page takes; None where that is unknown.

    Fresh memory is written twice, with huge pages refused: the first time faults every page in.
    """
    best_s = None
    for _ in range(_PROBE_COUNT):
        with mmap.mmap(-1, _PROBE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            address = ctypes.addressof(view := ctypes.c_char.from_buffer(memory))
            times, before = [], faults_count()
            for _ in range(2):
                start = time.thread_time()
                ctypes.memset(address, 1, _PROBE_BYTES)
                times.append(time.thread_time() - start)
            count = faults_count() - before
            del view
        if count:
            one_s = max(0.0, times[0] - times[1]) / count
            best_s = one_s if best_s is None else min(best_s, one_s)
    return best_s


class Faults:
    """Count the page faults of each step."""

    def __init__(self, watch: Watch) -> None:
        self._growth = StepGrowth(faults_count)
        self.ended = self._growth.ended

    def end(self) -> dict[str, Any]:
        """Time a fault."""
        import torch

        return {
            "counts": self._growth.seen,
            "fault_s": fault_s(),
            "threads_count": torch.get_num_threads(),
        }


EXAMINER = Faults
