"""What to tell of a script that did not end as it should."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hasten.errors import HastenError, IsolationFailed, ScriptFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hasten.trials.process import Exit

_NO_ROOM = "No space left on device"
# torch's own name for what its workers keep in /dev/shm, which TMPDIR does not move.
_SHARED_MEMORY = "</torch_"
_RUN_IT = "Make it run under plain python first."


def error_of(
    ended: Exit, *, when: str, tail: str, refused: Sequence[str], folder: Path
) -> HastenError | None:
    """Return the error that a script's end is; None for one that is none.

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
    if _is_out_of_room(tail):
        return ScriptFailed(
            f"The script found no room on the disk {when}: "
            f"what trials write lies in {folder} until they end.",
            remedy="Set TMPDIR to a folder on a larger disk.",
            output=tail,
        )
    problem, remedy = _signalled(ended.signal, when) if ended.signal else _failed(ended, when, tail)
    return ScriptFailed(problem, remedy=remedy, output=tail)


def _signalled(number: int, when: str) -> tuple[str, str]:
    memory = ", perhaps out of memory" if number == signal.SIGKILL else ""
    return f"The script was ended by {signal.Signals(number).name}{memory} {when}.", _RUN_IT


def _failed(ended: Exit, when: str, tail: str) -> tuple[str, str]:
    if "the script asks for input" in tail:
        problem = f"The script asks for input (exit code {ended.code}) {when}."
        return problem, "Give the answers as arguments: nobody answers in a trial."
    return f"The script failed (exit code {ended.code}) {when}.", _RUN_IT


def _is_out_of_room(tail: str) -> bool:
    return any(_NO_ROOM in x and _SHARED_MEMORY not in x for x in tail.splitlines())
