"""How long the loop's thread waits for a CPU, and who has the CPUs meanwhile."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.instrument import processes
from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.instrument.watch import Watch


class Processors:
    """Follow the scheduler's clocks from step to step.

    `wait_s` of a thread is the time in which it was ready to run but had no CPU.
    """

    def __init__(self, watch: Watch) -> None:
        self._waits_s: list[float] = []
        self._files = processes.throttle_files()
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._cpus = processes.mask(0)
        self._ends_s = [time.monotonic()]
        self._last = processes.turn(self._task)
        self._turns = processes.turns()
        self._children_run_s = processes.children_run_s()
        self._busy_s = processes.busy_s(self._cpus)
        self._throttled = StepGrowth(lambda: processes.throttled_s(self._files))

    def ended(self) -> None:
        """Note how long the loop's thread waited in this step."""
        now = processes.turn(self._task)
        self._ends_s.append(time.monotonic())
        if now is not None and self._last is not None:
            self._waits_s.append(now.wait_s - self._last.wait_s)
        self._last = now
        self._throttled.ended()

    def end(self) -> dict[str, Any]:
        """Return the waits, and the CPU time that everybody took."""
        busy_s = processes.busy_s(self._cpus)
        children_run_s = processes.children_run_s() - self._children_run_s
        spent = processes.spent(self._turns, processes.turns())
        found: dict[str, Any] = {
            "wall_s": time.monotonic() - self._ends_s[0],
            "cpus_count": len(self._cpus) or None,
            "waits_s": self._waits_s or None,
            "spans_s": [end - start for start, end in pairwise(self._ends_s)],
            "throttled_s": self._throttled.seen if self._files else None,
            "own_run_s": sum(one.run_s for one in spent.values()) if spent else None,
            "own_wait_s": sum(one.wait_s for one in spent.values()) if spent else None,
            "team_run_s": _team_run_s(spent) if spent else None,
            "children_run_s": children_run_s,
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        }
        if busy_s is not None and self._busy_s is not None:
            found["busy_s"] = busy_s - self._busy_s
        return found


def _team_run_s(spent: Mapping[int, processes.CpuTurn]) -> float:
    """Return how long threads ran that are not Python's: those that share operations, mostly."""
    known = {thread.native_id for thread in threading.enumerate()}
    return sum(one.run_s for thread, one in spent.items() if thread not in known)


EXAMINER = Processors
