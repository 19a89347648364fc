"""Waiting for a trial: one that is silent may be computing, and only one that rests has halted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from hasten.trials.process_tree import cpu_s, is_running

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.trials.deadline import Deadline
    from hasten.trials.process import Process

_T = TypeVar("_T")
# A core's share of the time. An evaluation takes more; threads that poll and sleep take less.
_COMPUTING_RATIO = 0.25


def awaited(
    look: Callable[[float], _T | None], process: Process, *, timeout_s: float, deadline: Deadline
) -> _T | None:
    """Return what a trial answers; None where it has ended, came to a halt, or time has run out.

    A script that evaluates between two steps says nothing for as long as that takes, which no
    time of a step foretells. So a wait that runs out is repeated while the processes of the trial
    (loader workers included) have used a good part of a core since it began, or would run if they
    had one.
    `look` waits for an answer for so many seconds.
    """
    while (wait_s := min(timeout_s, deadline.left_s)) > 0.0:
        began_s, used_s = time.monotonic(), cpu_s(process.keeper)
        found = look(wait_s)
        if found is not None or process.exit is not None:
            return found
        computed_s = cpu_s(process.keeper) - used_s
        is_idle = computed_s < _COMPUTING_RATIO * (time.monotonic() - began_s)
        if is_idle and not is_running(process.keeper):
            return None
    return None
