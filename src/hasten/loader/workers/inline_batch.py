"""How a batch travels from a worker to the main process: through the pipe if it is small.

Torch puts each tensor in its own shared memory, and hands it over through its own connection,
with a challenge and response: hundreds of microseconds per tensor, however small.
"""

from __future__ import annotations

import copy
import operator
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.packing import Unpackable, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_BYTES = 1 << 19


class InlineBatch:
    """A small batch as bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self) -> Any:
        """Return the batch, in memory of its own."""
        return unpack(memoryview(bytearray(self._content)))


def as_pickled(batch: Any) -> Any:
    """Return a batch with the arrays that torch's own workers would deliver: they pickle them.

    Such an array is writable, and contiguous in one order or the other.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(batch) is numpy.ndarray:
        flags = batch.flags
        if flags.writeable and (flags.c_contiguous or flags.f_contiguous):
            return batch
        return batch.copy(order="K" if flags.f_contiguous else "C")
    if isinstance(batch, dict):
        parts: Any = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        return batch
    new = [as_pickled(part) for part in parts]
    if all(map(operator.is_, new, parts)):
        return batch
    return _with_parts(batch, new)


def _with_parts(batch: Any, parts: list[Any]) -> Any:
    """Return a container like another with other parts, of its class, which is not called."""
    if isinstance(batch, tuple):
        made: Any = tuple.__new__(type(batch), parts)
        if hasattr(batch, "__dict__"):
            made.__dict__.update(batch.__dict__)
        return made
    made = copy.copy(batch)
    for key, part in zip(batch if isinstance(batch, dict) else count(), parts, strict=False):
        made[key] = part
    return made


def posted(batch: Any) -> Any:
    """Return what is sent for a batch: itself, or an `InlineBatch`."""
    if not small(batch):
        return batch
    try:
        return InlineBatch(b"".join(pack(batch)))
    except Unpackable:
        return batch


def opened(sent: Any) -> Any:
    """Return the batch that was sent."""
    return sent.open() if type(sent) is InlineBatch else sent


def small(batch: Any) -> bool:
    """Return whether all tensors and arrays of a batch are in a few hundred kilobytes."""
    total = 0
    for leaf in leaves(batch):
        total += leaf.nbytes
        if total > SMALL_BYTES:
            return False
    return True


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of a batch."""
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from leaves(part)
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from leaves(part)
    elif hasattr(batch, "nbytes"):
        yield batch
