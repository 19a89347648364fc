"""The plan as a diff of the user's own source, for those who would rather edit the script.

Each edit does what the lever does, as far as the source text can tell; otherwise the lines are
shown to the user, or the reason why there are none. Files are only read, never run or written.
"""

from __future__ import annotations

import platform
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.lever import by_hand, lookup
from hasten.records import Entry
from hasten.report.edits.job import Job
from hasten.report.edits.kinds import autocast, loaders, models, optimizers, process
from hasten.report.edits.project import read_project

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hasten.lever import Lever
    from hasten.records import Plan, Traits, Workload
    from hasten.report.edits.job import Edit

_OURS = "HASTEN_"  # of a library that is not installed here any more
# An edit of one of these moves lines that the others look for, or asks what became of others: it
# comes last.
_LAST: tuple[Edit, ...] = (
    process.intra_op_threads,
    models.channels_last,
    models.torch_compile,
    autocast.autocast,
    process.garbage_collector,
)
_ALL: tuple[Edit, ...] = (
    process.flush_denormals,
    optimizers.foreach_optimizer,
    process.fp32_precision,
    optimizers.fused_optimizer,
    loaders.loader_workers,
    process.malloc_retention,
    loaders.redrawing_workers,
    *_LAST,
)
EDITS: Mapping[str, Edit] = {
    f"{edit.__module__.rpartition('.')[2]}.{edit.__name__}": edit for edit in _ALL
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What to change by hand.

    Attributes:
        diff: for `patch -p1`; empty where no file changes.
        notes: sentences, some with lines of code below them.
        missing: levers of the plan that the diff does not write, or not everywhere.
    """

    diff: str
    notes: tuple[str, ...]
    missing: tuple[str, ...] = ()


def write_edits(
    workload: Workload,
    plan: Plan,
    *,
    traits: Traits,
    env: Mapping[str, str],
    python_version: str = "",
) -> Edits:
    """Write a plan into the source of a workload that would be started in an environment.

    What the tuning did not see of the script is not written. An empty `python_version` is this one.

    Raises:
        UsageError: the script is not a Python file, or cannot be read.
        PlanError: the plan names a lever that is not installed here.
    """
    if not plan.settings:
        return Edits(diff="", notes=("The plan is empty: there is nothing to write.",))
    project = read_project(workload)
    notes = list(project.unread)
    unwritten: list[str] = []
    jobs = [
        (
            lever,
            Job(
                project=project, lever=lever.name, setting=setting,
                lines=by_hand(lever, setting, traits),
                plan=plan, traits=traits, notes=notes, unwritten=unwritten,
                python=python_version or platform.python_version(),
            ),
        )
        for lever, setting in lookup(plan)
    ]  # fmt: skip
    variables = _edit_all(jobs, env)
    diff = project.diff()
    if diff and unwritten:
        notes.append(
            "The published speedup does not hold for this diff, which lacks all or part of "
            f"{' and '.join(unwritten)}."
        )
    if variables:
        notes.append(f"Start the script like this:\n    {_command(variables, workload)}")
    if diff and project.root != project.folder:
        notes.append(f"Apply the diff in {project.root}: patch -p1 -d {project.root}")
    return Edits(diff=diff, notes=tuple(notes), missing=tuple(unwritten))


def _edit_all(jobs: list[tuple[Lever[Any], Job]], env: Mapping[str, str]) -> dict[str, str]:
    """Write every lever; return the variables of those that are set in the environment."""
    variables: dict[str, str] = {}
    for lever, job in sorted(jobs, key=_turn):
        if lever.edit:
            _edit(EDITS[lever.edit], job)
            continue
        given = lever.env(env, job.setting).items()
        added = {key: value for key, value in given if env.get(key) != value}
        if added and not any(key.startswith(_OURS) for key in added):
            variables |= added
        else:
            _explain(lever, job)
    return variables


def _turn(one: tuple[Lever[Any], Job]) -> tuple[int, str]:
    """Return the sort key of an edit: some move lines that others look for."""
    lever, edit = one[0], EDITS.get(one[0].edit)
    return (_LAST.index(edit) + 1 if edit in _LAST else 0, lever.name)


def _edit(edit: Edit, job: Job) -> None:
    """Write one lever; if its edit fails, undo it and leave this lever to the user."""
    before = [(source, source.tree, set(source.added)) for source in job.project.sources]
    noted_count = len(job.notes)
    try:
        edit(job)
    except Exception as error:
        for source, tree, added in before:
            source.tree, source.added = tree, added
        del job.notes[noted_count:]
        job.paste(f"the edit does not understand these files ({type(error).__name__})")


def _explain(lever: Lever[Any], job: Job) -> None:
    if lever.run_only:
        job.keep_running(lever.run_only)
        return
    survey = job.survey()
    sites = survey.called(*lever.edited_calls)
    job.paste("no edit is made for this lever", at=survey.places(sites))


def _command(variables: Mapping[str, str], workload: Workload) -> str:
    lead = {Entry.SCRIPT: ("python",), Entry.MODULE: ("python", "-m")}.get(workload.entry, ())
    told = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*told, shlex.join((*lead, *workload.argv))])
