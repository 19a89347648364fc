"""The job script of a training under its plan, for Slurm."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# The batch script runs on the first node. Two jobs there have different numbers, so other ports.
_MEETING = """\
# Where the processes meet: RANK and the like are what torchrun sets, and PET_ what it reads.
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT PET_NNODES=$SLURM_JOB_NUM_NODES
"""
_TASK = """\
bash -c '
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export LOCAL_WORLD_SIZE={tasks} GROUP_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID
exec "$@"' task \\
  """


def job_script(
    command: Sequence[str], *, nodes: int, tasks: int, cpus: int, options: Sequence[str], name: str
) -> str:
    """Return the job script.

    Each process is a task of Slurm's, so that the variables of Slurm and those of torch agree;
    the ranks follow the order of the nodes. A rank that fails ends the job.

    Args:
        command: of each task, such as `hasten run train.py`.
        nodes: how many.
        tasks: processes on each node.
        cpus: of each process, as Slurm counts them.
        options: further options of sbatch, such as `--time=12:00:00`.
        name: what the job is called, by a path.
    """
    asked = (
        f"--job-name={PurePath(name).stem}",
        f"--nodes={nodes}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus}",
        *options,
    )
    is_shared = nodes * tasks > 1
    return "".join(
        (
            "#!/bin/bash\n",
            *(f"#SBATCH {shlex.quote(option)}\n" for option in asked),
            "\n",
            _MEETING if is_shared else "",
            "# srun does not take --cpus-per-task over from sbatch.\n",
            f"exec srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task={cpus} ",
            _TASK.format(tasks=tasks) if is_shared else "\\\n  ",
            shlex.join(command),
            "\n",
        )
    )
