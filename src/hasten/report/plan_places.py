"""Which files a tuning may write its plan and its report to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hasten.errors import PlanError, UsageError, shown
from hasten.report.plan_file import other_script, parsed, read_plan
from hasten.report.plan_state import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from hasten.records import Tuning, Workload

_REPORT_HEADING = "hasten tune"
_MOVE_AWAY = "Choose another --plan, or move that file away."
_WRITE_OVER = "Choose another --plan, or add --force to write over it."


def report_path(path: Path) -> Path:
    """Return where the full report lies that belongs to a plan."""
    return path.with_name(f"{path.stem}-report.txt")


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.stem}-unconfirmed{path.suffix}")


def beside(path: Path) -> list[Path]:
    """Return what a tuning may write beside its plan."""
    return [report_path(path), _aside(path), report_path(_aside(path))]


def guard(path: Path, workload: Workload) -> None:
    """Refuse to overwrite what a tuning may write over and what it has not written for this script.

    Raises:
        UsageError: a plan or report there, or beside it, is another script's or no file of ours.
    """
    for plan in (path, _aside(path)):
        guard_plan(plan, workload)
        if not _is_replaceable(report_path(plan)):
            raise UsageError(
                f"{report_path(plan)} is there already and is not a report of hasten.",
                remedy=_MOVE_AWAY,
            )


def _is_replaceable(report: Path) -> bool:
    """Return whether a report may be written there: nothing is there, or an older report."""
    try:
        if not report.is_file():
            return not os.path.lexists(report)
        with report.open(encoding="utf-8", errors="replace") as text:
            return text.read(len(_REPORT_HEADING)) == _REPORT_HEADING
    except OSError:
        return False


def guard_plan(path: Path, workload: Workload) -> None:
    """Refuse to overwrite a file that is not a plan of ours for this script.

    Raises:
        UsageError: the file is something else, a plan written by hand, or another script's.
    """
    try:
        content = parsed(path) if path.is_file() or not os.path.exists(path) else {}
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        content = {}
    if not {"schema", "plan"} <= content.keys():
        raise UsageError(
            f"{path} is there already and is not a plan of hasten.",
            remedy=_MOVE_AWAY,
        )
    if "evidence" not in content:
        raise UsageError(
            f"{path} is a plan that was written or edited by hand: it has no [evidence].",
            remedy=_WRITE_OVER,
        )
    if other := other_script(path, workload):
        problem = f"{path} is the plan of another script: {shown(other)}."
        raise UsageError(problem, remedy=_WRITE_OVER)


def place_for(path: Path, tuning: Tuning, *, force: bool = False) -> Path:
    """Return where to write the plan of a tuning.

    The plan of an undecided tuning goes beside a plan that is better proved, or beside a file
    that does not give its state, such as one written by hand. So does an empty plan, where levers
    were left untried. One of another script that has come there since is written over by `force`.
    """
    if other_script(path, tuning.workload):
        return path if force else _aside(path)
    is_empty = tuning.is_partial and tuning.finds_nothing
    if not (tuning.undecided or is_empty) or not path.is_file():
        return path
    try:
        there = read_plan(path).state
    except PlanError:
        there = None
    if there is not None and there.strength_index <= state_of(tuning).strength_index:
        return path
    return _aside(path)
