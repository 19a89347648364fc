"""Memory that a process shares with those that are forked from it."""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIGNMENT_BYTES = 64


class TensorPlace(NamedTuple):
    """Where a tensor lies in a region, and its form."""

    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any


class NoRoomError(Exception):
    """A region is too small for what was put into it."""


def room_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes that tensors take in a region."""
    return sum(_rounded(tensor.numel() * tensor.element_size()) for tensor in tensors)


class Region:
    """One anonymous mapping; nothing of it is left when its processes have ended.

    Args:
        size_bytes: of the mapping.
    """

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(size_bytes, mmap.PAGESIZE))
        self._next_bytes = 0

    def rewind(self, offset_bytes: int = 0) -> None:
        """Go on at an offset; what lies behind it may be overwritten."""
        self._next_bytes = offset_bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of the mapping."""
        return len(self._map)

    @property
    def used_bytes(self) -> int:
        """Where the next tensor will lie."""
        return self._next_bytes

    def reserve(self, like: Any) -> TensorPlace:
        """Find room for a tensor of this form, dense in memory.

        Raises:
            NoRoomError: there is none.
        """
        import torch

        stride = torch.empty_like(like, device="meta").stride()  # dense
        place = TensorPlace(self._next_bytes, tuple(like.shape), tuple(stride), like.dtype)
        end_bytes = self._next_bytes + _rounded(like.numel() * like.element_size())
        if end_bytes > len(self._map):
            raise NoRoomError
        self._next_bytes = end_bytes
        return place

    def put(self, tensor: Any) -> TensorPlace:
        """Copy a tensor into the region.

        Raises:
            NoRoomError: it does not fit.
        """
        place = self.reserve(tensor)
        self.at(place).copy_(tensor.detach())
        return place

    def at(self, place: TensorPlace) -> Any:
        """Return the memory at a place as a tensor."""
        import torch

        count = prod(place.shape)
        if not count:
            return torch.empty(place.shape, dtype=place.dtype)
        flat = torch.frombuffer(
            self._map, dtype=place.dtype, count=count, offset=place.offset_bytes
        )
        return flat.as_strided(place.shape, place.stride)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
