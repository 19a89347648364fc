"""The job script of a training under its plan, for Slurm."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What a job asks Slurm for, and what it runs.

    Attributes:
        command: of each task, such as `hasten run train.py`.
        node_count: nodes.
        task_count: processes on each node.
        cpu_count: CPUs of each process, as Slurm counts them.
        options: further options of sbatch, such as `--time=12:00:00`.
        name: what the job is called, by a path.
    """

    command: Sequence[str]
    node_count: int
    task_count: int
    cpu_count: int
    options: Sequence[str]
    name: str

    @property
    def script(self) -> str:
        """The job script.

        Each process is a task of Slurm's, so that the variables of Slurm and those of torch agree;
        the ranks follow the order of the nodes. A rank that fails ends the job.
        """
        asked = (
            f"--job-name={PurePath(self.name).stem}",
            f"--nodes={self.node_count}",
            f"--ntasks-per-node={self.task_count}",
            f"--cpus-per-task={self.cpu_count}",
            *self.options,
        )
        is_shared = self.node_count * self.task_count > 1
        return "".join(
            (
                "#!/bin/bash\n",
                *(f"#SBATCH {shlex.quote(option)}\n" for option in asked),
                "\n",
                _MEETING if is_shared else "",
                "# srun does not take --cpus-per-task over from sbatch.\n",
                f"exec srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task={self.cpu_count} ",
                _TASK.format(tasks=self.task_count) if is_shared else "\\\n  ",
                shlex.join(self.command),
                "\n",
            )
        )
