"""What the kernel reports about processes and their threads (proc(5)), where it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hasten.cgroup import levels

_REAL = Path("/")
_KIB = 1024


class CpuTurn(NamedTuple):
    """How long a thread ran, and how long it could have run but had to wait for a CPU."""

    run_s: float
    wait_s: float


class Mapped(NamedTuple):
    """Written memory of a process: what others map too, and what it alone maps."""

    shared_bytes: int
    private_bytes: int


def text(path: Path) -> str:
    """Return what a file of the kernel says, nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended, or the kernel has no such file
        return ""


def _tasks(pid: int | str, root: Path) -> list[Path]:
    tasks = root / f"proc/{pid}/task"
    try:
        return [tasks / name for name in os.listdir(tasks)]
    except OSError:
        return []


def turn(task: Path) -> CpuTurn | None:
    """Return the times of one thread (docs.kernel.org/scheduler/sched-stats.html)."""
    words = text(task / "schedstat").split()
    if len(words) != 3 or words == ["0", "0", "0"]:
        return None
    return CpuTurn(int(words[0]) * 1e-9, int(words[1]) * 1e-9)


def turns(pid: int | str = "self", *, root: Path = _REAL) -> dict[int, CpuTurn]:
    """Return the times of each thread of a process by the kernel's thread id."""
    found = {int(task.name): turn(task) for task in _tasks(pid, root)}
    return {thread: times for thread, times in found.items() if times is not None}


def children_run_s(*, root: Path = _REAL) -> float:
    """Return the seconds that the children of this process ran, those that have ended included.

    The time of a live child moves to the ended ones when it is waited for, so a difference
    of two readings is right even if children started or ended in between.
    """
    import resource

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    pids = [
        pid for task in (root / "proc/self/task").glob("*/children") for pid in text(task).split()
    ]
    alive_s = sum(one.run_s for pid in pids for one in turns(pid, root=root).values())
    return ended.ru_utime + ended.ru_stime + alive_s


def runnable_count(pid: int, *, root: Path = _REAL) -> int:
    """Return how many threads of a process run at this moment or wait for a CPU."""
    tasks = _tasks(pid, root)
    states = (text(task / "stat").rpartition(")")[2].split() for task in tasks)
    return sum(state[:1] == ["R"] for state in states)


def mapped(pid: int, *, root: Path = _REAL) -> Mapped | None:
    """Return what a process shares and what it wrote, None where the kernel does not say."""
    sizes = _fields(root / f"proc/{pid}/smaps_rollup")
    if "Private_Dirty:" not in sizes:
        return None
    return Mapped(sizes["Shared_Dirty:"] * _KIB, sizes["Private_Dirty:"] * _KIB)


def mask(pid: int) -> frozenset[int]:
    """Return the CPUs that a process may run on; empty where that is not known."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return frozenset()


def busy_s(cpus: frozenset[int], *, root: Path = _REAL) -> float | None:
    """Return the seconds that some CPUs spent on anything but idling, since the machine began."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    total, seen_count = 0, 0
    for line in text(root / "proc/stat").splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            # user nice system idle iowait irq softirq steal: guests are in user already
            total += sum(int(words[column]) for column in (0, 1, 2, 5, 6, 7) if column < len(words))
            seen_count += 1
    return total * tick_s if seen_count == len(cpus) > 0 else None


def throttle_files(*, root: Path = _REAL) -> tuple[Path, ...]:
    """Return the cpu.stat files of the groups of this process that have a quota."""
    found = (group / "cpu.stat" for group in levels(root, "cpu"))
    return tuple(path for path in found if _fields(path).get("nr_periods"))


def throttled_s(files: tuple[Path, ...]) -> float:
    """Return the seconds for which a quota has held up this process, at the worst level.

    They are counted on each CPU, so they may be more than the clock shows.
    """
    times = [0.0]
    for path in files:
        seen = _fields(path)
        # Version 2 counts microseconds, version 1 nanoseconds.
        times.append(seen.get("throttled_usec", 0) * 1e-6 + seen.get("throttled_time", 0) * 1e-9)
    return max(times)


def _fields(path: Path) -> dict[str, int]:
    rows = (line.split() for line in text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
