"""What a session is built on: the facts of this machine, and a runner of trials."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hasten.trials.deadline import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.records import Machine, Workload
    from hasten.session.options import Options
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.runner import TrialRunner


def doctor(python: str, *, patience_s: float = 60.0) -> Machine:
    """Return the facts of this machine, with those of torch under `python`.

    Args:
        python: the interpreter that runs the script.
        patience_s: how long it may take to answer.
    """
    from hasten import machine

    return machine.read(probe=lambda: machine.probe_torch(python, patience_s))


def glance(python: str = sys.executable) -> Machine:
    """Return the facts that a plan is checked against, without starting torch.

    The version is that of the distribution installed in this Python; for another one, with which a
    program trains, it is unknown.

    Args:
        python: the interpreter that runs the script.
    """
    from importlib.metadata import PackageNotFoundError, version

    from hasten import machine
    from hasten.records import Torch

    try:
        installed = Torch(version=version("torch")) if python == sys.executable else None
    except PackageNotFoundError:
        installed = None
    return machine.read(probe=lambda: installed)


@contextmanager
def open_runner(
    workload: Workload, options: Options, facts: Machine, code: CompiledCode | None = None,
    *, deadline: Deadline = NEVER,
) -> Iterator[TrialRunner]:  # fmt: skip
    """Open the trial runner of a script, isolated as well as this machine permits.

    Args:
        workload: the user's command.
        options: of the session.
        facts: of this machine.
        code: the compiled code that its trials share; None lets each compile for itself.
        deadline: when to stop waiting for its children.
    """
    from hasten.trials.isolation.scratch import sweep
    from hasten.trials.process import best_isolation
    from hasten.trials.runner import TrialRunner
    from hasten.trials.trial_process import TrialProcess

    sweep()
    with TrialRunner(
        workload,
        isolation=best_isolation(workload.cwd),
        patience_s=options.patience_s,
        available_bytes=facts.memory.available_bytes,
        make_trial=partial(TrialProcess, code=code, deadline=deadline, assumed=options.assumed),
    ) as runner:
        yield runner
