"""The whole machine as one record."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cgroup import (
    available_bytes,
    ends_as_one,
    memory_limit_bytes,
    quota_cores_ratio,
    throttled_ratio,
)
from hasten.kernel_files import fields, text
from hasten.machine import caveats
from hasten.machine.budget import read_budget
from hasten.machine.cpu import read_cpu, sibling_sets
from hasten.records import Machine, Memory, Pressure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hasten.records import Torch


_REAL = Path("/")


def read(
    *,
    root: Path = _REAL,
    env: Mapping[str, str] = os.environ,
    affinity: frozenset[int] | None = None,
    shm: tuple[int, int] | None = None,
) -> Machine:
    """Read what this machine gives a job, and what is wrong with it; torch is left alone.

    Files are read beneath `root` only, so a whole machine fits into a test's folder. The running
    kernel is asked (affinity mask, /dev/shm) only where `root` is the real one.

    Args:
        root: where /proc and /sys are.
        env: the environment that the script will start with.
        affinity: ids of the logical CPUs that the job may run on; the real mask by default.
        shm: total and free bytes of /dev/shm; the real ones by default.
    """
    if root == _REAL:
        affinity = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
        shm = shm if shm is not None else measure_shm()
    kernel = [text(root / "proc/sys/kernel" / name) for name in ("ostype", "osrelease")]
    siblings = sibling_sets(root)
    cpu = read_cpu(root, siblings)
    machine = Machine(
        cpu=cpu,
        budget=read_budget(
            cpu, siblings, affinity=affinity, quota_cores_ratio=quota_cores_ratio(root), env=env
        ),
        memory=read_memory(root, shm=shm),
        pressure=read_pressure(root, thread_count=cpu.thread_count),
        device_files=tuple(sorted(str(path) for path in _device_files(root))),
        gpu=_gpu(root),
        system=" ".join(filter(None, kernel)),
        python_version=platform.python_version(),
    )
    return _judged(machine, root, env, torch_asked=False)


def with_torch(
    machine: Machine,
    torch: Torch | None,
    *,
    root: Path = _REAL,
    env: Mapping[str, str] = os.environ,
) -> Machine:
    """Return a machine with what torch has told, None where it could not be asked."""
    return _judged(replace(machine, torch=torch), root, env, torch_asked=True)


def _judged(machine: Machine, root: Path, env: Mapping[str, str], *, torch_asked: bool) -> Machine:
    """Return a machine with what is wrong with it."""
    found = caveats.find(machine, env, torch_asked=torch_asked, ends_as_one=ends_as_one(root))
    return replace(machine, caveats=found)


def _device_files(root: Path) -> Iterator[Path]:
    """Yield what tells of NVIDIA's and AMD's drivers: NVIDIA's file per GPU, AMD's single one.

    Without the former NVIDIA's driver may still be loaded: a container got no GPU, or no program
    has asked for one since the machine started.
    """
    gpus = tuple((root / "dev").glob("nvidia[0-9]*"))
    others = (root / "dev/kfd", *(() if gpus else (root / caveats.NVIDIA_DRIVER_FILE,)))
    yield from (*gpus, *(path for path in others if path.exists()))


def _gpu(root: Path) -> str:
    """Return the model of the first NVIDIA GPU, as its driver tells without being started."""
    told = (text(file) for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
    lines = (line for each in told for line in each.splitlines())
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))
    return next(models, "")


# ---- memory: what there is, what is left, and the shared memory that loader workers need


def read_memory(root: Path, *, shm: tuple[int, int] | None) -> Memory:
    """Read the memory beneath `root`."""
    total_kib = fields(root / "proc/meminfo").get("MemTotal")
    shm_bytes, shm_free_bytes = shm or (None, None)
    return Memory(
        total_bytes=None if total_kib is None else total_kib * 1024,
        available_bytes=available_bytes(root),
        limit_bytes=memory_limit_bytes(root),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
    )


def measure_shm(folder: str = "/dev/shm") -> tuple[int, int] | None:
    """Return total and free bytes of the shared memory file system, None where there is none."""
    if not os.path.ismount(folder):
        return None
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


# ---- how contended the machine is right now

_SOME = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
# user nice system idle iowait irq softirq steal; the guest columns after them are in user already.
_STEAL, _COLUMNS = 7, 8


def read_pressure(root: Path, *, thread_count: int | None) -> Pressure:
    """Read pressure, throttling, steal and load beneath `root`."""
    return Pressure(
        cpu_some_ratio=_waiting(root),
        throttled_ratio=throttled_ratio(root),
        steal_ratio=_steal(root),
        load_ratio=_load(root, thread_count),
    )


def _waiting(root: Path) -> float | None:
    """Return the share of the last 10 s in which some task waited (docs.kernel.org: PSI)."""
    some = _SOME.search(text(root / "proc/pressure/cpu"))
    return float(some[1]) / 100 if some else None


def _steal(root: Path) -> float | None:
    words = text(root / "proc/stat").partition("\n")[0].split()
    ticks = [int(word) for word in words[1 : 1 + _COLUMNS] if word.isdigit()]
    if words[:1] != ["cpu"] or len(ticks) < _COLUMNS or not sum(ticks):
        return None
    return ticks[_STEAL] / sum(ticks)


def _load(root: Path, thread_count: int | None) -> float | None:
    words = text(root / "proc/loadavg").split()
    try:
        return float(words[0]) / thread_count if words and thread_count else None
    except ValueError:
        return None
