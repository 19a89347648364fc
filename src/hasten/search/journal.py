"""Write every comparison to disk as soon as it is known, so that a search survives a crash.

One JSON document per line, appended and fsynced. An append is not atomic: a line torn by a
crash is dropped at the next start, and nothing before it is lost.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hasten.errors import reason_of
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
        slower: see `Diagnosis.slower`.
    """

    settings: Settings = {}
    named: dict[str, float] = {}
    slower: dict[str, tuple[Setting, float]] = {}


_BEGUN = b'{"settings":'
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # on some network file systems


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
        descriptor: of the file, open and locked, so that two searches never write to one.
    """

    path: Path | None = None
    history: tuple[Comparison, ...] = ()
    begun: SearchStarted = field(default_factory=SearchStarted)
    resumed_count: int = 0
    lost: str = ""
    descriptor: int | None = None

    def __post_init__(self) -> None:
        """Let go of the file with the journal."""
        if self.descriptor is not None:
            self._close = weakref.finalize(self, os.close, self.descriptor)

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
        found = cls(path=path, descriptor=_locked(path))
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and lines[0] == header + b"\n":
            found.history, found.begun, kept_bytes = _read(lines)
            found.resumed_count = len(found.history)
            os.truncate(path, kept_bytes)
            return found
        if lines:
            path.replace(path.with_name(path.name + ".old"))
            found.close()
            found = cls(path=path, descriptor=_locked(path))
        assert found.descriptor is not None  # noqa: S101  # it was just opened
        _append(found.descriptor, header)
        _sync_folder(path.parent)
        return found

    def close(self) -> None:
        """Write no more, and let another search go on from here."""
        if self.descriptor is not None:
            self.descriptor = None
            self._close()

    def forget(self) -> None:
        """Remove the file: the search has come to its end."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
        self.close()

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
        if self.lost or self.descriptor is None:
            return
        try:
            _append(self.descriptor, line)
        except OSError as error:
            self.lost = reason_of(error)


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


def _locked(path: Path) -> int:
    """Open a file for appending, which no other process has open in this way.

    Raises:
        BlockingIOError: one has.
    """
    import fcntl

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return descriptor
        if not isinstance(error, BlockingIOError | FileNotFoundError):
            os.close(descriptor)
            raise
    os.close(descriptor)
    raise BlockingIOError(errno.EWOULDBLOCK, "another tuning of this command is running")


def _append(descriptor: int, line: bytes) -> None:
    data = line + b"\n"
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
