"""Memory: what there is, what is left, and the shared memory that loader workers need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hasten.machine.cgroup import memory_left_bytes, memory_limit_bytes
from hasten.machine.kernel_files import fields
from hasten.records import Memory

if TYPE_CHECKING:
    from pathlib import Path


def read_memory(root: Path, *, shm: tuple[int, int] | None) -> Memory:
    """Read the memory beneath `root`.

    `available_bytes` is what this job can still take: the kernel's own estimate or what the
    tightest group leaves, whichever is less.

    Args:
        root: where /proc and /sys are.
        shm: total and free bytes of /dev/shm, None where unknown.
    """
    meminfo = fields(root / "proc/meminfo")
    total_kib, available_kib = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
    left = (None if available_kib is None else available_kib * 1024, memory_left_bytes(root))
    shm_bytes, shm_free_bytes = shm or (None, None)
    return Memory(
        total_bytes=None if total_kib is None else total_kib * 1024,
        available_bytes=min((count for count in left if count is not None), default=None),
        limit_bytes=memory_limit_bytes(root),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
    )


def measure_shm(folder: str = "/dev/shm") -> tuple[int, int] | None:
    """Return total and free bytes of the shared memory file system, None where there is none."""
    if not os.path.ismount(folder):
        return None
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):  # Windows has no statvfs
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
