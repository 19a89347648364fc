"""A closer look at batches as they are made, in whichever process makes them.

The wish to look stands in memory that forks share, and so do the results: workers that were
forked long ago take part. While a batch is made, a thread looks every millisecond at the stack
of the thread that makes it. Nothing is called that the dataset would not have called itself.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from upshift.attach.item_work import Work
from upshift.attach.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Callable

_SLOT_COUNT, _SLOT_BYTES = 128, 1 << 14
_HEAD_BYTES = 4096
_PERIOD_S = 0.001
# A thread that computes in Python hands over after this long, in place of 5 ms: else most
# samples would fall on calls that release the interpreter. The kernel adds 50 us to such a short
# wait unless told otherwise (prctl(2), PR_SET_TIMERSLACK).
_SWITCH_S = 0.000005
_SET_TIMER_SLACK, _SLACK_NS = 29, 1
_WRITE_NS = 20_000_000
_PLACE_COUNT = 3


class _Record:
    """What was seen of one dataset in this process."""

    def __init__(self, dataset: Any) -> None:
        self.work = Work(dataset)
        self.repeats = Repeats()
        self.kinds: Counter[str] = Counter()
        self.places: Counter[tuple[str, str, int]] = Counter()
        self.batch_count = self.item_count = self.wall_ns = self.cpu_ns = 0
        self.collating = False

    def sample(self, frame: Any, *, blocked: bool) -> None:
        kind, place = self.work.classify(frame)
        kind = "storage" if blocked else "collate" if self.collating else kind
        self.kinds[kind] += 1
        if place is not None:
            self.places[kind, *place] += 1

    def told(self) -> dict[str, Any]:
        places: dict[str, list[Any]] = {}
        for (kind, path, line), count in self.places.most_common():
            rows = places.setdefault(kind, [])
            if len(rows) < _PLACE_COUNT:
                rows.append([path, line, count])
        return {
            "kinds": dict(self.kinds),
            "places": places,
            "batch_count": self.batch_count,
            "item_count": self.item_count,
            "wall_ns": self.wall_ns,
            "cpu_ns": self.cpu_ns,
            "repeats": self.repeats.told(),
        }


class _Sleep:
    """Tells whether a thread sleeps in the kernel for something that storage or a peer has."""

    # A lock, a clock, an event loop: it waits for another thread or for nothing at all.
    _OTHERS = (b"futex", b"nanosleep", b"epoll", b"ep_poll", b"poll_schedule", b"do_sys_poll")

    def __init__(self, thread: int) -> None:
        self._files = []
        with suppress(OSError):
            for name in ("wchan", "stat"):
                file = os.open(f"/proc/self/task/{thread}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                self._files.append(file)

    def waits(self) -> bool:
        """Return whether it does; False where the kernel does not tell."""
        if len(self._files) < 2:
            return False
        try:
            where = os.pread(self._files[0], 64, 0)
            state = os.pread(self._files[1], 512, 0).rpartition(b") ")[2][:1]
        except OSError:
            return False
        if where in (b"", b"0") or state == b"D":
            return state == b"D"
        return not any(other in where for other in self._OTHERS)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)


class FetchLook:
    """Look at the making of batches between `begin` and `end`, here and in forked workers."""

    def __init__(self) -> None:
        shared = mmap.mmap(-1, _HEAD_BYTES + _SLOT_COUNT * _SLOT_BYTES)
        self._wish = memoryview(shared)[:8].cast("q")
        self._slots = memoryview(shared)[_HEAD_BYTES:]
        self._last = self._mine = self._pid = 0
        self._records: dict[int, _Record] = {}
        self._current: tuple[_Record, int] | None = None
        self._written_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Python 3.12 and later warn of a fork beside a thread.
        os.register_at_fork(before=self._stand_back)

    @property
    def is_on(self) -> bool:
        """Somebody wants to look."""
        return self._wish[0] != 0

    def begin(self) -> None:
        """Look from now on."""
        self._last += 1
        self._wish[0] = self._last

    def end(self, dataset: int) -> list[dict[str, Any]]:
        """Stop; return what each process saw of a dataset, given by its identity."""
        if self._mine == self._wish[0] and self._pid == os.getpid():
            self._write()
        self._wish[0] = 0
        self._records.clear()
        slots = (self._read(at) for at in range(0, _SLOT_COUNT * _SLOT_BYTES, _SLOT_BYTES))
        told = [slot for slot in slots if slot and slot["look"] == self._last]
        return [slot["datasets"][str(dataset)] for slot in told if str(dataset) in slot["datasets"]]

    # ---- in the process that makes batches

    def fetch(self, original: Callable[[Any, Any], Any], fetcher: Any, indices: Any) -> Any:
        """Make a batch as `original(fetcher, indices)` does, and look at it meanwhile."""
        look, record = self._wish[0], self._follow(fetcher)
        if record is None:
            return original(fetcher, indices)
        collate, interval_s = fetcher.collate_fn, sys.getswitchinterval()
        fetcher.collate_fn = _collating(record, collate, indices)
        sys.setswitchinterval(min(_SWITCH_S, interval_s))
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._current = record, threading.get_ident()
        try:
            return original(fetcher, indices)
        finally:
            self._current, record.collating = None, False
            cpu_ns = time.thread_time_ns() - cpu_ns
            wall_ns = time.perf_counter_ns() - wall_ns
            sys.setswitchinterval(interval_s)
            fetcher.collate_fn = collate
            if self._wish[0] == look:  # else it may have been parked meanwhile
                record.batch_count += 1
                record.wall_ns += wall_ns
                record.cpu_ns += cpu_ns
                with suppress(Exception):
                    self._write_now_and_then()

    def _follow(self, fetcher: Any) -> _Record | None:
        """Return the record to write into; None where the dataset does not bear to be looked at."""
        try:
            self._begin_here()
            key = id(fetcher.dataset)
            if key not in self._records:
                self._records[key] = _Record(fetcher.dataset)
            return self._records[key]
        except Exception:
            return None

    def _begin_here(self) -> None:
        """Begin anew where a look is new to this process, and see to it that the thread runs."""
        look, pid = self._wish[0], os.getpid()
        if (look, pid) != (self._mine, self._pid):
            self._mine, self._pid = look, pid
            self._records, self._thread = {}, None
            self._written_ns = 0
        if self._thread is None:
            self._stop = threading.Event()
            about = (look, self._stop, threading.get_native_id())
            self._thread = threading.Thread(target=self._watch, args=about, daemon=True)
            self._thread.start()

    def _stand_back(self) -> None:
        """Let no thread of ours run while the process forks; the next batch starts it again."""
        if self._thread is not None and self._pid == os.getpid():
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _watch(self, look: int, stop: threading.Event, native: int) -> None:
        sleep = _Sleep(native)
        _wake_in_time()
        while not stop.wait(_PERIOD_S) and self._wish[0] == look:
            current, blocked = self._current, sleep.waits()
            if current is None:
                continue
            frame = sys._current_frames().get(current[1])
            if frame is not None and current is self._current:
                with suppress(Exception):
                    current[0].sample(frame, blocked=blocked)
            del frame
        sleep.close()

    # ---- between processes

    def _write_now_and_then(self) -> None:
        now_ns = time.perf_counter_ns()
        if now_ns - self._written_ns > _WRITE_NS:
            self._write()
            self._written_ns = time.perf_counter_ns()

    def _write(self) -> None:
        datasets = {str(key): record.told() for key, record in self._records.items()}
        text = json.dumps({"look": self._mine, "datasets": datasets}).encode()
        at = self._pid % _SLOT_COUNT * _SLOT_BYTES
        if len(text) + 8 > _SLOT_BYTES:
            return
        # The length comes last and goes first: who reads in between finds nothing.
        self._slots[at : at + 8] = bytes(8)
        self._slots[at + 8 : at + 8 + len(text)] = text
        self._slots[at : at + 8] = len(text).to_bytes(8, "little")

    def _read(self, at: int) -> dict[str, Any] | None:
        length = int.from_bytes(self._slots[at : at + 8], "little")
        if not 0 < length <= _SLOT_BYTES - 8:
            return None
        try:
            found: dict[str, Any] = json.loads(bytes(self._slots[at + 8 : at + 8 + length]))
        except ValueError:  # it was being written
            return None
        return found


def _wake_in_time() -> None:
    """Let the kernel wake this thread when it asked to be woken."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, _SLACK_NS, 0, 0, 0)


def _collating(record: _Record, collate: Callable[[Any], Any], indices: Any) -> Any:
    """Return `collate` that notes when it runs, and of what.

    An iterable dataset is asked for items without an index: None stands in the place of each.
    """
    many = isinstance(indices, (list, tuple))
    known = indices[0] is not None if many and indices else indices is not None

    def collating(items: Any) -> Any:
        with suppress(Exception):
            if known:
                record.repeats.note(indices, items)
            record.item_count += len(indices if known else items) if many else 1
        record.collating = True
        try:
            return collate(items)
        finally:
            record.collating = False

    return collating
