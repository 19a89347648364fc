"""Where the folders of trials are made: on a disk with room, at a path short enough for sockets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from upshift.errors import UsageError
from upshift.launch.guard import wipe

# Sockets, also those of multiprocessing, lie beneath the scratch folder and have 108 bytes for
# their whole path (unix(7)); the folder's own name takes 16.
_LONGEST_PLACE_BYTES = 54
_LEAST_ROOM_BYTES = 4096


def make_scratch() -> Path:
    """Make the folder of one trial, in the temporary folder or, where that will not do, in /tmp.

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


def make_layers(scratch: Path) -> list[Path]:
    """Make the folders for what a trial writes, in two trees: no tree can hold its own.

    Where no second one can be made, memory has to do for the tree of the first.
    """
    layers = [scratch / ".layers"]
    layers[0].mkdir(mode=0o700)
    for place in ("/var/tmp", "/tmp", os.environ.get("HOME", "/tmp")):
        apart = scratch.parts[:2] != Path(place).resolve().parts[:2]
        if apart and (folder := _made(place)) is not None:
            return [*layers, folder]
    return layers


def _places() -> list[str]:
    try:
        first = tempfile.gettempdir()
    except FileNotFoundError:  # it tries to write in each, and found none
        first = os.environ.get("TMPDIR") or "/tmp"
    return list(dict.fromkeys((first, "/tmp", "/var/tmp")))


def _made(place: str) -> Path | None:
    """Make a folder there; None where that cannot be, or where what is put into it has no room."""
    if not os.access(place, os.W_OK | os.X_OK):
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="upshift-", dir=place))
    except OSError:
        return None
    try:  # on a full tmpfs folders can still be made, files can't
        (folder / "room").write_bytes(bytes(_LEAST_ROOM_BYTES))
        (folder / "room").unlink()
    except OSError:
        wipe(str(folder))
        return None
    return folder
