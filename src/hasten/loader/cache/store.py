"""Bytes by key in memory that the main process and its workers share, up to a budget."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HEADER = struct.Struct("<3Q")  # next free byte, allocated up to, entries
_RELEASED = struct.Struct("<Q")  # behind the header, as a writer may be about to rewrite that
_SLOT = struct.Struct("<5Q")  # both halves of the key, offset, length, check
_PAGE_BYTES = 4096
_ALIGN_BYTES = 64
_TYPICAL_ITEM_BYTES = 8192
_ALLOCATE_BYTES = 4 << 20
_LONGEST_PROBE = 64
_FULL_RATIO = 0.9  # of the slots: beyond it a free one is often too far away
_PATIENCE_S = 0.05
_WORD = (1 << 64) - 1
_LEAST_BYTES = 1 << 16
_MOST_STORES = 64  # of a process and of those it forks


class Account:
    """What several stores have taken, where all their processes see it, and their common lock.

    Attributes:
        maker_pid: the process that made it. Those that it forked do not release what they open.
    """

    def __init__(self) -> None:
        fd = _open_nameless(None)
        os.ftruncate(fd, _PAGE_BYTES)
        self._adopt(fd)

    def _adopt(self, fd: int) -> None:
        self._fd = fd
        self._taken = memoryview(mmap.mmap(fd, _PAGE_BYTES)).cast("Q")[:_MOST_STORES]
        self._threads = threading.Lock()
        self._pid = self.maker_pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_account, (f"/proc/{os.getpid()}/fd/{self._fd}",)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0 and not ends():
            os.close(fd)

    def open(self) -> int:
        """Return the place of a new store; it is free again once nothing is taken there."""
        taken = self._taken.tolist()
        if all(taken):
            raise OSError("too many stores share one budget")
        return taken.index(0)

    def note(self, place: int, taken_bytes: int) -> None:
        """Note what a store has taken."""
        self._taken[place] = taken_bytes

    def beside(self, place: int) -> int:
        """Return the bytes that all others have taken."""
        return sum(self._taken) - self._taken[place]

    def locked(self, act: Callable[[], int]) -> int:
        """Run `act` while no other process or thread writes; return its result, or 0 if one does.

        A record lock belongs to the process and ends with it, even if it is killed.
        """
        if self._pid != os.getpid():  # forked: another thread may have held the lock just then
            self._threads, self._pid = threading.Lock(), os.getpid()
        if not self._threads.acquire(timeout=_PATIENCE_S):
            return 0
        try:
            if not self._lock_file():
                return 0
            try:
                return act()
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _lock_file(self) -> bool:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until_s:
                    return False
                time.sleep(0.0005)
            else:
                return True


class Store:
    """A cache that only grows; what is in it stays until the last process lets go.

    The memory has no name, so nothing is left behind by a process that is killed, and the size
    of /dev/shm does not limit it. Pages are taken when they are written. Readers take no lock:
    an entry counts if its check word matches. A writer holds a kernel record lock, which
    ends with its process, and gives up after 50 ms: a put may be refused but never hangs.

    Make it before the workers are forked. A spawned worker gets it by pickle.

    Args:
        budget_bytes: the most that it takes, including its table.
        spill_dir: a folder on disk to hold it in a nameless file instead of memory.
        account: that of others, with which it shares the budget.

    Raises:
        OSError: the system provides no such memory.
        ValueError: the budget is under 64 KiB.
    """

    def __init__(
        self, budget_bytes: int, *, spill_dir: str | None = None, account: Account | None = None
    ) -> None:
        if budget_bytes < _LEAST_BYTES:
            raise ValueError(f"{budget_bytes} bytes are too few for a store")
        account = account or Account()
        self._owner_pid, self._fd = 0, _open_nameless(spill_dir)
        os.ftruncate(self._fd, budget_bytes)
        self._adopt(self._fd, budget_bytes, account, account.open())
        if spill_dir is not None:  # a full disk must show here, not as a signal at the first write
            os.posix_fallocate(self._fd, 0, self._arena)
        _HEADER.pack_into(self._map, 0, self._arena, self._arena, 0)
        account.note(self._place, self._arena)
        self._owner_pid = os.getpid()

    def _adopt(self, fd: int, budget_bytes: int, account: Account, place: int) -> None:
        self.budget_bytes = budget_bytes
        self.account, self._place = account, place
        self._owner_pid = 0
        self._fd = fd
        self._map: mmap.mmap = mmap.mmap(fd, budget_bytes)
        self._view = memoryview(self._map)
        self._slot_count = max(64, budget_bytes // _TYPICAL_ITEM_BYTES)
        table_bytes = self._slot_count * _SLOT.size
        self._arena: int = _rounded(_PAGE_BYTES + table_bytes, _PAGE_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return _reopen, (path, self.budget_bytes, self.account, self._place)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0 and not ends():  # Python may have cleared this module by then
            self.release()
            os.close(fd)

    def release(self) -> None:
        """Take no more, and let the others on the account have the room; reading goes on.

        Only the process that made it can do so. It takes no lock, as it may be called anywhere.
        """
        if self._owner_pid == os.getpid():
            self._owner_pid = 0
            _RELEASED.pack_into(self._map, _HEADER.size, 1)
            self.account.note(self._place, 0)

    @property
    def _is_released(self) -> bool:
        return bool(_RELEASED.unpack_from(self._map, _HEADER.size)[0])

    @property
    def _limit(self) -> int:
        """Where its memory ends, given what others on the account have taken."""
        beside = self.account.beside(self._place)
        return 0 if self._is_released else self.budget_bytes - beside

    def get(self, key: bytes) -> memoryview | None:
        """Return the bytes of `key`, None where there are none.

        The view is of the shared memory itself. It is writable only because torch warns about
        views that are not: only read and copy it.
        """
        found = self._find(*_halves(key))
        if found is None:
            return None
        _, offset, length = found
        return self._view[offset : offset + length]

    def has(self, key: bytes) -> bool:
        """Return whether there are bytes for `key`."""
        return self._find(*_halves(key)) is not None

    def put(self, key: bytes, *buffers: Any, replace: bool = False) -> bool:
        """Store the bytes of `buffers`, one after the other; return whether they are stored.

        It is refused if the budget is spent, the key is there already, or others keep writing.

        Args:
            key: what to find them by.
            buffers: objects with the buffer protocol.
            replace: let an existing key refer to these bytes from now on. The old ones
                stay in memory, for whoever reads them.
        """
        return self.put_all([(key, buffers, replace)]) == 1

    def put_all(self, entries: Sequence[tuple[bytes, Sequence[Any], bool]]) -> int:
        """Store several entries, each with the arguments of `put`; return how many are stored."""
        wanted = [_Entry(*entry) for entry in entries]
        if not self.account.locked(lambda: self._reserve(wanted)):
            return 0
        for entry in wanted:
            at = entry.offset
            for part in entry.parts if at else ():
                self._view[at : at + part.nbytes] = part
                at += part.nbytes
        return self.account.locked(lambda: sum(map(self._publish, wanted)))

    def lay(self, length: int, count: int) -> memoryview | None:
        """Return fresh memory that no key leads to, to be filled; None where there is none.

        Args:
            length: bytes.
            count: entries that it adds.
        """
        start = self.account.locked(lambda: self._allocate(length, count))
        return self._view[start : start + length] if start else None

    @property
    def room_count(self) -> float:
        """How many entries like those so far fit in total; infinite while there are none."""
        seen = self.counts()
        if not seen["entries"]:
            return float("inf")
        room_bytes = max(0, self._limit - self._arena)
        by_bytes = room_bytes * seen["entries"] / max(1, seen["bytes"])
        return min(by_bytes, _FULL_RATIO * self._slot_count)

    def has_room(self, count_bytes: int) -> bool:
        """Return whether `count_bytes` more bytes fit."""
        start = _HEADER.unpack_from(self._map, 0)[0]
        return int(start) + count_bytes <= self._limit

    def counts(self) -> dict[str, int]:
        """Return entries and bytes taken by all processes."""
        end, _, entry_count = _HEADER.unpack_from(self._map, 0)
        return {"entries": entry_count, "bytes": end - self._arena}

    # ---- the table

    def _find(self, high: int, low: int) -> tuple[int, int, int] | None:
        """Return slot, offset and length of a key."""
        for slot in self._probe(low):
            a, b, offset, length, check = _SLOT.unpack_from(self._map, slot)
            if not (a or b or check):
                return None
            if a == high and b == low and check == _check(a, b, offset, length):
                return slot, offset, length
        return None

    def _probe(self, low: int) -> Iterator[int]:
        first = low % self._slot_count
        for place in range(first, first + min(_LONGEST_PROBE, self._slot_count)):
            yield _PAGE_BYTES + _SLOT.size * (place % self._slot_count)

    def _free_slot(self, low: int) -> int | None:
        """Return a slot that nobody finished writing: empty, or left by a killed writer."""
        for slot in self._probe(low):
            a, b, offset, length, check = _SLOT.unpack_from(self._map, slot)
            if check != _check(a, b, offset, length):
                return slot
        return None

    # ---- under the lock

    def _reserve(self, wanted: Sequence[_Entry]) -> bool:
        """Give each entry a place, as far as there is room; return whether one has got any."""
        seen: set[tuple[int, int]] = set()  # a key may stand several times in a batch
        for entry in wanted:
            if self._find(*entry.halves):
                is_due = entry.replace
            else:
                is_due = entry.halves not in seen and bool(self._free_slot(entry.halves[1]))
            if is_due:
                entry.offset = self._allocate(entry.length, 0)
            seen.add(entry.halves)
        return any(entry.offset for entry in wanted)

    def _allocate(self, length: int, count: int) -> int:
        """Return where `length` bytes for `count` entries may be written, 0 for nowhere."""
        start, allocated, entry_count = _HEADER.unpack_from(self._map, 0)
        end = _rounded(start + max(1, length), _ALIGN_BYTES)
        limit = self._limit
        if end > limit:
            return 0
        if end > allocated:
            until = min(limit, _rounded(end, _ALLOCATE_BYTES))
            try:
                os.posix_fallocate(self._fd, allocated, until - allocated)
            except OSError:
                return 0
            allocated = until
        _HEADER.pack_into(self._map, 0, end, allocated, entry_count + count)
        self.account.note(self._place, end)
        if self._is_released:  # meanwhile
            self.account.note(self._place, 0)
        return int(start)

    def _publish(self, entry: _Entry) -> bool:
        """Let the key of an entry lead to its bytes; return whether it does."""
        found = self._find(*entry.halves)
        slot = found[0] if found else self._free_slot(entry.halves[1])
        if not entry.offset or slot is None or (found and not entry.replace):
            return False
        fields = *entry.halves, entry.offset, entry.length
        _SLOT.pack_into(self._map, slot, *fields, _check(*fields))
        start, allocated, entry_count = _HEADER.unpack_from(self._map, 0)
        _HEADER.pack_into(self._map, 0, start, allocated, entry_count + (not found))
        return True


class _Entry:
    """Bytes that are to be stored, and where they will lie; 0 for nowhere."""

    def __init__(self, key: bytes, buffers: Sequence[Any], replace: bool) -> None:
        views = [memoryview(part) for part in buffers]
        self.parts = [view.cast("B") for view in views if view.nbytes]
        self.length = sum(part.nbytes for part in self.parts)
        self.halves = _halves(key)
        self.replace = replace
        self.offset = 0


def _open_nameless(spill_dir: str | None) -> int:
    """Return a file that no folder lists: in memory, or in a folder."""
    if spill_dir is None:
        return os.memfd_create("samples", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(dir=spill_dir)
    os.unlink(path)
    return fd


def _reopen(path: str, budget_bytes: int, account: Account, place: int) -> Store:
    store = Store.__new__(Store)
    store._adopt(os.open(path, os.O_RDWR | os.O_CLOEXEC), budget_bytes, account, place)
    return store


def _reopen_account(path: str) -> Account:
    account = Account.__new__(Account)
    account._adopt(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return account


def _halves(key: bytes) -> tuple[int, int]:
    digest = blake2b(key, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _check(high: int, low: int, offset: int, length: int) -> int:
    """Return a word that a half-written slot will not have; never 0 for a real one."""
    mixed = (high ^ (low * 3) ^ (offset * 0x9E3779B97F4A7C15) ^ (length * 0xC2B2AE3D27D4EB4F)) + 1
    return (mixed & _WORD) or 1


def _rounded(count_bytes: int, unit_bytes: int) -> int:
    return -(-count_bytes // unit_bytes) * unit_bytes
