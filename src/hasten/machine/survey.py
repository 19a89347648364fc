"""The whole machine as one record."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.machine import caveats
from hasten.machine.budget import read_budget
from hasten.machine.cgroup import ends_as_one, quota_cores_ratio
from hasten.machine.cpu import read_cpu, sibling_sets
from hasten.machine.elsewhere import read_cpu_elsewhere, read_memory_elsewhere
from hasten.machine.kernel_files import text
from hasten.machine.memory import measure_shm, read_memory
from hasten.machine.pressure import read_pressure
from hasten.records import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.records import Torch

_REAL = Path("/")


def read(
    *,
    root: Path = _REAL,
    env: Mapping[str, str] = os.environ,
    affinity: frozenset[int] | None = None,
    shm: tuple[int, int] | None = None,
    probe: Callable[[], Torch | None] | None = None,
) -> Machine:
    """Read what this machine gives a job, and what is wrong with it.

    Files are read beneath `root` only, so a whole machine fits into a test's folder. The running
    kernel is asked (affinity mask, /dev/shm, psutil) only where `root` is the real one.

    Args:
        root: where /proc and /sys are.
        env: the environment that the script will start with.
        affinity: ids of the logical CPUs that the job may run on; the real mask by default.
        shm: total and free bytes of /dev/shm; the real ones by default.
        probe: asks torch for its facts, usually `probe_torch` of the script's Python. Without
            it torch is left alone: `torch` is None and no caveat speaks of it.
    """
    real = root == _REAL
    if real:
        affinity = affinity if affinity is not None else _mask()
        shm = shm if shm is not None else measure_shm()
    elsewhere = real and not (root / "proc/stat").exists()
    siblings = sibling_sets(root)
    cpu = read_cpu_elsewhere() if elsewhere else read_cpu(root, siblings)
    machine = Machine(
        cpu=cpu,
        budget=read_budget(
            cpu,
            siblings,
            affinity=affinity,
            quota_cores_ratio=quota_cores_ratio(root),
            env=env,
        ),
        memory=read_memory_elsewhere() if elsewhere else read_memory(root, shm=shm),
        pressure=read_pressure(root, thread_count=cpu.thread_count),
        torch=probe() if probe else None,
        system=_system(root, real=real),
        python_version=platform.python_version(),
    )
    found = caveats.find(machine, env, torch_asked=probe is not None, ends_as_one=ends_as_one(root))
    return replace(machine, caveats=found)


def _mask() -> frozenset[int] | None:
    """Return the affinity mask; macOS and Windows have no such call."""
    ask = getattr(os, "sched_getaffinity", None)
    return None if ask is None else frozenset(ask(0))


def _system(root: Path, *, real: bool) -> str:
    kernel = [text(root / "proc/sys/kernel" / name) for name in ("ostype", "osrelease")]
    told = " ".join(word for word in kernel if word)
    return told or (f"{platform.system()} {platform.release()}" if real else "")
