"""Where in the user's code a trial that does not answer is stuck.

faulthandler writes the stacks from a signal handler in C, so they come even where Python itself is
stuck inside a call. The signal is a real-time one that nothing else uses, and only trials listen:
no thread is started for it, and the script's own handlers stay as they are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import re
import signal
import time
from pathlib import Path

from hasten.trials.process_tree import pid_within

_SIGNAL = signal.SIGRTMAX - 5
_PATIENCE_S = 1.0
_OWN = str(Path(__file__).parent.parent) + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")


def listen(socket: str) -> None:
    """Write the stacks of this process beside `socket` whenever it is asked (see `where`)."""
    if signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        file = open(_answer(Path(socket).parent, os.getpid()), "w")  # noqa: SIM115  # as long as we live
        faulthandler.register(_SIGNAL, file=file, all_threads=True)


def where(folder: Path, pid: int) -> str:
    """Ask a living process whose socket is in `folder` where it is.

    Returns:
        Such as `train.py:31 in evaluate: loss = model(x)`, empty where nobody knows.
    """
    answer = _answer(folder, pid_within(pid))
    if not answer.exists():
        return ""
    try:
        os.kill(pid, _SIGNAL)
    except OSError:
        return ""
    until, stacks, before = time.monotonic() + _PATIENCE_S, "", "not yet"
    while time.monotonic() < until and (stacks != before or not stacks):
        time.sleep(0.05)
        stacks, before = answer.read_text(errors="replace"), stacks
    return place_in(stacks)


def said_of(folder: Path, pids: list[int]) -> str:
    """Say where the first of these processes that answers is; empty where none does."""
    places = (where(folder, pid) for pid in pids)
    return next((f" It was at {place}." for place in places if place), "")


def place_in(stacks: str) -> str:
    """Return the innermost line of the user's code in the main thread, which is printed last."""
    for line in stacks.rstrip().split("\n\n")[-1].splitlines():
        frame = _FRAME.match(line)
        if frame and not _LIBRARY.search(frame[1]) and not frame[1].startswith(_OWN):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            inside = "" if frame[3] == "<module>" else f" in {frame[3]}"
            return f"{Path(frame[1]).name}:{frame[2]}{inside}" + (f": {source}" if source else "")
    return ""


def _answer(folder: Path, pid: int) -> Path:
    return folder / f"where-{pid}"
