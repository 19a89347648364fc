"""Gradients of a way back, added over the ranks while it goes on.

As `DistributedDataParallel` does it; but its reducer adds what is in `grad` of the weights, and
that is the script's.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hasten.root_calls.ranks.meeting import Meeting

# The first is small, so that the network soon has something to do. Others are smaller than those of
# DistributedDataParallel (25 MiB), into two of which most models for CPUs fit: there the second one
# is complete when nothing is left to compute.
_FIRST_BYTES, _MOST_BYTES = 1 << 20, 2 << 20


@dataclass(slots=True)
class _Bucket:
    """Gradients that travel together, as one row of real numbers.

    Attributes:
        dtype: of the row; narrower gradients are added in single precision.
        places: where the numbers of each leaf begin.
        count: numbers in the row.
    """

    dtype: Any
    places: dict[int, int] = field(default_factory=dict)
    count: int = 0
    missing: set[int] = field(default_factory=set)
    row: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the row."""
        size: int = self.count * self.dtype.itemsize
        return size

    def opened(self) -> Any:
        """Return the row, which has zeros where no gradient was put."""
        import torch

        if self.row is None:
            self.row = torch.zeros(self.count, dtype=self.dtype)
        return self.row

    def take(self, number: int, gradient: Any) -> None:
        """Copy the gradient of a leaf into the row; None is a gradient of zeros."""
        self.missing.discard(number)
        if gradient is not None:
            part, start = _as_real(gradient).reshape(-1), self.places[number]
            self.opened()[start : start + len(part)] = part


class GradientSums:
    """The sums of one way back: all ranks send off the same buckets in the same order.

    Args:
        meeting: the ranks.
        leaves: whose gradients are added, by number.
        source_count: how many gradients there are with those that are not added; for each of them,
            `total` tells whether any rank has it.
    """

    def __init__(self, meeting: Meeting, leaves: Mapping[int, Any], source_count: int) -> None:
        self._meeting = meeting
        self._leaves = leaves
        self._buckets = _buckets(leaves)
        self._waits: list[Callable[[], None]] = []  # for the buckets that were sent off
        last = self._buckets[-1]  # what was reached is known at the end, and goes with it
        self._flags = slice(last.count, last.count + source_count)
        last.count += source_count

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Return a context of a way back; buckets are sent off in it once they are complete."""
        early = {n: bucket for bucket in self._buckets[:-1] for n in bucket.places}

        def take(number: int, gradient: Any) -> None:
            early[number].take(number, gradient)
            self._send(len(self._buckets) - 1)

        with _told({number: self._leaves[number] for number in early}, take):
            yield

    def complete(self, found: Sequence[Any]) -> None:
        """Send off what is left, with the gradients that were found: None where there is none.

        Args:
            found: of each source; empty after a failure, for other ranks wait for all the buckets.
        """
        import torch

        for bucket in self._buckets:
            for number in tuple(bucket.missing):
                bucket.take(number, found[number] if found else None)
        if found:
            reached = torch.tensor([float(gradient is not None) for gradient in found])
            self._buckets[-1].opened()[self._flags] = reached
        self._send(len(self._buckets))

    def total(self) -> tuple[dict[int, Any], list[bool]]:
        """Wait; return the sums by number, the same to the bit on each rank, and what was reached.

        All ranks have met since, and know that they give gradients of the same types and shapes.
        """
        sums = {}
        for bucket, wait in zip(self._buckets, self._waits, strict=True):
            wait()
            for number, start in bucket.places.items():
                sums[number] = _as_gradient(bucket.row[start:], self._leaves[number])
        reached = self._buckets[-1].row[self._flags].tolist()
        return sums, [count > 0 for count in reached]

    def _send(self, end: int) -> None:
        """Send off the next buckets before this one, as long as they are complete."""
        for bucket in self._buckets[len(self._waits) : end]:
            if bucket.missing:
                break
            self._waits.append(self._meeting.begin_sum(bucket.opened()))


def _buckets(leaves: Mapping[int, Any]) -> list[_Bucket]:
    """Return buckets for leaves, the last first: their gradients are known first."""
    import torch

    found: list[_Bucket] = []
    for number, leaf in sorted(leaves.items(), reverse=True):
        is_wide = leaf.dtype in (torch.float64, torch.complex128)
        dtype = torch.float64 if is_wide else torch.float32
        most_bytes = _MOST_BYTES if len(found) > 1 else _FIRST_BYTES
        if not found or found[-1].dtype is not dtype or found[-1].size_bytes >= most_bytes:
            found.append(_Bucket(dtype))
        bucket = found[-1]
        bucket.places[number] = bucket.count
        bucket.missing.add(number)
        bucket.count += _as_real(leaf).numel()
    return found or [_Bucket(torch.float32)]


@contextmanager
def _told(leaves: Mapping[int, Any], tell: Callable[[int, Any], None]) -> Iterator[None]:
    """Return a context in which `tell` takes the gradient of each leaf as soon as it is there.

    A hook by torch's public ways would raise its count of hooks, and models are looked at anew.
    """
    before = {}
    for number, leaf in leaves.items():
        if leaf.requires_grad:
            before[number] = leaf._backward_hooks
            leaf._backward_hooks = OrderedDict(hasten=partial(tell, number))
    try:
        yield
    finally:
        for number, hooks in before.items():
            leaves[number]._backward_hooks = hooks


def _as_real(tensor: Any) -> Any:
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _as_gradient(row: Any, leaf: Any) -> Any:
    """Return the numbers at the start of a row as a gradient of a leaf."""
    import torch

    real = _as_real(leaf)
    found = row[: real.numel()].view(real.shape).to(real.dtype)
    return torch.view_as_complex(found.clone()) if leaf.is_complex() else found
