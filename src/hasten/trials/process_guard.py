"""The guard: a small program between hasten and one trial, so that no trial outlives hasten.

Started as a Python of its own (`process.py`), it reads one line of JSON from its standard input and
starts a keeper, which isolates itself and starts the user's command. Where the kernel permits, the
keeper is the first process of a pid namespace: its end is the end of everything in it,
fork storms included. Elsewhere both are subreapers (a double fork hides nothing), and end every
descendant by hand.

The trial ends when the command ends, when the guard's standard input closes (hasten died, even by
SIGKILL), when the guard is asked to end, and when the guard itself dies, which the keeper sees.
What the guard knows it says as lines of JSON on its standard output.

Not covered: a process that somebody else starts on the trial's behalf (`systemd-run`, `at`, a
Docker daemon), and a set-user-id program that we may not kill.

Sources: https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html,
https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html,
https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, NamedTuple

from hasten.trials import process_tree
from hasten.trials.isolation.namespaces import lacks
from hasten.trials.isolation.removal import wipe
from hasten.trials.keeper import ENDING, keep, silence, wake_on_signals

_APART = ("overlay", "redirect")  # in a new pid namespace where that is possible


class _Trial(NamedTuple):
    """What the guard holds of a trial.

    Attributes:
        keeper: the process that it ends with.
        apart: whether it has its own pid namespace.
        ended: the pipe in which the keeper tells how the command ended.
        life: the pipe whose closing tells the keeper that the guard is gone.
    """

    keeper: int
    apart: bool
    ended: int
    life: int


def main() -> None:
    """Run one trial from the first line of standard input to the last process."""
    process_tree.leave_terminal()
    commands, reports = os.dup(0), os.dup(1)
    spec: dict[str, Any] = json.loads(sys.stdin.buffer.readline() or sys.exit(1))
    wake = wake_on_signals()
    process_tree.become_subreaper()
    trial, told = _launch(spec, (commands, reports))
    os.close(spec["out"])
    silence(0, 1)
    _report(reports, told)
    status, asked = _watch(trial.keeper, commands, wake)
    late = _end_trial(trial)
    silence(0, 1, 2)  # all that can be written has been: let the reader see the end
    status = late.get(trial.keeper, status)
    if asked and not status:  # the keeper has ended all, and then itself
        status = int(signal.SIGKILL)
    if select.select([trial.ended], [], [], 0)[0] and (said := os.read(trial.ended, 64)):
        status = int(said)
    _report(reports, _exit_record(status))
    for folder in spec["layers"] + ([spec["scratch"]] if asked else []):
        wipe(folder)


def _launch(spec: dict[str, Any], ours: tuple[int, ...]) -> tuple[_Trial, dict[str, Any]]:
    """Start the keeper, apart if the kernel permits it; return what it said."""
    apart = spec["isolation"] in _APART and not lacks("namespaces")
    while True:
        (status, told_end), (ended, ended_end), (alive, life) = os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in (status, ended, life, *ours):
                os.close(descriptor)
            keep(spec, apart, (told_end, ended_end, alive))
        for descriptor in (told_end, ended_end, alive):
            os.close(descriptor)
        told = _status(status)
        if "shared" not in told:
            return _Trial(told.get("keeper", pid), apart, ended, life), told
        apart = False
        os.close(ended)
        os.close(life)


def _status(descriptor: int) -> dict[str, Any]:
    """Return what the child said before it became the user's command."""
    text = b""
    while part := os.read(descriptor, 65536):
        text += part
    os.close(descriptor)
    told: dict[str, Any] = {}
    for line in text.splitlines():
        told.update(json.loads(line))
    return told or {"failure": "the child died before it could start the command"}


def _watch(keeper: int, commands: int, wake: int) -> tuple[int | None, bool]:
    """Wait until the keeper ends, or until asked to end it."""
    while True:
        ended = process_tree.reap()
        if keeper in ended or not process_tree.descendants(os.getpid()):
            return ended.get(keeper), False
        wait_s = 0.0 if len(ended) == process_tree.MOST_REAPED else None
        ready, _, _ = select.select([commands, wake], [], [], wait_s)
        if commands in ready and not os.read(commands, 4096):
            return None, True
        if wake in ready and set(os.read(wake, 4096)) & set(ENDING):
            return None, True


def _end_trial(trial: _Trial) -> dict[int, int]:
    """Let the keeper end the trial, then end what is left; return how our children ended."""
    ended: dict[int, int] = {}
    os.close(trial.life)
    if trial.apart:
        process_tree.kill(trial.keeper, signal.SIGKILL)
    else:
        process_tree.kill(trial.keeper, signal.SIGCONT)
    until_s = time.monotonic() + process_tree.PATIENCE_S
    while trial.keeper in process_tree.descendants(os.getpid()) and time.monotonic() < until_s:
        time.sleep(0.002)
        ended.update(process_tree.reap())
    return {**ended, **process_tree.end_all()}


def _exit_record(status: int | None) -> dict[str, Any]:
    if status is None:
        return {"code": None, "signal": None}
    code = os.waitstatus_to_exitcode(status)
    return {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def _report(descriptor: int, record: dict[str, Any]) -> None:
    try:
        os.write(descriptor, (json.dumps(record) + "\n").encode())
    except OSError:
        return  # nobody is left to read it
