"""The budget: the strictest of mask, quota, Slurm and silicon, in whole physical cores."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

from hasten.machine.cpu import cores_touched
from hasten.machine.slurm import slurm_count, task_count
from hasten.records import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.records import Cpu


def decide(
    *,
    core_count: int | None,
    slurm: int | None,
    quota_cores_ratio: float | None,
    affinity_core_count: int | None,
) -> tuple[int, str]:
    """Return the cores to plan with and the limit that decided.

    The quota is rounded down: the last fraction of a core would get one thread throttled in every
    period, and all others wait for it at the next barrier. A quota is CPU time, of which one
    running thread takes one core's worth whether or not its core has a sibling, so it needs no
    correction for SMT. On a tie the machine itself is named before the limits that people set.

    >>> decide(core_count=32, slurm=None, quota_cores_ratio=7.65, affinity_core_count=32)
    (7, 'quota')
    """
    limits = {
        "cores": core_count,
        "slurm": slurm,
        "quota": None if quota_cores_ratio is None else floor(quota_cores_ratio),
        "affinity": affinity_core_count,
    }
    known = {name: max(1, count) for name, count in limits.items() if count is not None}
    if not known:
        return 1, "unknown"
    decider = min(known, key=known.__getitem__)
    return known[decider], decider


def read_budget(
    cpu: Cpu,
    siblings: Mapping[int, frozenset[int]],
    *,
    affinity: frozenset[int] | None,
    quota_cores_ratio: float | None,
    env: Mapping[str, str],
) -> Budget:
    """Bring every limit together.

    Where the topology is hidden (some sandboxes mask /sys) a logical CPU bounds a core from
    above; it is used as the bound and never reported as a number of cores.
    """
    affinity_cores = None if affinity is None else cores_touched(affinity, siblings)
    affinity_count = None if affinity is None else len(affinity)
    slurm = slurm_count(env)
    core_count, limited_by = decide(
        core_count=cpu.core_count or cpu.thread_count,
        slurm=slurm,
        quota_cores_ratio=quota_cores_ratio,
        affinity_core_count=affinity_cores or affinity_count,
    )
    return Budget(
        core_count=core_count,
        limited_by=limited_by,
        affinity_count=affinity_count,
        affinity_core_count=affinity_cores,
        quota_cores_ratio=quota_cores_ratio,
        slurm_count=slurm,
        task_count=task_count(env),
    )
