"""What to say about a script that did not end as it should."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from hasten.errors import (
    HastenError,
    IsolationFailed,
    LeverRefused,
    LeverStopped,
    NeverTrains,
    NoRoom,
    ScriptFailed,
    TooFewSteps,
)
from hasten.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hasten.trials.process import Exit, Process

_NO_ROOM = "No space left on device"
# torch's own name for what its workers keep in /dev/shm, which TMPDIR does not move.
_SHARED_MEMORY = "</torch_"
# What torch says to a script that asks for a device which is not here.
_NO_DEVICE = (
    "not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available",
    "has no attribute '_cuda_", "without CUDA support", "torch.cuda.is_available() is False",
    "accelerator device when none is available",
)  # fmt: skip
_LACKS = (
    (  # torch's own error, and those of libraries below it; Python's own is a MemoryError
        re.compile(
            r"OutOfMemoryError: |(CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|"
            r"MPS backend out of memory"
        ),
        "The script ran out of the accelerator's memory",
        "End what else uses it, or give the script smaller batches.",
    ),
    (  # a device that serves one process at a time, and has one
        re.compile(r"(CUDA|HIP) error: .*\bbusy or unavailable"),
        "Another process has the accelerator for itself",
        "Wait for that process, or choose another device.",
    ),
    (
        re.compile(r"EADDRINUSE|[Aa]ddress already in use|another process is utilizing it"),
        "Another process has a port that the script needs",
        "End that process, or give the script another port.",
    ),
)
"""What one process has and another lacks: how it is told, and the remedy."""
_RUN_IT = "Make it run under plain python first."
# What the C library and the program of that name say to who asks a file or a pipe.
_NO_TERMINAL = ("Inappropriate ioctl for device", "stty:")
_WITHOUT_TERMINAL = (
    "Make it run under `python train.py </dev/null | cat`: a trial prints to a pipe, and has a "
    "terminal as its standard input only where hasten has one."
)
_READ_ONLY = "[Errno 30] Read-only file system"
_WITHOUT_SANDBOX = (
    "If plain python may write there, use --no-sandbox: this file system cannot be overlaid, and "
    "what Python writes is redirected then."
)
MORE_WORK = "Give the script more work, for example more epochs or more data."
_TAIL_LINE_COUNT = 40


def tail_of(process: Process) -> str:
    """Return the last lines that a script wrote to its standard error, else to its output."""
    text = process.errors() or process.output()
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINE_COUNT:])


def never_trained(
    process: Process, *, reached: bool, imported_torch: bool, forked: bool, ranks: tuple[int, int],
    place: str, patience_s: float, folder: Path,
) -> HastenError:  # fmt: skip
    """Return why a trial has not reached its first training step.

    Args:
        process: of the trial.
        reached: whether hasten was loaded at all.
        imported_torch: whether some process of the trial did.
        forked: whether a process that is not followed, since it was forked, has made a step.
        ranks: how many processes of its training have made a step, and of how many.
        place: where it is if it still runs, as a sentence.
        patience_s: how long the wait was.
        folder: where what trials write lies.
    """
    error = bad_exit(process, when="before its first training step", folder=folder)
    if error is not None:
        return error
    if not reached:
        problem = (
            "The command starts no Python that hasten can reach by PYTHONPATH: a script that "
            "resets it (`PYTHONPATH=. python train.py`), a Python before 3.11, `python -I`, "
            "`-E` or `-S`, or `env -i` keeps hasten out."
        )
        remedy = (
            "Write `PYTHONPATH=.:$PYTHONPATH` there, train with Python 3.11 or later, "
            "and drop these options while you tune."
        )
    elif forked:
        problem = "The script trains in processes that it forks, which hasten does not follow."
        remedy = "Let it start them by torchrun or `mp.spawn` while you tune."
    elif process.exit is not None:
        problem = "The script ended without an optimizer step or a backward pass."
        remedy = "Give the command that really trains, with its arguments."
    elif ranks[0]:
        problem = (
            f"{ranks[0]} of the {ranks[1]} processes that train together made a training step in "
            f"{patience_s:.0f} s, and hasten waits for all."
        )
        remedy = (
            "Tune without those that only evaluate, or raise --startup-timeout if they are "
            "slow to start."
        )
    else:
        seen = "" if imported_torch else " and no import of torch"
        problem = (
            f"There was no optimizer step or backward pass in {patience_s:.0f} s{seen}: "
            f"the script does not train, waits for something, or is slow to start.{place}"
        )
        remedy = "Raise --startup-timeout if it needs longer to start."
    return NeverTrains(problem, remedy=remedy, output=tail_of(process))


def bad_exit(process: Process, *, when: str, folder: Path) -> HastenError | None:
    """Return the error for how a trial ended; None if it ended well or still runs.

    Raises:
        IsolationFailed: it was started outside of the isolation, or its guard was ended.
    """
    process.raise_if_outside()
    if process.exit is None:
        return None
    return error_of(
        process.exit, when=when, tail=tail_of(process), refused=process.refused, folder=folder
    )


def too_short(life_count: int, needed_count: int) -> TooFewSteps:
    """Return the error for a script that ends too soon for a measurement."""
    return TooFewSteps(
        f"The script ended after {counted(life_count, 'training step')}, and a measurement "
        f"needs at least {needed_count}.",
        remedy=MORE_WORK,
        step_count=life_count,
    )


def error_of(
    ended: Exit, *, when: str, tail: str, refused: Sequence[str], folder: Path
) -> HastenError | None:
    """Return the error for how a script ended; None if it ended well.

    Args:
        ended: how it ended.
        when: after how many steps, in words.
        tail: the last lines that it printed.
        refused: what it could not write because that cannot be redirected.
        folder: where what trials write lies.
    """
    if refused:
        return IsolationFailed(
            f"The script writes to {refused[0]}, which cannot be redirected.",
            remedy="Tune a copy of it that writes elsewhere, or permit user namespaces.",
            output=tail,
        )
    if ended.failure:
        return ScriptFailed(
            f"The command cannot be started: {ended.failure}.", remedy="Check its path."
        )
    if not (ended.code or ended.signal):
        return None
    if any(_NO_ROOM in line and _SHARED_MEMORY not in line for line in tail.splitlines()):
        return ScriptFailed(
            f"The script ran out of disk space {when}: "
            f"what trials write is in {folder} until they end.",
            remedy="Set TMPDIR to a folder on a larger disk.",
            output=tail,
        )
    for pattern, lack, remedy in _LACKS:
        if pattern.search(tail):
            return NoRoom(f"{lack} {when}.", remedy=remedy, output=tail)
    if why := _stopped_by(tail):
        return LeverRefused(
            f"It leaves this script as it is: {why}.",
            remedy="Set the lever otherwise, or not at all.",
        )
    problem, remedy = _signalled(ended.signal, when) if ended.signal else _failed(ended, when, tail)
    return ScriptFailed(problem, remedy=remedy, output=tail)


def _signalled(number: int, when: str) -> tuple[str, str]:
    memory = " (out of memory?)" if number == signal.SIGKILL else ""
    known = number in list(signal.Signals)  # real-time signals have no names
    name = signal.Signals(number).name if known else f"signal {number}"
    return f"The script was ended by {name}{memory} {when}.", _RUN_IT


def _failed(ended: Exit, when: str, tail: str) -> tuple[str, str]:
    if "the script asks for input" in tail:
        problem = f"The script asks for input (exit code {ended.code}) {when}."
        return problem, "Give the answers as arguments: nobody answers in a trial."
    if any(words in tail for words in _NO_TERMINAL):
        problem = f"The script asks for a terminal (exit code {ended.code}) {when}."
        return problem, _WITHOUT_TERMINAL
    if _READ_ONLY in tail:
        problem = f"The script writes where trials may not (exit code {ended.code}) {when}."
        return problem, _WITHOUT_SANDBOX
    if any(words in tail for words in _NO_DEVICE):
        problem = f"The script asks for a GPU that torch does not have here {when}."
        return problem, "Let it train on the CPU with --device cpu before the script's name."
    return f"The script failed (exit code {ended.code}) {when}.", _RUN_IT


def _stopped_by(tail: str) -> str:
    """Return why a lever gave up, by the last line of its traceback; empty where none did."""
    mark = f"{LeverStopped.__module__}.{LeverStopped.__qualname__}: "
    told = [line.removeprefix(mark) for line in tail.splitlines() if line.startswith(mark)]
    return told[-1].rstrip(".") if told else ""
