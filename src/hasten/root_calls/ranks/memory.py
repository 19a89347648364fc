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


def room_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes that tensors take in a region."""
    return sum(_rounded(tensor.numel() * tensor.element_size()) for tensor in tensors)


class Region:
    """One anonymous mapping; nothing of it is left when its processes have ended."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(size_bytes, mmap.PAGESIZE)
        self.used_bytes = 0  # where the next tensor will lie; what is behind may be overwritten
        self._map = mmap.mmap(-1, self.size_bytes)

    def reserve(self, like: Any) -> TensorPlace:
        """Find room for a tensor of this form, dense in memory."""
        import torch

        stride = torch.empty_like(like, device="meta").stride()  # dense
        place = TensorPlace(self.used_bytes, tuple(like.shape), tuple(stride), like.dtype)
        end_bytes = self.used_bytes + _rounded(like.numel() * like.element_size())
        if end_bytes > self.size_bytes:
            raise RuntimeError("tensors do not fit into the memory of messages")
        self.used_bytes = end_bytes
        return place

    def put(self, tensor: Any) -> TensorPlace:
        """Copy a tensor into the region."""
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
