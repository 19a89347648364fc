"""Compiled code that trials hand on: each begins with what those before it have compiled.

A trial's writes are kept away from everybody, so it would compile anew what the last one did. The
files of torch's cache are named by what they hold; they can be put together and moved.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from hasten.errors import UsageError
from hasten.lever import COMPILED_KEY, TORCHS_CACHE
from hasten.trials.blocks import patience_s
from hasten.trials.isolation.scratch import make_folder

if TYPE_CHECKING:
    from types import TracebackType

    from hasten.records import Plan

_NAME = "compiled"


class CompiledCode:
    """The compiled code of one tuning, in a folder that goes with it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock = Lock()

    def __enter__(self) -> CompiledCode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def lend(self, scratch: Path, *plans: Plan) -> dict[str, str]:
        """Lay what there is into a trial's folder; return the environment that tells it.

        A folder that the user has chosen for torch is left to be it: trials read it.

        Args:
            scratch: of the trial.
            plans: what it goes over to; nothing is copied for those that do not compile.
        """
        if TORCHS_CACHE in os.environ:
            return {}
        place = scratch / _NAME
        place.mkdir(exist_ok=True)
        with self._lock:
            if self._folder is not None and patience_s(*plans):
                _add(self._folder, place)
        return {COMPILED_KEY: str(place)}

    def collect(self, scratch: Path) -> None:
        """Keep what a trial has compiled.

        Args:
            scratch: of a trial that stands still, or is between two steps: what it is just
                writing would be taken half.
        """
        place = scratch / _NAME
        with self._lock, suppress(OSError, UsageError):
            if place.is_dir() and any(place.iterdir()):
                if self._folder is None:
                    self._folder = make_folder()
                _add(place, self._folder)


class LentCode:
    """What one trial has of the compiled code: lent to it, and handed on when it stands still.

    Attributes:
        patience_s: how much longer than other steps its first ones may take.
    """

    def __init__(self, code: CompiledCode | None, scratch: Path) -> None:
        self.patience_s = 0.0
        self._code = code
        self._scratch = scratch
        self._compiles = False

    def lend(self, *plans: Plan) -> dict[str, str]:
        """Lay down what there is for a trial's plans; return the environment that tells it."""
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
        """Hand nothing on of a trial that may be writing just now."""
        self._compiles = False


def _add(own: Path, other: Path) -> None:
    """Lay down the files that are not there yet; a full disk only costs time."""
    with suppress(OSError):
        for folder, _, names in os.walk(own):
            to = other / Path(folder).relative_to(own)
            to.mkdir(exist_ok=True)
            for name in names:
                if not (to / name).exists():
                    _lay(Path(folder, name), to / name)


def _lay(own: Path, other: Path) -> None:
    """Link a file, or copy it; nobody writes into a file that is there, some are large."""
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
