"""Whether a process belongs to its trial: it descends from the keeper, on the same machine.

What a daemon starts for a trial (`srun`, `systemd-run`) gets its environment, but neither its
mount namespace nor its Landlock, and the guard cannot end it. Such a process must not train.
"""

from __future__ import annotations

import os
import time

from hasten.errors import IsolationFailed
from hasten.trials.process_tree import parent_of

SEAL_KEY = "HASTEN_GUARD"
OUTSIDE = (
    "hasten: this process was started outside of the trial, so its writes cannot be kept away "
    "from your files. It ends before its first line."
)
"""What a process outside of the trial prints; the parent looks for it."""
_LOOKS_COUNT, _BETWEEN_LOOKS_S = 5, 0.01


def seal(keeper_pid: int) -> str:
    """Return what the processes of a keeper's trial find in their environment."""
    return f"{keeper_pid} {_world()}"


def is_outside(sealed: str) -> bool:
    """Whether this process is outside of the trial that its environment names."""
    keeper, _, world = sealed.partition(" ")
    if parent_of("self") is None:  # no /proc: nobody can tell
        return False
    return world != _world() or not descends("self", int(keeper))


def descends(pid: str, ancestor_pid: int) -> bool:
    """Whether a process is a descendant of another.

    If a process in between has just ended, or is hidden, the search is repeated a few times.
    """
    for _ in range(_LOOKS_COUNT):
        at: int | None = parent_of(pid)
        while at and at != ancestor_pid:
            at = parent_of(str(at))
        if at is not None:
            return at == ancestor_pid
        time.sleep(_BETWEEN_LOOKS_S)
    return False


def guard_lost() -> IsolationFailed:
    """Return the error of a trial whose guard was ended from outside, and the trial with it."""
    return IsolationFailed(
        "The guard of a trial was killed from outside, so the trial was ended.",
        remedy="Try again, with more free memory if the kernel has killed it.",
    )


def outside() -> IsolationFailed:
    """Return the error of a trial that another program has taken out of its isolation."""
    return IsolationFailed(
        "Another program (srun, or another service) starts the training outside of the trial, so "
        "its writes cannot be kept away from your files.",
        remedy="Put it before hasten, as in `srun hasten tune train.py`.",
    )


def _world() -> str:
    """Return the machine and the name space in which a process id means the same process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
