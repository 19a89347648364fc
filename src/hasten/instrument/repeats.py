"""Whether the same index gives the same bytes when it comes again: a small sample of indices."""

from __future__ import annotations

import ctypes
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT_COUNT = 24
_MOST_BYTES = 1 << 22
_SPREAD, _RANGE = 2654435761, 1 << 32  # Knuth's multiplicative hash


class Repeats:
    """Remember a digest of the items of a few indices, the same few in every process."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, list[Any]]] = {}
        self._limit = _RANGE

    def note(self, indices: Any, items: Any) -> None:
        """Record the items of a batch as the dataset returned them."""
        if not isinstance(indices, (list, tuple)) or len(indices) != len(items):
            return
        for index, item in zip(indices, items, strict=True):
            if type(index) is not int:
                return
            rank = index * _SPREAD % _RANGE
            if rank <= self._limit:
                self._keep(index, rank, item)

    def _keep(self, index: int, rank: int, item: Any) -> None:
        digest = digest_of(item)
        if index in self._seen:
            row = self._seen[index][1]
            row[0] += 1
            row[2] = row[2] and digest is not None and row[1] == digest
            return
        self._seen[index] = (rank, [1, digest, digest is not None])
        if len(self._seen) > _KEPT_COUNT:
            ranks = sorted(self._seen.items(), key=lambda one: one[1][0])
            del self._seen[ranks[-1][0]]
            self._limit = ranks[-2][1][0]

    def told(self) -> dict[str, list[Any]]:
        """Return for each index: how often it came, its digest, whether that never changed."""
        return {str(index): row for index, (_, row) in self._seen.items()}


def merge(told: list[dict[str, list[Any]]]) -> tuple[int, int]:
    """Return how many indices came again, and how many of them with the same bytes."""
    rows: dict[str, list[list[Any]]] = {}
    for one in told:
        for index, row in one.items():
            rows.setdefault(index, []).append(row)
    again = [row for row in rows.values() if sum(count for count, _, _ in row) > 1]
    same = [row for row in again if all(r[2] for r in row) and len({r[1] for r in row}) == 1]
    return len(again), len(same)


def digest_of(item: Any) -> str | None:
    """Return a digest of an item's bytes; None where part of it has no known bytes."""
    found = hashlib.blake2b(digest_size=8)
    left_bytes = _MOST_BYTES
    for part in _parts(item):
        if part is None or len(part) > left_bytes:
            return None
        left_bytes -= len(part)
        found.update(part)
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes | None]:
    """Yield the bytes of an item's parts; None for a part without known bytes."""
    kind = type(value)
    if kind is dict:
        value = [*value.keys(), *value.values()]
        kind = list
    if kind in (list, tuple):
        yield f"{kind.__name__}{len(value)}".encode()
        for part in value:
            yield from _parts(part)
    elif value is None or kind in (int, float, bool, str, bytes):
        yield repr(value).encode()
    else:
        yield from _array_parts(value)


def _array_parts(value: Any) -> Iterator[bytes | None]:
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.is_cpu and value.layout is torch.strided and not value.requires_grad
        if not plain or value.nbytes > _MOST_BYTES:
            yield None
            return
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        whole = value.detach().contiguous()
        yield ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):  # NumPy's arrays and numbers
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes() if value.dtype != object else None
    else:
        yield None
