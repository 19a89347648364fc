"""How long the loop's thread waits for a CPU, and who has the CPUs meanwhile."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.instrument import processes
from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.instrument.watch import Watch

_SAMPLE_S = 0.02
_LONG_RATIO, _LONG_S = 3.0, 1.0  # of the usual span: it holds an evaluation, say


class CpuUse(NamedTuple):
    """A time on the clock, and how long this process, its children and all CPUs ran by then."""

    clock_s: float
    own_run_s: float
    children_run_s: float
    busy_s: float


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
        self._throttled = StepGrowth(lambda: processes.throttled_s(self._files))
        self._uses = [self._used()]

    def ended(self) -> None:
        """Note how long the loop's thread waited in this step."""
        now = processes.turn(self._task)
        self._ends_s.append(time.monotonic())
        if now is not None and self._last is not None:
            self._waits_s.append(now.wait_s - self._last.wait_s)
        self._last = now
        self._throttled.ended()
        if self._ends_s[-1] - self._uses[-1].clock_s >= _SAMPLE_S:
            self._uses.append(self._used())

    def _used(self) -> CpuUse:
        return CpuUse(
            self._ends_s[-1], time.process_time(), processes.children_run_s(),
            processes.busy_s(self._cpus) or 0.0,
        )  # fmt: skip

    def end(self) -> dict[str, Any]:
        """Return the waits, and the CPU time that everybody took."""
        first, last = self._uses[0], self._used()
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
            "children_run_s": last.children_run_s - first.children_run_s,
            **in_steps(self._uses),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        }
        if first.busy_s and last.busy_s:  # since the machine began
            found["busy_s"] = last.busy_s - first.busy_s
        return found


def in_steps(uses: Sequence[CpuUse]) -> dict[str, float]:
    """Return the seconds on the clock and of CPU time in spans that hold steps and little else.

    >>> rows = [(0.0, 0, 0, 0), (1.0, 1, 1, 2), (9.0, 2, 1, 3), (10.0, 3, 2, 5)]
    >>> in_steps([CpuUse(*row) for row in rows])["steps_busy_s"]
    4
    """
    spans = [
        CpuUse(*(end - start for start, end in zip(before, after, strict=True)))
        for before, after in pairwise(uses)
    ]
    if not spans:
        return {}
    most_s = max(_LONG_S, _LONG_RATIO * median(span.clock_s for span in spans))
    usual = [span for span in spans if span.clock_s <= most_s]
    return {
        "steps_wall_s": sum(span.clock_s for span in usual),
        "steps_own_run_s": sum(span.own_run_s for span in usual),
        "steps_children_run_s": sum(span.children_run_s for span in usual),
        "steps_busy_s": sum(span.busy_s for span in usual),
    }


def _team_run_s(spent: Mapping[int, processes.CpuTurn]) -> float:
    """Return how long threads ran that are not Python's: those that share operations, mostly."""
    known = {thread.native_id for thread in threading.enumerate()}
    return sum(one.run_s for thread, one in spent.items() if thread not in known)


EXAMINER = Processors
