"""Writing the files that the user asked for: completely or not at all."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from hasten.errors import UsageError, reason_of

REMEDY = "Name another place for it, or make this one writable."
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/(?:fd/(?P<number>\d{1,9})|(?P<name>stdout|stderr))")


def check_writable(path: Path) -> None:
    """Fail now, rather than after minutes of search, if a file cannot be written.

    Raises:
        UsageError: the path is a folder, or the nearest folder that exists is not writable.
    """
    try:
        _check_place(path)
    except OSError as error:  # no permission to enter a parent folder
        raise refusal(path, error) from error


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"Cannot write {path}: it is a folder.", remedy="Name a file.")
    if (number := descriptor(path)) is not None:
        os.fstat(number)
        return
    folder = Path(os.path.realpath(path)).parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"Cannot write {path}: {folder} is not a folder.", remedy=REMEDY)
    # A special file such as a pipe is written in place, so its folder does not matter.
    place = path if path.exists() and not path.is_file() else folder
    if not os.access(place, os.W_OK):
        raise UsageError(f"Cannot write {path}: no permission in {folder}.", remedy=REMEDY)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never half of it.

    Missing parent folders are created. A symbolic link stays one: its target is replaced.

    Raises:
        UsageError: it cannot be written.
    """
    check_writable(path)
    payload = text.encode("utf-8", "backslashreplace")
    if (number := descriptor(path)) is not None:
        _write_to(number, payload, path)
        return
    target = Path(os.path.realpath(path))
    # A name has 255 bytes at most, and each character up to 4.
    draft = target.with_name(f".{target.name[:50]}.{os.getpid()}.tmp")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(payload)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        # tempfile's files would be readable only by their owner, whatever the umask says.
        draft.write_bytes(payload)
        draft.replace(target)
    except BaseException as error:
        with suppress(OSError):  # what keeps a draft from being written may keep it, too
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refusal(path, error) from error
        raise


def descriptor(path: Path) -> int | None:
    """Return the open file that a path such as /dev/stdout names; None for any other path."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return None
    return int(found["number"] or {"stdout": 1, "stderr": 2}[found["name"]])


def _write_to(number: int, payload: bytes, path: Path) -> None:
    """Write where the file stands: opened by its name, one that a shell redirects to is emptied."""
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(payload)
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(f"Cannot write {path}: {reason_of(error)}.", remedy=REMEDY)
