"""What a session is built on: the facts of this machine, and a runner of trials."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import UsageError
from hasten.records import Entry
from hasten.trials.deadline import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.records import Machine, Workload
    from hasten.session.options import Options
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.runner import TrialRunner


_ASKS = "from importlib.metadata import version; print(version('torch'))"
_PATIENCE_S = 20.0


def doctor(python: str, *, patience_s: float = 60.0) -> Machine:
    """Return the facts of this machine, with those of torch under `python`.

    Args:
        python: the interpreter that runs the script.
        patience_s: how long it may take to answer.
    """
    from hasten import machine

    return machine.read(probe=lambda: machine.probe_torch(python, patience_s))


def glance(workload: Workload) -> Machine:
    """Return the facts that a plan is checked against, without starting torch.

    The version is that of the distribution installed in the Python that runs the script. Where a
    program chooses another one than ours, it is unknown.

    Args:
        workload: the user's command.
    """
    from hasten import machine
    from hasten.records import Torch

    version = _torch_version(workload)
    installed = None if version is None else Torch(version=version)
    return machine.read(probe=lambda: installed)


def _torch_version(workload: Workload) -> str | None:
    """Return the version of the installed torch; None where there is none, or nobody knows."""
    from importlib.metadata import PackageNotFoundError, version

    if workload.python == sys.executable:
        with suppress(PackageNotFoundError):
            return version("torch")
        return None
    if workload.entry is Entry.COMMAND:
        return None
    try:
        asked = subprocess.run(
            [workload.python, "-c", _ASKS], capture_output=True, text=True, check=False,
            timeout=_PATIENCE_S, stdin=subprocess.DEVNULL, cwd=workload.cwd,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):  # whoever starts it will say so
        return None
    return asked.stdout.strip() or None


def kept_code(workload: Workload) -> Path | None:
    """Return where the code compiled for a script outlives its tuning.

    None where there is no cache, or where the processor is unknown: code for another one can end
    the process (`-march=native`), and several machines may share a home.

    Args:
        workload: the user's command; its folder and first word decide.
    """
    from hasten.machine.cpu import processor_kind
    from hasten.report import archive

    kind = processor_kind(Path("/"))
    if kind is None:
        return None
    try:
        place = archive.folder().parent / "compiled"
    except UsageError:
        return None
    script = os.path.join(workload.cwd, workload.argv[0])
    return place / hashlib.sha256(os.fsencode(f"{kind}\n{script}")).hexdigest()[:16]


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
