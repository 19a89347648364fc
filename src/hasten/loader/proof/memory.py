"""Which objects are memory of numbers, and where it lies."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


@cache
def is_memory(kind: Any) -> bool:
    """Return whether objects of a class are memory of numbers, of their own or of others."""
    names = {parent.__name__ for parent in kind.__mro__}
    return bool(names & {"Tensor", "ndarray", "bytearray", "array", "memoryview", "mmap"}) or (
        "_ctypes" in {parent.__module__ for parent in kind.__mro__}
        and bool(names & {"Array", "Structure"})
    )


def span_of(one: Any) -> tuple[int, int] | None:
    """Return where the memory of an array begins and ends."""
    try:
        if hasattr(one, "untyped_storage"):
            storage = one.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if not hasattr(one, "__array_interface__"):
            one = sys.modules["numpy"].frombuffer(one, "u1")
        start = one.__array_interface__["data"][0]
        reach = sum((n - 1) * abs(s) for n, s in zip(one.shape, one.strides, strict=True))
        low = sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True) if s < 0)
        return start + low, start + low + reach + one.itemsize
    except Exception:  # sparse, meta and quantized tensors have no such memory
        return None


def sharing(read: list[Any], arrays: list[Any]) -> set[int]:
    """Return the arrays and tensors that lie in the memory of others that are read."""
    taken = sorted(span for one in read if (span := span_of(one)))
    files = {path for one in read if (path := getattr(one, "filename", None))}
    found = {id(one) for one in arrays if getattr(one, "filename", None) in files - {None}}
    for one in arrays if taken else ():
        span = span_of(one)
        if span and any(start < span[1] and span[0] < end for start, end in taken):
            found.add(id(one))
    return found
