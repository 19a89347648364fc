"""Where temporary folders are made: on a disk with room, for trials at a path that fits sockets.

Each is locked (flock(2)) by the process that made it, for as long as that lives. If all die at
once, nobody removes them, so the next session does: see `sweep`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from pathlib import Path
from threading import Lock

from hasten.errors import UsageError
from hasten.trials.isolation.mounts import visible_mounts, within
from hasten.trials.isolation.removal import wipe

# Sockets, including those of multiprocessing, are beneath the scratch folder and have 108 bytes for
# their whole path (unix(7)); the folder's own name takes 16.
_LONGEST_PLACE_BYTES = 54
_LEAST_ROOM_BYTES = 4096
_PREFIX = "hasten-"
_OURS = re.compile(r"hasten-[a-z0-9_]{8}")
# The sticky bit means nothing on a folder that only its owner may enter, so nobody else sets it
# there: it marks a folder that was locked. A marker file in it would be in the way.
_LOCKED_MODE = 0o1700
# Elsewhere a lock may hold on one machine only while another machine uses the folder.
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay")
_locks: dict[str, int] = {}
_locking = Lock()


def make_scratch() -> Path:
    """Make the folder of one trial, in the temporary folder or, if that is unsuitable, in /tmp.

    Raises:
        UsageError: no folder with a short path can be written, or all of them are full.
    """
    places = _places()
    for place in places:
        short = len(os.fsencode(os.path.realpath(place))) <= _LONGEST_PLACE_BYTES
        if short and (folder := _made(place)) is not None:
            return folder
    raise UsageError(
        f"Trials have no place to write: none of {', '.join(places)} can be written, has room, "
        f"and has a path of at most {_LONGEST_PLACE_BYTES} characters.",
        remedy="Set TMPDIR to such a folder.",
    )


def make_folder() -> Path:
    """Make a temporary folder that will hold no socket: like `make_scratch`, but at any path.

    Raises:
        UsageError: no folder can be written, or all of them are full.
    """
    for place in _places():
        if (folder := _made(place)) is not None:
            return folder
    return make_scratch()  # which says why not


def sweep() -> None:
    """Remove the folders of sessions that were ended before they could do it themselves."""
    for place in {*_places(), os.environ.get("HOME", "/tmp")}:
        with contextlib.suppress(OSError):
            if _is_local(place):
                for name in os.listdir(place):
                    _sweep(os.path.join(place, name))


def make_layers(scratch: Path) -> list[Path]:
    """Make the folders for what a trial writes, in two trees: no tree can hold its own layer.

    If no second one can be made, memory has to serve the tree of the first.
    """
    layers = [scratch / ".layers"]
    layers[0].mkdir(mode=0o700)
    for place in ("/var/tmp", "/tmp", os.environ.get("HOME", "/tmp")):
        apart = scratch.parts[:2] != Path(place).resolve().parts[:2]
        if apart and (folder := _made(place)) is not None:
            return [*layers, folder]
    return layers


def _places() -> list[str]:
    asked = [os.path.abspath(os.environ.get(name) or "/tmp") for name in ("TMPDIR", "TEMP", "TMP")]
    try:
        first = tempfile.gettempdir()
        if first == os.getcwd() and first not in asked:
            first = "/tmp"  # the last resort of tempfile is where the user's files are
    except FileNotFoundError:  # it tries to write in each, and found none
        first = os.environ.get("TMPDIR") or "/tmp"
    return list(dict.fromkeys((first, "/tmp", "/var/tmp")))


def _made(place: str) -> Path | None:
    """Make a folder there; None if that is impossible, or if there is no room for its content."""
    if not os.access(place, os.W_OK | os.X_OK):
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    except OSError:
        return None
    try:  # on a full tmpfs folders can still be made, files can't
        (folder / "room").write_bytes(bytes(_LEAST_ROOM_BYTES))
        (folder / "room").unlink()
    except OSError:
        wipe(str(folder))
        return None
    _lock(str(folder))
    return folder


def _lock(folder: str) -> None:
    """Lock a folder until this process ends, and mark it; forget those that are gone."""
    with _locking:
        for path in [path for path in _locks if not os.path.lexists(path)]:
            os.close(_locks.pop(path))
        _locks[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # not every disk can: folders there are never swept
        fcntl.flock(_locks[folder], fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.chmod(folder, _LOCKED_MODE)


def _sweep(path: str) -> None:
    if not _OURS.fullmatch(os.path.basename(path)):
        return
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(folder)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _LOCKED_MODE:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                wipe(path)
        finally:
            os.close(folder)


def _is_local(place: str) -> bool:
    """Whether a lock in a folder is seen by everybody who uses it."""
    mounts = [m for m in visible_mounts().values() if within(os.path.realpath(place), m.path)]
    at = max(mounts, key=lambda m: len(m.path), default=None)
    return at is not None and at.kind in _LOCAL
