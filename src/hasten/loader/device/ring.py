"""Buffers that are reused once nobody holds them any more.

For memory that is expensive to get: page-locked, or fresh from the kernel with page faults.
"""

from __future__ import annotations

from math import prod
from sys import getrefcount
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_COUNT = 16
_MOST_BYTES = 1 << 29


def holder_count(storage: Any) -> int | None:
    """Return how many references a storage has, including the caller's; None if torch cannot tell.

    It counts torch's references (every tensor and view on it, what autograd saved, DLPack
    capsules, NumPy arrays, which hold a tensor) and Python's: a storage has one Python object,
    and whoever else holds that adds nothing to torch's count. A bare address is not a reference,
    nor is it one to torch's own allocator.
    """
    import torch

    count = getattr(torch._C, "_storage_Use_Count", None)
    return None if count is None else int(count(storage._cdata)) + getrefcount(storage)


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether elements fill their memory range, each place once, in any order.

    >>> is_dense((2, 3), (3, 1)), is_dense((2, 3), (1, 2)), is_dense((2, 3), (0, 1))
    (True, True, False)
    """
    expected = 1
    for step, count in sorted((s, n) for s, n in zip(stride, size, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= count
    return True


class _Slot:
    """One buffer, as bytes; `busy` tells whether a device still reads it."""

    __slots__ = ("address", "busy", "bytes_", "idle_count", "size_bytes", "storage")

    def __init__(self, bytes_: Any) -> None:
        self.bytes_ = bytes_
        self.storage = bytes_.untyped_storage()
        self.address = bytes_.data_ptr()
        self.size_bytes = int(bytes_.numel())
        self.busy: Callable[[], bool] | None = None
        self.idle_count = holder_count(self.storage)

    def is_intact(self) -> bool:
        """Whether the script has neither moved (`share_memory_`) nor resized the storage."""
        return bool(
            self.storage.data_ptr() == self.address and self.storage.nbytes() == self.size_bytes
        )

    def is_free(self) -> bool:
        if self.busy is not None and self.busy():
            return False
        return self.idle_count is not None and holder_count(self.storage) == self.idle_count


class Ring:
    """Lend buffers, and lend them again when they have come back.

    There is no call to return one: a buffer is free when the last reference to its storage
    is gone, wherever it was kept, and when no device reads it any more. Buffers have exactly
    the bytes requested, so a tensor in one saves, resizes and shares like any other.

    Not for batches that a script gets in page-locked memory: only torch's own allocator knows of
    the copies that the script starts from them with `non_blocking=True`. It reuses such memory
    after those copies, as this class does after its fences.

    Args:
        allocate: returns a new one-dimensional tensor of so many uint8.
        most_count: buffers at most.
        most_bytes: of all of them together.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any],
        *,
        most_count: int = _MOST_COUNT,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._allocate = allocate
        self._most_count = most_count
        self._most_bytes = most_bytes
        self._slots: list[_Slot] = []
        self._lock = Lock()

    def lend(self, size: Sequence[int], stride: Sequence[int], dtype: Any) -> Any | None:
        """Return a tensor in a buffer of the ring, its values undefined; None where none is free.

        Args:
            size: of the tensor, not empty.
            stride: dense, in any order of the dimensions.
            dtype: of the tensor.
        """
        import torch

        if torch.is_inference_mode_enabled():  # an inference tensor would be found later
            return None
        size_bytes = prod(size) * dtype.itemsize
        with self._lock:
            slot = self._find(size_bytes)
            if slot is None:
                return None
            # `data` has its own version counter and is not a view.
            return slot.bytes_.view(dtype).as_strided(size, stride).data

    def fence(self, tensor: Any, busy: Callable[[], bool]) -> None:
        """Keep the buffer of `tensor` from being lent while `busy()`."""
        with self._lock:
            for slot in self._slots:
                if slot.address == tensor.data_ptr():
                    slot.busy = busy

    def _find(self, size_bytes: int) -> _Slot | None:
        self._slots = [slot for slot in self._slots if slot.is_intact()]
        for place, slot in enumerate(self._slots):
            if slot.size_bytes == size_bytes and slot.is_free():
                slot.busy = None
                self._slots.append(self._slots.pop(place))  # in order of their last use
                return slot
        return self._grow(size_bytes)

    def _grow(self, size_bytes: int) -> _Slot | None:
        for slot in list(self._slots):
            if self._has_room(size_bytes):
                break
            if slot.is_free():  # of another size
                self._slots.remove(slot)
        if not self._has_room(size_bytes):
            return None
        slot = _Slot(self._allocate(size_bytes))
        if slot.idle_count is None:
            return None
        self._slots.append(slot)
        return slot

    def _has_room(self, size_bytes: int) -> bool:
        held_bytes = sum(slot.size_bytes for slot in self._slots)
        return len(self._slots) < self._most_count and held_bytes + size_bytes <= self._most_bytes
