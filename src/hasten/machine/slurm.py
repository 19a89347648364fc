"""What Slurm says it has allocated to this task.

Slurm counts CPUs, and what a CPU is depends on slurm.conf, which a job cannot read with
confidence: a core on some clusters, a hardware thread on most with SMT. A Slurm CPU is never
more than one physical core, so the count is an *upper bound* on cores and is used as that.
Where Slurm binds its tasks (task/affinity, task/cgroup), four hardware threads appear in the
affinity mask as two cores, and the mask makes the budget exact. Where it does not bind, as many
runnable threads as Slurm counts CPUs are what was allocated, and nothing finer is known.
`SLURM_THREADS_PER_CORE` is a request and not the unit of the count, so it is left alone.
https://slurm.schedmd.com/srun.html (output environment variables), https://slurm.schedmd.com/mc_support.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hasten.kernel_files import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUN = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def slurm_count(env: Mapping[str, str]) -> int | None:
    """Return the CPUs that Slurm gave this task on this node, None where it is not clear."""
    asked = whole(env.get("SLURM_CPUS_PER_TASK"))
    if asked and asked > 0:
        # A batch script runs in no step, on the first node, with the CPUs of all tasks there.
        is_step = "SLURM_STEP_TASKS_PER_NODE" in env
        tasks = () if is_step else per_node(env.get("SLURM_TASKS_PER_NODE", ""))
        return asked * (tasks[0] if tasks else 1)
    if min(per_node(env.get("SLURM_STEP_TASKS_PER_NODE", "")), default=1) > 1:
        return None  # the node's count is not one task's
    # Where nodes differ, nothing says for certain which of them this is.
    return min(per_node(env.get("SLURM_JOB_CPUS_PER_NODE", "")), default=None)


def task_count(env: Mapping[str, str]) -> int:
    """Return the tasks of this step on a node, the most where nodes differ; 1 outside a step."""
    return max((1, *per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))))


def per_node(listing: str) -> tuple[int, ...]:
    """Return Slurm's compact list of counts, one per node; empty where it cannot be read.

    >>> per_node("4(x2),2")
    (4, 4, 2)
    """
    counts: list[int] = []
    for part in listing.split(","):
        run = _RUN.fullmatch(part.strip())
        if run is None:
            return ()
        counts += [int(run[1])] * int(run[2] or 1)
    return tuple(counts)
