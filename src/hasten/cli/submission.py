"""`hasten submit`: a job of Slurm that trains under the plan."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli import arguments as args  # noqa: TC001  # typer reads them
from hasten.cli.reports import PLAN
from hasten.errors import PlanError, UsageError
from hasten.records import Entry
from hasten.workload import read_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Workload
    from hasten.report.plan_file import SavedPlan

_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# What the job says by itself; with these, the nodes would train apart.
_SET_BY_JOB = (
    "--standalone",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv",
)
_Cpus = Annotated[
    int | None,
    typer.Option(
        "--cpus-per-task",
        min=1,
        metavar="COUNT",
        help="CPUs of each process.",
        show_default="those of the plan",
    ),
]


def submit(
    script: args.Words,
    *,
    nodes: Annotated[int, typer.Option(min=1, metavar="COUNT", help="How many nodes.")] = 1,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks-per-node",
            min=1,
            metavar="COUNT",
            help="How many processes on each node; each is told its rank as by torchrun.",
        ),
    ] = 1,
    cpus: _Cpus = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION", help="An option for sbatch: --sbatch --time=12:00:00. Repeatable."
        ),
    ] = None,
    share_batches: args.ShareBatches = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job script; submit nothing.")
    ] = False,
    plan: args.PlanPath = None,
    force: args.Force = False,
    python: args.Interpreter = sys.executable,
) -> None:
    """Submit a Slurm job that trains under the plan.

    Each process of the job is `hasten run`. With several, the script must train with
    torch.distributed, or be started by torchrun (one on each node); a script that trains in one
    process takes --share-batches.
    """
    from hasten.report.slurm_job import job_script

    workload = read_workload(script, python=python)
    _check_launcher(workload, nodes=nodes, tasks=tasks)
    own = []
    if share_batches:
        _check_shareable(workload, nodes * tasks)
        own.append("--share-batches")
    path = plan or PLAN
    saved = _checked_plan(path, workload, force=force)
    if force:
        own.append("--force")
    job = job_script(
        _command(workload, path, own),
        nodes=nodes,
        tasks=tasks,
        cpus=_cpu_count(path, saved, cpus, force=force),
        options=sbatch or (),
        name=next((w for w in workload.argv if w.endswith(".py")), workload.argv[0]),
    )
    if dry_run:
        typer.echo(os.fsencode(job), nl=False)
        return
    raise typer.Exit(_hand_in(job))


def _command(workload: Workload, path: Path, options: Sequence[str]) -> list[str]:
    from hasten.report.wording import words

    own = [sys.executable, "-m", "hasten", "run", "--plan", os.path.abspath(path), *options]
    if workload.python != sys.executable and workload.entry is not Entry.COMMAND:
        own += ["--python", workload.python]
    return [*own, *words(workload)]


def _checked_plan(path: Path, workload: Workload, *, force: bool) -> SavedPlan:
    """Return a plan that `hasten run` would not refuse for what is known before the job starts."""
    from hasten.report.plan_file import doubts, other_script, read_plan

    if not os.path.exists(path):  # `Path.exists` raises where a folder may not be entered
        remedy = "Run `hasten tune` with your script first, on a node of the kind that trains."
        raise UsageError(f"There is no plan: {path} cannot be found.", remedy=remedy)
    saved = read_plan(path)
    if force:
        return saved
    if other := other_script(path, workload):
        remedy = "Run `hasten tune` with this script first, name its plan with --plan, or --force."
        raise PlanError(f"{path} is the plan of {other}.", remedy=remedy)
    if refusals := [doubt.message for doubt in doubts(saved) if doubt.refuses]:
        raise PlanError(" ".join(refusals), remedy="Run `hasten tune` again, or add --force.")
    return saved


def _cpu_count(path: Path, saved: SavedPlan, asked: int | None, *, force: bool) -> int:
    """Return what Slurm is asked for each process: a CPU may be a core or a hardware thread."""
    cores, cpus = (saved.machine.get(name) for name in ("cores", "slurm_cpus"))
    known = cpus if isinstance(cpus, int) else cores
    if asked is None:
        if not isinstance(known, int):
            problem = f"{path} does not say for how many cores it was tuned."
            raise UsageError(problem, remedy="Add --cpus-per-task.")
        return known
    if isinstance(cores, int) and asked < cores and not force:
        raise PlanError(
            f"The plan was tuned for {cores} cores, and each process would have {asked} at most.",
            remedy="Leave out --cpus-per-task, run `hasten tune` on so many cores, or add --force.",
        )
    return asked


def _check_launcher(workload: Workload, *, nodes: int, tasks: int) -> None:
    """Refuse a launcher that starts processes by itself in a way that the job cannot join.

    Raises:
        UsageError: it would train several times over.
    """
    own = list(takewhile(lambda word: not word.endswith(".py"), workload.argv))
    launcher = next((word for word in own if PurePath(word).name in _LAUNCHERS), None)
    if launcher is None or nodes * tasks == 1:
        return
    if tasks > 1:
        raise UsageError(
            f"{launcher} starts the processes of a node itself, and would do so in each of {tasks} "
            "tasks.",
            remedy="Leave out --tasks-per-node, or name the script in place of the launcher.",
        )
    for word in own:
        if word.replace("_", "-").startswith(_SET_BY_JOB):
            remedy = "Leave it out: the job tells torchrun its nodes by PET_NNODES and the like."
            raise UsageError(f"With {word} the nodes would not meet.", remedy=remedy)


def _check_shareable(workload: Workload, process_count: int) -> None:
    """Refuse what `hasten run --share-batches` would refuse once the job has started.

    Raises:
        UsageError: there is nobody to share with, or what starts need not be what trains.
    """
    from hasten import session

    if process_count == 1:
        problem = "One process shares its batches with nobody."
        raise UsageError(problem, remedy="Add --nodes or --tasks-per-node.")
    session.check_entry(workload)


def _hand_in(text: str) -> int:
    """Give a job script to sbatch; return its exit code."""
    try:
        return subprocess.run(["sbatch"], input=os.fsencode(text), check=False).returncode
    except OSError:  # there is none, or a folder of PATH may not be entered
        raise UsageError(
            "There is no sbatch here.",
            remedy="Submit from a login node, or write the job script with --dry-run.",
        ) from None
