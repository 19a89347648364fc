"""What the kernel reports about processes and their threads (proc(5)), where it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hasten.kernel_files import fields, groups, text

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


def _tasks(pid: int | str) -> list[Path]:
    tasks = Path(f"/proc/{pid}/task")
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


def turns(pid: int | str = "self") -> dict[int, CpuTurn]:
    """Return the times of each thread of a process by the kernel's thread id."""
    found = {int(task.name): turn(task) for task in _tasks(pid)}
    return {thread: times for thread, times in found.items() if times is not None}


def spent(before: dict[int, CpuTurn], after: dict[int, CpuTurn]) -> dict[int, CpuTurn]:
    """Return what each thread took between two looks, new threads included."""
    first = dict.fromkeys(after, CpuTurn(0.0, 0.0)) | before
    return {
        thread: CpuTurn(now.run_s - first[thread].run_s, now.wait_s - first[thread].wait_s)
        for thread, now in after.items()
    }


def children_run_s() -> float:
    """Return the seconds that the children of this process ran, those that have ended included.

    The time of a live child moves to the ended ones when it is waited for, so a difference
    of two readings is right even if children started or ended in between.
    """
    import resource

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = (text(task / "children").split() for task in _tasks("self"))
    stats = (text(Path(f"/proc/{pid}/stat")) for pids in children for pid in pids)
    words = (stat.rpartition(")")[2].split() for stat in stats)
    alive_count = sum(int(word) for found in words for word in found[11:13])
    return ended.ru_utime + ended.ru_stime + alive_count / os.sysconf("SC_CLK_TCK")


def runnable_count(pid: int) -> int:
    """Return how many threads of a process run at this moment or wait for a CPU."""
    states = (text(task / "stat").rpartition(")")[2].split() for task in _tasks(pid))
    return sum(state[:1] == ["R"] for state in states)


def mapped(pid: int, *, root: Path = _REAL) -> Mapped | None:
    """Return what a process shares and what it wrote, None where the kernel does not say."""
    sizes = fields(root / f"proc/{pid}/smaps_rollup")
    if "Private_Dirty" not in sizes:
        return None
    return Mapped(sizes["Shared_Dirty"] * _KIB, sizes["Private_Dirty"] * _KIB)


def mask(pid: int) -> frozenset[int]:
    """Return the CPUs that a process may run on; empty where that is not known."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return frozenset()


def busy_s(cpus: frozenset[int]) -> float | None:
    """Return the seconds that some CPUs spent on anything but idling, since the machine began."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    total, seen_count = 0, 0
    for line in text(Path("/proc/stat")).splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            # user nice system idle iowait irq softirq steal: guests are in user already
            total += sum(int(words[column]) for column in (0, 1, 2, 5, 6, 7) if column < len(words))
            seen_count += 1
    return total * tick_s if seen_count == len(cpus) > 0 else None


def throttle_files(*, root: Path = _REAL) -> tuple[Path, ...]:
    """Return the cpu.stat files of the groups of this process that have a quota."""
    files = (group / "cpu.stat" for group in groups(root, "cpu"))
    return tuple(path for path in files if fields(path).get("nr_periods"))


def throttled_s(files: tuple[Path, ...]) -> float:
    """Return the seconds for which a quota has held up this process, at the worst level.

    They are counted on each CPU, so they may be more than the clock shows.
    """
    times = [0.0]
    for path in files:
        seen = fields(path)
        # Version 2 counts microseconds, version 1 nanoseconds.
        times.append(seen.get("throttled_usec", 0) * 1e-6 + seen.get("throttled_time", 0) * 1e-9)
    return max(times)
