"""Compiled code that trials pass on: each begins with what earlier ones have compiled.

A trial's writes are isolated, so each one would compile again what the last one did. The
files of torch's cache are named by their content, so they can be merged and moved. What a tuning
has compiled for its plan is kept in the user's cache, and real runs begin with it.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from hasten.errors import UsageError
from hasten.lever import COMPILED_KEY, TORCHS_CACHE
from hasten.trials.blocks import patience_s
from hasten.trials.isolation.scratch import make_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Plan

_NAME = "compiled"
_NOT_KEPT = ("locks", "precompiled_headers")  # the latter are 150 MB each, and only for compiling
_MOST_KEPT_BYTES = 512 << 20
_NOT_IN_NAMES = r'[\\/:*?"<>|]'


class CompiledCode:
    """The compiled code of one tuning, in a folder that is removed with it.

    Args:
        begun: what an earlier tuning of the same script may have left, to begin with.

    Attributes:
        kept: where a copy is left for real runs; None leaves none.
    """

    def __init__(self, begun: Path | None = None) -> None:
        self.kept: Path | None = None
        self._begun = begun
        self._folder: Path | None = None
        self._lock = Lock()

    def __enter__(self) -> CompiledCode:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._folder is not None:
            if self.kept is not None:
                _keep(self._folder, self.kept)
            shutil.rmtree(self._folder, ignore_errors=True)

    def lend(self, scratch: Path, *plans: Plan) -> dict[str, str]:
        """Put the code so far into a trial's folder; return the environment that points to it.

        A folder that the user has chosen for torch stays in use: trials read it. Nothing is copied
        if none of the plans that the trial switches to compiles.
        """
        if TORCHS_CACHE in os.environ:
            return {}
        place = scratch / _NAME
        place.mkdir(exist_ok=True)
        with self._lock:
            if patience_s(*plans):
                begun, self._begun = self._begun, None  # once
                if begun is not None and begun.is_dir():
                    self._take(begun)
                if self._folder is not None:
                    _add(self._folder, place)
        return {COMPILED_KEY: str(place)}

    def collect(self, scratch: Path) -> None:
        """Keep what a trial has compiled that is stopped, or between two steps.

        A file that is being written would be copied in part.
        """
        place = scratch / _NAME
        with self._lock, suppress(OSError):
            if place.is_dir() and any(place.iterdir()):
                self._take(place)

    def _take(self, place: Path) -> None:
        with suppress(OSError, UsageError):
            if self._folder is None:
                self._folder = make_folder()
            _add(place, self._folder)


def is_handed_out(kept: Path | None) -> bool:
    """Return whether real runs begin with the code that a tuning keeps."""
    return kept is not None and TORCHS_CACHE not in os.environ


class LentCode:
    """The compiled code of one trial: lent to it, and passed on when it is stopped.

    Attributes:
        patience_s: how much longer than other steps its first ones may take.
    """

    def __init__(self, code: CompiledCode | None, scratch: Path) -> None:
        self.patience_s = 0.0
        self._code = code
        self._scratch = scratch
        self._compiles = False

    def lend(self, *plans: Plan) -> dict[str, str]:
        """Lend the code so far for a trial's plans; return the environment that points to it."""
        self.patience_s = patience_s(*plans)
        return {} if self._code is None else self._code.lend(self._scratch, *plans)

    def go_over(self, *plans: Plan) -> None:
        """Lend again to a trial that runs: others may have compiled since its start."""
        self.lend(*plans)
        self._compiles = bool(self.patience_s)

    def hand_on(self) -> None:
        """Give what was compiled since the last plans to the trials that follow."""
        if self._compiles and self._code is not None:
            self._code.collect(self._scratch)
        self._compiles = False

    def spoil(self) -> None:
        """Pass nothing on from a trial that may be writing at this moment."""
        self._compiles = False


def handed_out(kept: Path) -> dict[str, str]:
    """Put kept code where torch looks for it; return the environment that says so.

    That is torch's own folder, so a real run adds to it as ever. One that the user has chosen
    for torch, or that belongs to somebody else, is left alone.
    """
    if TORCHS_CACHE in os.environ or not kept.is_dir():
        return {}
    try:
        user = re.sub(_NOT_IN_NAMES, "_", getpass.getuser())
        place = Path(tempfile.gettempdir(), f"torchinductor_{user}")
        place.mkdir(exist_ok=True)
        if place.is_symlink() or place.stat().st_uid != os.geteuid():
            return {}
    except (OSError, KeyError):  # the user has no name, or there is no room
        return {}
    _add(kept, place)
    return {TORCHS_CACHE: str(place)}


def _keep(folder: Path, kept: Path) -> None:
    """Replace what is kept, and remove what other tunings have left longest ago."""
    with suppress(OSError):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(exist_ok=True)
        _add(folder, kept, without=_NOT_KEPT)
        left_bytes = _MOST_KEPT_BYTES
        for one in sorted(kept.parent.iterdir(), key=os.path.getmtime, reverse=True):
            left_bytes -= sum(path.stat().st_size for path in one.rglob("*"))
            if left_bytes < 0:
                shutil.rmtree(one, ignore_errors=True)


def _add(own: Path, other: Path, without: Sequence[str] = ()) -> None:
    """Add the files that are missing; a full disk only costs time."""
    with suppress(OSError):
        for folder, folders, names in os.walk(own):
            folders[:] = (name for name in folders if name not in without)
            to = other / Path(folder).relative_to(own)
            to.mkdir(exist_ok=True)
            for name in names:
                if not (to / name).exists():
                    _lay(Path(folder, name), to / name)


def _lay(own: Path, other: Path) -> None:
    """Link a file, or copy it: existing files are never modified, and some are large."""
    with suppress(OSError):
        other.hardlink_to(own)
        return
    part = other.with_name(f".{other.name}.part")
    try:
        shutil.copy2(own, part)
        part.replace(other)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
