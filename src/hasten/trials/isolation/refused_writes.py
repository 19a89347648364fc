"""Guess from a script's last words whether Landlock has refused one of its writes.

Landlock reports nothing, and a refused library says the same as one that lacks permission.
So only the last line counts, and only if it names something that the user may write: then
only the trial can have prevented it. What Python itself may not write is noted by `redirect.py`
and needs no guess.
"""

from __future__ import annotations

import os
import re

_NOT_EXECUTABLE = 126  # what shells exit with if a program may not be executed
# Not the messages of ssh and databases: `Permission denied (publickey)`, `... for table users`.
_DENIED = re.compile(r"[Pp]ermission denied(?=$|[:;,.'\"\u2019)\]])")
_QUOTED = re.compile(r"(?<!\w)(?:'([^']+)'|\"([^\"]+)\"|\u2018([^\u2019]+)\u2019)")
_BARE = re.compile(r"(?:^|[\s:])([^\s:]+): [Pp]ermission denied$")
_CREATING = re.compile(r"(?:cannot|can't) create ")
_PYTHONS = re.compile(r"PermissionError: \[Errno 13\] Permission denied: ['\"]")


def guessed(errors: str, *, cwd: str, code: int | None) -> tuple[str, ...]:
    """Return the paths that a script could not write because it is a trial, judging by its errors.

    Args:
        errors: what it wrote to its standard error.
        cwd: where it was started; relative names are taken from there.
        code: its exit code; None where a signal ended it.
    """
    line = next((x.strip() for x in reversed(errors.splitlines()) if x.strip()), "")
    if code in (0, _NOT_EXECUTABLE) or not _DENIED.search(line):
        return ()
    paths = [os.path.normpath(os.path.join(cwd, name)) for name in _names(line)]
    if _PYTHONS.search(line):  # if the file exists, it is a program that may not be executed
        paths = [path for path in paths if not os.path.isfile(path)]
    return tuple(path for path in dict.fromkeys(paths) if _writable(path))


def _names(line: str) -> list[str]:
    """Return the words of a line that may be paths."""
    quoted = ["".join(found) for found in _QUOTED.findall(line)]
    if names := [word for word in quoted if "://" not in word and not _DENIED.search(word)]:
        return names
    bare = _BARE.search(line)
    if bare is None:
        return []
    # `open: Permission denied` names a function; shells say what they cannot create.
    named = "/" in bare[1] or len(os.path.splitext(bare[1])[1]) > 1
    return [bare[1]] if named or _CREATING.search(line) else []


def _writable(path: str) -> bool:
    """Whether the user may write a path, or create it in the nearest existing folder."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK | os.X_OK if os.path.isdir(path) else os.W_OK)
