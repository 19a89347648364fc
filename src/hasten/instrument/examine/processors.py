"""How long the loop's thread waits for a CPU, and who has the CPUs meanwhile."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hasten.instrument import openmp, processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.instrument.watch import Watch

_SAMPLE_S = 0.05
_LOOK_COUNT = 8  # at the threads of OpenMP, where there is more than one runtime
_REAL = Path("/")


class Clocks:
    """Samples of the clock rate of the CPU on which the loop's thread runs.

    Args:
        root: where /proc and /sys are.
    """

    def __init__(self, root: Path = _REAL) -> None:
        self._root = root
        self._next_s = 0.0
        self._rates: list[float] = []
        self._caps: list[float] = []
        self._throttle_count = self._count_throttles()

    def _read(self, cpu: int | None, name: str) -> str:
        with suppress(OSError):
            folder = self._root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
            return (folder / name).read_text().strip()
        return ""

    def _count_throttles(self) -> int:
        """Return how often the hardware slowed down for heat or power, over all CPUs."""
        pattern = "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
        with suppress(OSError):
            return sum(int(path.read_text()) for path in self._root.glob(pattern))
        return 0

    def sample(self) -> None:
        """Look now, if the last look is some time ago."""
        now = time.monotonic()
        if now < self._next_s:
            return
        cpu = processes.current_cpu(root=self._root)
        words = [
            self._read(cpu, name)
            for name in ("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq")
        ]
        if not all(word.isdecimal() and int(word) for word in words):
            self._next_s = float("inf")  # a virtual machine does not report it
            return
        self._next_s = now + _SAMPLE_S
        current, cap, top = map(int, words)
        self._rates.append(current / top)
        self._caps.append(cap / top)

    def read(self) -> dict[str, Any]:
        """Return what was seen; nothing where the machine does not report it."""
        if not self._rates:
            return {}
        return {
            "frequency_ratio": median(self._rates),
            "frequency_cap_ratio": median(self._caps),
            "governor": self._read(0, "scaling_governor"),
            "frequency_driver": self._read(0, "scaling_driver"),
            "hot_count": self._count_throttles() - self._throttle_count,
        }


class Processors:
    """Follow the scheduler's clocks from step to step.

    `wait_s` of a thread is the time in which it was ready to run but had no CPU.
    """

    def __init__(self, watch: Watch) -> None:
        self._waits_s: list[float] = []
        self._ends_s: list[float] = []
        self._throttled_s: list[float] = []
        self._files = processes.throttle_files()
        self._runtimes = openmp.runtimes()
        self._members: dict[int, str] = {}
        self._look_count = 0
        self._clocks = Clocks()

    def begin(self) -> None:
        """Note the state of all clocks."""
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._cpus = processes.mask(0)
        self._ends_s = [time.monotonic()]
        self._last = processes.turn(self._task)
        self._turns = processes.turns()
        self._children_run_s = processes.children_run_s()
        self._busy_s = processes.busy_s(self._cpus)
        self._last_throttled_s = processes.throttled_s(self._files)

    def ended(self) -> None:
        """Note how long the loop's thread waited in this step."""
        now = processes.turn(self._task)
        self._ends_s.append(time.monotonic())
        if now is not None and self._last is not None:
            self._waits_s.append(now.wait_s - self._last.wait_s)
        self._last = now
        if self._files:
            throttled_s = processes.throttled_s(self._files)
            self._throttled_s.append(throttled_s - self._last_throttled_s)
            self._last_throttled_s = throttled_s
        if len(self._runtimes) > 1 and self._look_count < _LOOK_COUNT:
            self._look_count += 1
            self._members |= openmp.members(self._runtimes)
        self._clocks.sample()

    def end(self) -> dict[str, Any]:
        """Return the waits, and the CPU time that everybody took."""
        busy_s = processes.busy_s(self._cpus)
        children_run_s = processes.children_run_s() - self._children_run_s
        now = processes.turns()
        spent = {}
        for thread, then in now.items():
            first = self._turns.get(thread, processes.CpuTurn(0.0, 0.0))
            spent[thread] = processes.CpuTurn(then.run_s - first.run_s, then.wait_s - first.wait_s)
        found: dict[str, Any] = {
            "wall_s": time.monotonic() - self._ends_s[0],
            "cpus_count": len(self._cpus) or None,
            "waits_s": self._waits_s or None,
            "spans_s": [end - start for start, end in pairwise(self._ends_s)],
            "throttled_s": self._throttled_s or None,
            "own_run_s": sum(one.run_s for one in spent.values()) if spent else None,
            "own_wait_s": sum(one.wait_s for one in spent.values()) if spent else None,
            "team_run_s": _team_run_s(spent) if spent else None,
            "children_run_s": children_run_s,
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "pools": self._pools(spent),
            **self._clocks.read(),
        }
        if busy_s is not None and self._busy_s is not None:
            found["busy_s"] = busy_s - self._busy_s
        return found

    def _pools(self, spent: dict[int, processes.CpuTurn]) -> list[dict[str, Any]] | None:
        """Return the threads of each OpenMP runtime, where there is more than one."""
        if len(self._runtimes) < 2:
            return None
        return [
            {
                "path": path,
                "threads_count": sum(owner == path for owner in self._members.values()),
                "run_s": sum(
                    spent[thread].run_s
                    for thread, owner in self._members.items()
                    if owner == path and thread in spent
                ),
            }
            for path in self._runtimes
        ]


def _team_run_s(spent: Mapping[int, processes.CpuTurn]) -> float:
    """Return how long threads ran that are not Python's: those that share operations, mostly."""
    known = {thread.native_id for thread in threading.enumerate()}
    return sum(one.run_s for thread, one in spent.items() if thread not in known)


EXAMINER = Processors
