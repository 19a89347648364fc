"""What the command line does, as functions that return records.

    import hasten

    found = hasten.profile("train.py --epochs 3")
    tuning = hasten.tune("train.py --epochs 3", budget_s=300.0)
    plan = hasten.load_plan("hasten.toml")

Nothing is printed, and no plan or report is written: `Tuning.plan` is the result.
"""

from __future__ import annotations

import shlex
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import UsageError
from hasten.lever import check_assumptions, check_names, check_plan
from hasten.records import Effect, Plan, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hasten.records import Profiling, Setting, Tuning
    from hasten.report.plan_file import SavedPlan
    from hasten.session import Options, Watcher


def profile(
    command: str | Sequence[str],
    *,
    step_count: int | None = None,
    settings: Mapping[str, Setting] | None = None,
    assume: Iterable[str] = (),
    startup_timeout_s: float = 60.0,
    sandbox: bool = True,
    python: str = sys.executable,
    watcher: Watcher | None = None,
) -> Profiling:
    """Measure where the time of a script's steps goes, and why; the script is not changed.

    Args:
        command: the script and its own arguments, as a line of a shell or as words.
        step_count: how many steps to observe; None lets the time decide.
        settings: levers set by hand, by name.
        assume: what cannot be proved and is granted, by name.
        startup_timeout_s: seconds to wait for the first training step.
        sandbox: refuse to start where the kernel cannot keep a trial from the files.
        python: the interpreter that trains.
        watcher: hears of the progress.

    Raises:
        UsageError: there is no such script, lever or assumption.
        ScriptFailed: the script does not train.
        IsolationFailed: a trial cannot be kept from the user's files.
    """
    from hasten import session
    from hasten.report.combined_watcher import CombinedWatcher

    wanted = options(
        settings=settings, assume=assume, startup_timeout_s=startup_timeout_s, sandbox=sandbox,
        step_count=step_count,
    )  # fmt: skip
    return session.profile(_workload(command, python), wanted, watcher or CombinedWatcher())


def tune(
    command: str | Sequence[str],
    *,
    budget_s: float = 300.0,
    numerics: Effect | str = Effect.DISTRIBUTION,
    train_time_s: float | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    settings: Mapping[str, Setting] | None = None,
    assume: Iterable[str] = (),
    startup_timeout_s: float = 60.0,
    sandbox: bool = True,
    python: str = sys.executable,
    watcher: Watcher | None = None,
) -> Tuning:
    """Search for what makes a script faster on this machine, prove it and confirm it.

    Args:
        command: the script and its own arguments, as a line of a shell or as words.
        budget_s: seconds that all of it may take.
        numerics: the most that a lever may do to the numbers.
        train_time_s: seconds that the training will take; None if unknown.
        only: levers to try; all where there are none.
        skip: levers not to try.
        settings: levers set by hand, by name; one that is False is skipped.
        assume: what cannot be proved and is granted, by name.
        startup_timeout_s: seconds to wait for the first training step.
        sandbox: refuse to start where the kernel cannot keep a trial from the files.
        python: the interpreter that trains.
        watcher: hears of the progress.

    Returns:
        The plan with its speedup, proof and cost; an empty plan where nothing helps.

    Raises:
        UsageError: there is no such script, lever or assumption, or the budget holds no answer.
        ScriptFailed: the script does not train.
        IsolationFailed: a trial cannot be kept from the user's files.
    """
    from hasten import session
    from hasten.report.combined_watcher import CombinedWatcher

    wanted = options(
        budget_s=budget_s, numerics=Effect(numerics), train_time_s=train_time_s, only=only,
        skip=skip, settings=settings, assume=assume, startup_timeout_s=startup_timeout_s,
        sandbox=sandbox,
    )  # fmt: skip
    return session.tune(_workload(command, python), wanted, watcher or CombinedWatcher())


def load_plan(path: str | Path = "hasten.toml") -> SavedPlan:
    """Return a plan file as a record.

    Args:
        path: the file that `hasten tune` wrote.

    Raises:
        PlanError: it is missing, broken, or names a lever that is not known.
    """
    from hasten.report import plan_file

    return plan_file.read_plan(Path(path))


def options(
    *,
    budget_s: float = 300.0,
    spent_s: float = 0.0,
    first_s: float = inf,
    numerics: Effect = Effect.DISTRIBUTION,
    train_time_s: float | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    settings: Mapping[str, Setting] | None = None,
    assume: Iterable[str] = (),
    startup_timeout_s: float = 60.0,
    sandbox: bool = True,
    step_count: int | None = None,
) -> Options:
    """Return what was asked for, checked before anything is started.

    Raises:
        UsageError: this is not Linux.
        PlanError: a lever or an assumption is not known, or does not take its setting.
    """
    from hasten import session

    check_system()
    only, skip, assume = frozenset(only), frozenset(skip), frozenset(assume)
    settings = settings or {}
    check_names([*sorted(only), *sorted(skip), *settings])
    skip |= {name for name, setting in settings.items() if setting is False}
    applied = Plan()
    for name, setting in settings.items():
        applied = applied.with_lever(name, setting)
    check_plan(applied)
    check_assumptions(sorted(assume))
    return session.Options(
        budget_s=budget_s,
        spent_s=spent_s,
        first_s=first_s,
        numerics=numerics,
        only=only,
        skip=skip,
        applied=applied,
        patience_s=startup_timeout_s,
        training_s=train_time_s,
        step_count=step_count,
        unprotected=not sandbox,
        assumed=assume,
    )


def check_system() -> None:
    """Refuse systems other than Linux.

    Raises:
        UsageError: this is one.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"hasten works on Linux, and this is {sys.platform}.",
            remedy="Use a Linux machine, a container on it, or WSL.",
        )


def _workload(command: str | Sequence[str], python: str) -> Workload:
    from hasten.workload import read_workload

    words = shlex.split(command) if isinstance(command, str) else list(command)
    return read_workload(words, python=python)
