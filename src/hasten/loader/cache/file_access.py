"""Which files a sample was made from, and whether they are still the same."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.readers import LIBRARIES, ReaderWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

Stamp = tuple[str, int, int, int, int, int]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WRITE_MODES = frozenset("wax+")
_READS = {"open", "os.listdir", "os.scandir"}
_OUTWARD = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.", "sqlite3.",
    "ctypes.dlopen", "mmap.", "os.putenv", "os.unsetenv", "webbrowser.", "urllib.", "ftplib.",
)  # fmt: skip
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_FINE_TICK_NS = 50_000_000
_COARSE_TICK_NS = 2_100_000_000


class FileAccessRecord:
    """What this process opened while it was recorded.

    Attributes:
        stamps: of files opened for reading and folders listed, taken just before that.
        unsettled: one of them changed so recently that its stamp may not show the next change.
        why_not: what else the process did that no stamp can show; empty if nothing.
        outer: the record that encloses this one.
    """

    def __init__(self, outer: FileAccessRecord | None = None) -> None:
        self.stamps: dict[str, Stamp] = {}
        self.unsettled = False
        self.why_not = ""
        self.outer = outer

    def saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take in an audit event."""
        if event in _READS:
            target = arguments[0] if arguments else None
            path = _path_of(target)
            writes = event == "open" and _writes(arguments)
            if path and not writes and not path.startswith(_NO_FILES):
                self.takes(path)
            else:
                self.why_not = f"it opens {target!r:.60} in a way that leaves no stamp"
        elif event == "import":
            root = str(arguments[0]).partition(".")[0]
            if root in LIBRARIES:  # its readers are not watched before the next record
                self.why_not = f"it imports {root}"
        elif _leads_outside(event):
            self.why_not = f"it reaches outside ({event})"

    def takes(self, path: str) -> None:
        """Stamp a file that is about to be read."""
        if path in self.stamps:
            return
        try:
            seen = self.stamps[path] = stamp(path)
        except OSError:  # whoever opens it will say so
            self.why_not = "its file is not there"
        else:
            self.unsettled = self.unsettled or not settled(seen)


_recording: FileAccessRecord | None = None
_hooked_pids: set[int] = set()
_turn = threading.Lock()


def record() -> FileAccessRecord:
    """Start recording what this process opens, until `stop`. Records may be nested.

    An audit hook cannot be removed again: one is installed per process, and does nothing but
    check a flag while nobody records. Files that are opened in C are seen only where the reader
    is known: see `readers`.
    """
    global _recording
    if not _hooked_pids:  # forked processes keep the hook and this set
        _hooked_pids.add(os.getpid())
        sys.addaudithook(_hook)
    with _turn:
        opened = _recording = FileAccessRecord(_recording)
        _readers.begin()  # an item may have imported a library since
    return opened


def stop() -> None:
    """End the innermost recording; the one around it takes over all that it saw."""
    global _recording
    with _turn:
        ended = _recording
        if ended is None:
            return
        outer = _recording = ended.outer
        if outer is None:
            _readers.end()
    if outer is not None:
        outer.unsettled |= ended.unsettled
        outer.why_not = outer.why_not or ended.why_not
        for seen in ended.stamps.values():
            outer.stamps.setdefault(seen[0], seen)


def read(stamps: Iterable[Stamp]) -> None:
    """Note in the current record what was read earlier and still has its stamp."""
    if _recording is not None:
        for seen in stamps:
            _recording.stamps.setdefault(seen[0], seen)


@cache
def _leads_outside(event: str) -> bool:
    return event.startswith(_OUTWARD)


def _path_of(target: Any) -> str:
    return os.fsdecode(target) if isinstance(target, (str, bytes, os.PathLike)) else ""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    seen = _recording
    if seen is not None:
        try:
            seen.saw(event, arguments)
        except Exception as error:  # a hook that raises would abort what it only observes
            seen.why_not = repr(error)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    mode = arguments[1] if len(arguments) > 1 else None
    return bool(
        (isinstance(flags, int) and flags & _WRITES)
        or (isinstance(mode, str) and not _WRITE_MODES.isdisjoint(mode))
    )


def stamp(path: str) -> Stamp:
    """Return what changes when the file at `path` is written, replaced or made.

    Raises:
        OSError: nobody can tell, as where a folder may not be read.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return path, 0, 0, 0, 0, 0
    return path, *figures(found)


def figures(found: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes when a file is written or replaced."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def settled(seen: Stamp) -> bool:
    """Return whether a write from now on would give the file a different stamp.

    File systems record the time of a change in ticks. Two writes within one tick look like one.
    """
    _, written_ns, changed_ns, *_ = seen
    coarse = changed_ns % 1_000_000_000 == 0
    tick_ns = _COARSE_TICK_NS if coarse else _FINE_TICK_NS
    return time.time_ns() - max(written_ns, changed_ns) > tick_ns


def unchanged(stamps: tuple[Stamp, ...]) -> bool:
    """Return whether every file still has its stamp."""
    try:
        return all(stamp(seen[0]) == seen for seen in stamps)
    except OSError:
        return False


def _renew() -> None:
    """Let a new process record, whatever another thread did as it was forked."""
    global _turn
    _turn = threading.Lock()


_readers = ReaderWatch(_hook)
os.register_at_fork(after_in_child=_renew)
