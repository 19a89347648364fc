"""Write every comparison to disk as soon as it is known, so that a search survives a crash.

One JSON document per line, appended and fsynced. An append is not atomic: a line torn by a
crash is dropped at the next start, and nothing before it is lost.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import msgspec

from hasten.records import Comparison, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = 3
Settings = dict[str, tuple[Setting, ...]]


class SearchStarted(msgspec.Struct, frozen=True, kw_only=True):
    """What a search began with.

    Attributes:
        settings: for each lever, the settings that it tries.
        named: for each lever that findings name, the share of a step that it can take away.
    """

    settings: Settings = {}
    named: dict[str, float] = {}


_BEGUN = b'{"settings":'


@dataclass(kw_only=True)
class Journal:
    """The races of one search.

    Attributes:
        path: the file; None if it is in memory.
        history: every comparison in it, oldest first.
        begun: what the search began with. It comes from measurements, which differ from start
            to start; a resumed search keeps what it began with.
        resumed_count: how many of the comparisons an earlier run left.
        lost: why nothing more is written, such as a full disk; empty while all is kept.
        file: it, open and locked, so that two searches never write to one.
    """

    path: Path | None = None
    history: tuple[Comparison, ...] = ()
    begun: SearchStarted = field(default_factory=SearchStarted)
    resumed_count: int = 0
    lost: str = ""
    file: IO[bytes] | None = None

    @classmethod
    def open(cls, path: Path, fingerprint: Mapping[str, Any]) -> Journal:
        """Return the journal at `path`, with its history if it is of the same search.

        A journal of another fingerprint or schema is renamed to `<name>.old`.

        Args:
            path: the file; its folder is made.
            fingerprint: what the races depend on: script, machine, versions; plain JSON.

        Raises:
            BlockingIOError: another process has it open.
            OSError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        header = msgspec.json.encode({"schema": SCHEMA, "fingerprint": fingerprint}, order="sorted")
        file = _locked(path)
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and lines[0] == header + b"\n":
            history, begun, kept_bytes = _read(lines)
            file.truncate(kept_bytes)
            return cls(
                path=path, history=history, begun=begun, resumed_count=len(history), file=file
            )
        if lines:
            path.replace(path.with_name(path.name + ".old"))
            file.close()
            file = _locked(path)
        _append(file, header)
        _sync_folder(path.parent)
        return cls(path=path, file=file)

    def forget(self) -> None:
        """Remove the file: the search has come to its end."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def settle(self, begun: SearchStarted) -> None:
        """Keep what the search begins with, for the next start."""
        if begun != self.begun:
            self._write(msgspec.json.encode(begun))
            self.begun = begun

    def append(self, comparison: Comparison) -> None:
        """Add a comparison; when this returns, it is on disk, unless the journal is `lost`."""
        self._write(msgspec.json.encode(comparison))
        self.history = (*self.history, comparison)

    def _write(self, line: bytes) -> None:
        """Add a line; none follows one that failed: it may be torn, and reading ends there."""
        if self.lost or self.file is None:
            return
        try:
            _append(self.file, line)
        except OSError as error:
            self.lost = (error.strerror or str(error)).lower()


def _read(lines: list[bytes]) -> tuple[tuple[Comparison, ...], SearchStarted, int]:
    """Return the comparisons and settings up to the first broken line, and the bytes they take."""
    history: list[Comparison] = []
    begun = SearchStarted()
    kept_bytes = len(lines[0])
    for line in lines[1:]:
        if not line.endswith(b"\n"):
            break
        try:
            if line.startswith(_BEGUN):
                begun = msgspec.json.decode(line, type=SearchStarted)
            else:
                history.append(msgspec.json.decode(line, type=Comparison))
        except (msgspec.DecodeError, ValueError):
            break
        kept_bytes += len(line)
    return tuple(history), begun, kept_bytes


def _locked(path: Path) -> IO[bytes]:
    """Open a file for appending, which no other process has open in this way."""
    import fcntl

    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):  # some network file systems
            return file
        file.close()
        if not isinstance(error, BlockingIOError | FileNotFoundError):
            raise
    raise BlockingIOError(errno.EWOULDBLOCK, "another tuning of this command is running")


def _append(file: IO[bytes], line: bytes) -> None:
    file.write(line + b"\n")
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
