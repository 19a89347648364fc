"""What a session is built on: the facts of this machine, and a runner of trials."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import IsolationFailed, UsageError
from hasten.records import Entry
from hasten.trials.deadline import NEVER

if TYPE_CHECKING:
    from hasten.records import Machine, Torch, Workload
    from hasten.session.options import Options, Watcher
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.runner import TrialRunner

_LACK = "Neither the overlay nor Landlock works here"
_ASKS = "from importlib.metadata import version; print(version('torch'))"
_PATIENCE_S = 20.0
_LEAST_CORES = 2


class MachineSurvey:
    """The facts of this machine, and those of torch under `python` once it has answered.

    To ask torch takes seconds. A script may be started meanwhile where each has a core; beside an
    accelerator it waits, or its own use would look like that of others.

    Attributes:
        machine: the facts without torch, as they were before a script was started.
    """

    def __init__(self, python: str, *, patience_s: float = 60.0) -> None:
        from hasten import machine

        self.machine = machine.read()
        self._probe = machine.TorchProbe(python)
        self._until_s = time.monotonic() + patience_s
        self._complete: Machine | None = None
        if self.machine.budget.core_count < _LEAST_CORES or self.machine.device_files:
            try:
                self._complete = machine.with_torch(self.machine, self._told())
            finally:
                self._probe.end()

    def __enter__(self) -> MachineSurvey:
        return self

    def __exit__(self, *ended: object) -> None:
        self._probe.end()

    def complete(self) -> Machine:
        """Wait for torch, and return all facts."""
        from hasten import machine

        if self._complete is None:
            torch = self._told()
            if torch is not None:  # by now the script may be one that holds and uses the device
                torch = replace(torch, accelerator_busy_ratio=None, accelerator_free_bytes=None)
            self._complete = machine.with_torch(self.machine, torch)
        return self._complete

    def _told(self) -> Torch | None:
        return self._probe.answer(self._until_s - time.monotonic())


def doctor(python: str) -> Machine:
    """Return the facts of this machine, and those of torch under `python` if it answers in time."""
    from hasten import machine

    return machine.with_torch(machine.read(), machine.probe_torch(python))


def glance(workload: Workload) -> Machine:
    """Return the facts that a plan is checked against, without starting torch.

    The version is that of the distribution installed in the Python that runs the script. Where a
    program chooses another one than ours, it is unknown.
    """
    from hasten import machine
    from hasten.records import Torch

    version = _torch_version(workload)
    installed = None if version is None else Torch(version=version)
    return machine.with_torch(machine.read(), installed)


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


def protect(workload: Workload, options: Options, view: Watcher) -> tuple[str, ...]:
    """Make sure that trials cannot change the user's files, or that the user permits it.

    Returns:
        Notes for the report.

    Raises:
        IsolationFailed: they could change files, and the user has not permitted it.
    """
    from hasten.trials.process import Isolation, best_isolation

    if best_isolation(workload.cwd) is not Isolation.PYTHON:
        return ()
    if not options.unprotected:
        raise IsolationFailed(
            f"{_LACK}: {workload.argv[0]} could change your files in every trial.",
            remedy="Permit user namespaces, or work on a copy of the folder and add --no-sandbox.",
        )
    note = (
        f"{_LACK}: Python's own writes are redirected, those of native libraries and of other "
        "programs reach the real files."
    )
    view.note(note)
    return (note,)


def open_runner(
    workload: Workload, options: Options, facts: Machine, code: CompiledCode | None = None,
    *, deadline: Deadline = NEVER,
) -> TrialRunner:  # fmt: skip
    """Open the trial runner of a script, isolated as well as this machine permits.

    Without `code` to share, each trial compiles for itself.
    """
    from hasten.trials.isolation.scratch import sweep
    from hasten.trials.process import best_isolation
    from hasten.trials.runner import TrialRunner
    from hasten.trials.trial_process import TrialProcess

    sweep()
    return TrialRunner(
        workload,
        isolation=best_isolation(workload.cwd),
        patience_s=options.patience_s,
        available_bytes=facts.memory.available_bytes,
        make_trial=partial(TrialProcess, code=code, deadline=deadline, assumed=options.assumed),
    )
