"""Control groups, v1 and v2: the quota, the memory limit and the throttling of this process.

A limit may be set on any ancestor (a pod, a slice, a Slurm step): the strictest counts.
https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.kernel_files import fields, groups, number, text, whole

if TYPE_CHECKING:
    from pathlib import Path

# Version 1 spells "no limit" as the largest multiple of the page size; nobody has an exbibyte.
_UNLIMITED_BYTES = 2**60


def quota_cores_ratio(root: Path) -> float | None:
    """Return the strictest CPU quota in cores (7.65), None where there is none."""
    return min((q for group in groups(root, "cpu") if (q := _quota(group))), default=None)


def throttled_ratio(root: Path) -> float | None:
    """Return the share of quota periods that ended throttled, at the level that suffers most.

    The counters run since the group was made, so this says "it happens here", not "now".
    """
    stats = [fields(group / "cpu.stat") for group in groups(root, "cpu")]
    shares = [s.get("nr_throttled", 0) / s["nr_periods"] for s in stats if s.get("nr_periods")]
    return max(shares, default=None)


def memory_limit_bytes(root: Path) -> int | None:
    """Return the strictest memory limit, None where there is none."""
    limits = (_memory_limit(group) for group in groups(root, "memory"))
    return min((limit for limit in limits if limit is not None), default=None)


def memory_left_bytes(root: Path) -> int | None:
    """Return what the tightest level still allows, None where no level has a limit.

    Inactive file cache is charged to a group but given back under pressure, so it counts as
    free, as `kubectl top` and the OOM killer see it.
    """
    left = []
    for group in groups(root, "memory"):
        limit, used = _memory_limit(group), _memory_used(group)
        if limit is not None and used is not None:
            left.append(max(0, limit - used))
    return min(left, default=None)


def available_bytes(root: Path) -> int | None:
    """Return what this job can still take, None where that is unknown.

    It is the kernel's own estimate or what the tightest group leaves, whichever is less.
    """
    free_kib = fields(root / "proc/meminfo").get("MemAvailable")
    left = (None if free_kib is None else free_kib * 1024, memory_left_bytes(root))
    return min((count for count in left if count is not None), default=None)


def ends_as_one(root: Path) -> bool:
    """Return whether the kernel kills a whole group of ours when its memory runs out.

    It kills the largest group with this setting at or below the one whose limit is reached:
    https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.oom.group.
    """
    levels = groups(root, "memory")
    limited = [index for index, group in enumerate(levels) if _memory_limit(group) is not None]
    below = levels[: max(limited, default=-1) + 1]
    return any(number(group / "memory.oom.group") == 1 for group in below)


def _quota(group: Path) -> float | None:
    words = text(group / "cpu.max").split()
    if len(words) == 2:
        quota_us, period_us = whole(words[0]), whole(words[1])
    else:
        quota_us = number(group / "cpu.cfs_quota_us")
        period_us = number(group / "cpu.cfs_period_us")
    if not quota_us or not period_us or quota_us < 0:
        return None
    return quota_us / period_us


def _memory_limit(group: Path) -> int | None:
    limit = number(group / "memory.max")
    if limit is None:
        limit = number(group / "memory.limit_in_bytes")
    return limit if limit is not None and 0 <= limit < _UNLIMITED_BYTES else None


def _memory_used(group: Path) -> int | None:
    stat = fields(group / "memory.stat")
    used = number(group / "memory.current")
    if used is not None:
        return used - stat.get("inactive_file", 0)
    used = number(group / "memory.usage_in_bytes")
    return None if used is None else used - stat.get("total_inactive_file", 0)
