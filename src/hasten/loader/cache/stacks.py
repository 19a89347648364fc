"""The values of a batch kept side by side, each of their tensors in one copy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hasten.loader.cache import packing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Rows = list[Sequence[Any]]

_LONGEST_TEXT = 256


class Unfit(Exception):
    """Values are too different from one another to lie side by side."""


class StackedValues:
    """Values of the same form, that are copied into one piece of memory.

    Tensors lie there; numbers and short texts stay objects of this process.

    Args:
        values: of a batch, at least one.

    Raises:
        Unfit: they are not alike in form, type, shape and strides, or hold something else.
        Unpackable: they hold tensors that are no plain memory of their own.

    Attributes:
        length: bytes that they take.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._columns: list[Sequence[Any]] = []
        self._container_count = 0
        self._build = self._of(values)
        if len(self._columns) + self._container_count > 1:
            for found in map(packing.places, values):
                if len(set(found)) < len(found):  # one object would become two
                    raise Unfit
        ends, at = [], 0
        for column in self._columns:
            at = packing.aligned(at) + len(column) * column[0].nbytes
            ends.append(at)
        self._ends, self.length = ends, at

    def fill(self, view: memoryview) -> list[Any]:
        """Copy the values; return them as they lie there: only read these, or copy them again."""
        rows: Rows = []
        for column, end in zip(self._columns, self._ends, strict=True):
            part = view[end - len(column) * column[0].nbytes : end]
            rows.append(_rows(column, part))
        return list(self._build(rows))

    def _of(self, values: Sequence[Any]) -> Callable[[Rows], Sequence[Any]]:
        """Return what makes the values, given the rows of all columns."""
        kinds = set(map(type, values))
        kind = kinds.pop()
        if kinds:
            raise Unfit
        if _is_plain(kind, values):
            return lambda rows: values
        if kind is dict:
            return self._of_dicts(values)
        if kind in (list, tuple):
            self._container_count += kind is list
            return self._of_sequences(kind, values)
        _check_tensors(values)
        place = len(self._columns)
        self._columns.append(values)
        return lambda rows: rows[place]

    def _of_sequences(self, kind: Any, values: Sequence[Any]) -> Callable[[Rows], Sequence[Any]]:
        if not values[0] or len(set(map(len, values))) > 1:
            raise Unfit
        parts = [self._of(part) for part in zip(*values, strict=True)]
        return lambda rows: [kind(one) for one in zip(*(part(rows) for part in parts), strict=True)]

    def _of_dicts(self, values: Sequence[Any]) -> Callable[[Rows], Sequence[Any]]:
        keys = list(values[0])
        if any(list(one) != keys for one in values) or not set(map(type, keys)) <= {str, int}:
            raise Unfit
        self._container_count += 1
        inside = self._of_sequences(tuple, [tuple(one.values()) for one in values])
        return lambda rows: [dict(zip(keys, one, strict=True)) for one in inside(rows)]


def _is_plain(kind: type, values: Sequence[Any]) -> bool:
    """Return whether values are numbers or short texts, which nobody can write to."""
    if kind in (str, bytes):
        return max(map(len, values)) <= _LONGEST_TEXT
    numpy: Any = sys.modules.get("numpy")
    return kind in packing.PLAIN or (
        numpy is not None and issubclass(kind, numpy.generic) and values[0].dtype.kind in "biufc"
    )


def _check_tensors(values: Sequence[Any]) -> None:
    import torch

    first = values[0]
    if type(first) is not torch.Tensor:
        raise Unfit
    packing.check_tensor(first)
    form = first.dtype, first.shape, first.stride()
    # A copy has the same strides where the tensor has no gaps and no odd axis of one.
    if not first.numel() or first.clone().stride() != form[2]:
        raise Unfit
    for one in values:
        if (one.dtype, one.shape, one.stride()) != form or one.requires_grad:
            raise Unfit
        if not one.is_cpu or one.is_conj() or one.is_neg() or one.__dict__:
            raise Unfit


def _rows(values: Sequence[Any], view: memoryview) -> Sequence[Any]:
    import torch

    first, count = values[0], len(values)
    flat = torch.frombuffer(view, dtype=first.dtype)
    rows = flat.as_strided((count, *first.shape), (first.numel(), *first.stride()))
    torch.stack(tuple(values), out=rows)
    return rows.unbind(0)
