"""A closer look at batches as they are made, in whichever process makes them.

The request to look is kept in memory that forks share, and so are the results: workers that were
forked long ago take part. While a batch is made, its stack is sampled every one to two
milliseconds (`stack_sampler`). Nothing is called that the dataset would not call itself.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.instrument import stack_sampler
from hasten.instrument.item_profile import ItemProfile
from hasten.instrument.repeats import Repeats
from hasten.instrument.source_lines import line_of
from hasten.kernel_files import text

if TYPE_CHECKING:
    from collections.abc import Callable

_SLOT_COUNT, _SLOT_BYTES = 128, 1 << 14
_HEAD_BYTES = 4096
_PERIOD_S = 0.001
_LATELY_S = 3 * _PERIOD_S
_WRITE_NS = 20_000_000
_PLACE_COUNT = 3
# A lock, a clock, an event loop: the thread waits for another thread or for nothing at all.
_OTHER_SLEEPS = ("futex", "nanosleep", "epoll", "ep_poll", "poll_schedule", "do_sys_poll")


class _Record:
    """What was seen of one dataset in this process."""

    def __init__(self, dataset: Any) -> None:
        self.work = ItemProfile(dataset)
        self.repeats = Repeats()
        self.kinds: Counter[str] = Counter()
        self.places: Counter[tuple[str, str, int]] = Counter()
        self.batch_count = self.item_count = self.wall_ns = 0
        self.collating = False

    def sample(self, frame: Any, count: int, *, blocked: bool) -> None:
        kind, place = self.work.classify(frame)
        kind = "storage" if blocked else "collate" if self.collating else kind
        self.kinds[kind] += count
        if place is not None:
            self.places[kind, *place] += count

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
            "repeats": self.repeats.told(),
        }


def _waits_for_storage(thread: int) -> bool:
    """Return whether a thread (the kernel's id) waits asleep for storage or a peer."""
    task = Path(f"/proc/self/task/{thread}")
    where, state = text(task / "wchan"), text(task / "stat").rpartition(") ")[2][:1]
    if where in ("", "0") or state == "D":
        return state == "D"
    return not any(other in where for other in _OTHER_SLEEPS)


class DatasetProfile:
    """Look at the making of batches between `begin` and `end`, here and in forked workers."""

    def __init__(self) -> None:
        shared = mmap.mmap(-1, _HEAD_BYTES + _SLOT_COUNT * _SLOT_BYTES)
        self._wish = memoryview(shared)[:8].cast("q")
        self._slots = memoryview(shared)[_HEAD_BYTES:]
        self._last = self._mine = self._pid = 0
        self._records: dict[int, _Record] = {}
        self._current: tuple[_Record, int] | None = None
        self._written_ns = 0
        self._thread = 0
        self._kernel_id = 0
        self._asleep_s = 0.0
        self._asleep_at: tuple[Any, int] | None = None
        self._pulses: tuple[stack_sampler.StackSampler | stack_sampler.ThreadSampler, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether a look has been asked for."""
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
        self._stop_here()
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
        collate = fetcher.collate_fn
        fetcher.collate_fn = _collating(record, collate, indices)
        wall_ns = time.perf_counter_ns()
        self._current = record, threading.get_ident()
        try:
            return original(fetcher, indices)
        finally:
            self._current, record.collating = None, False
            wall_ns = time.perf_counter_ns() - wall_ns
            fetcher.collate_fn = collate
            if self._wish[0] == look:  # otherwise it may have been parked meanwhile
                record.batch_count += 1
                record.wall_ns += wall_ns
                with suppress(Exception):
                    if time.perf_counter_ns() - self._written_ns > _WRITE_NS:
                        self._write()

    def _follow(self, fetcher: Any) -> _Record | None:
        """Return the record to write into; None where looking at the dataset raises."""
        try:
            self._begin_here()
            key = id(fetcher.dataset)
            if key not in self._records:
                self._records[key] = _Record(fetcher.dataset)
            return self._records[key]
        except Exception:
            return None

    def _begin_here(self) -> None:
        """Start over if a look is new to this process, or another thread makes batches."""
        look, pid, thread = self._wish[0], os.getpid(), threading.get_ident()
        if (look, pid, thread) == (self._mine, self._pid, self._thread):
            return
        self._stop_here()
        if (look, pid) != (self._mine, self._pid):
            self._records, self._written_ns = {}, 0
        self._mine, self._pid, self._thread = look, pid, thread
        sampler = stack_sampler.begin(self._seen, thread, shortest_s=_PERIOD_S)
        if sampler is not None:
            self._kernel_id = threading.get_native_id()
            beside = stack_sampler.ThreadSampler(self._notice_sleep, thread, _PERIOD_S)
            self._pulses = sampler, beside

    def _stop_here(self) -> None:
        pulses, self._pulses = self._pulses, ()
        for each in pulses:
            each.end()

    def _seen(self, frame: Any, count: int) -> None:
        current = self._current
        if self._wish[0] != self._mine:
            self._stop_here()
        elif current is not None and current[1] == self._thread:
            # The line after a sleep is no longer asleep, even if nobody has seen it wake.
            lately = time.monotonic() - self._asleep_s < _LATELY_S
            current[0].sample(frame, count, blocked=lately and _line(frame) == self._asleep_at)

    def _notice_sleep(self, frame: Any, count: int) -> None:
        """Note, from a separate thread, that the one that makes batches waits for storage."""
        if self._current is not None and _waits_for_storage(self._kernel_id):
            self._asleep_s, self._asleep_at = time.monotonic(), _line(frame)

    # ---- between processes

    def _write(self) -> None:
        datasets = {str(key): record.told() for key, record in self._records.items()}
        told = json.dumps({"look": self._mine, "datasets": datasets}).encode()
        at = self._pid % _SLOT_COUNT * _SLOT_BYTES
        if len(told) + 8 > _SLOT_BYTES:
            return
        # The length is cleared first and written last: a read in between finds nothing.
        self._slots[at : at + 8] = bytes(8)
        self._slots[at + 8 : at + 8 + len(told)] = told
        self._slots[at : at + 8] = len(told).to_bytes(8, "little")
        self._written_ns = time.perf_counter_ns()

    def _read(self, at: int) -> dict[str, Any] | None:
        length = int.from_bytes(self._slots[at : at + 8], "little")
        if not 0 < length <= _SLOT_BYTES - 8:
            return None
        try:
            found: dict[str, Any] = json.loads(bytes(self._slots[at + 8 : at + 8 + length]))
        except ValueError:  # it was being written
            return None
        return found


def _line(frame: Any) -> tuple[Any, int] | None:
    return None if frame is None else (frame.f_code, line_of(frame))


def _collating(record: _Record, collate: Callable[[Any], Any], indices: Any) -> Any:
    """Return a `collate` that notes when it runs, and on what.

    An iterable dataset is asked for items without an index: each index is None.
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
