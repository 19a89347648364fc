"""One value for each item of a batch, and what can be computed with it.

The operations on stacks are those whose bits do not depend on how many items there are: reading
rows, and sums, differences, products and quotients of elements (IEEE 754-2019, section 5.4.1).
"""

from __future__ import annotations

import ast
import operator
import sys
from array import array
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader.sources.gather import why_not_tensor
from hasten.loader.sources.subsets import take

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = 1 << 31  # products of two still fit
_MOST_PLACES = 32  # in longer lists, the numbers take as long as the calls that are saved
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_WHOLE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class NotBatched(Exception):
    """Why an item cannot be made for a whole batch, in half a sentence."""


class ItemKind(Enum):
    """What one item of a stack is: a Python number, a NumPy array, or a tensor."""

    INT = auto()
    FLOAT = auto()
    ARRAY = auto()
    TENSOR = auto()


class ItemStack(NamedTuple):
    """One value for each item of a batch.

    Attributes:
        kind: of each.
        value: an array, or a tensor where items are tensors; its first dimension counts the items.
    """

    kind: ItemKind
    value: Any

    @property
    def item_ndim(self) -> int:
        """The number of dimensions of one item; an array without any is a NumPy number."""
        return int(self.value.ndim) - 1


def is_number(value: Any) -> bool:
    """Return whether a value is a number of Python's."""
    return type(value) in (int, float)


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules["numpy"]
    known = type(value) in (numpy.ndarray, numpy.memmap)
    return known and value.dtype.kind in "biuf" and value.dtype.isnative


def _is_tensor(value: Any) -> bool:
    return not why_not_tensor(value) and not value.is_complex()


def is_plain(value: Any) -> bool:
    """Return whether a value is an array or a tensor of numbers."""
    return _is_array(value) or _is_tensor(value)


def indexed(owner: Any, key: Any) -> Any:
    """Return `owner[key]`, for each item if either of the two differs from item to item."""
    parts = key if type(key) is tuple else (key,)
    if isinstance(owner, ItemStack):
        if owner.kind in (ItemKind.INT, ItemKind.FLOAT) or not all(map(_is_place, parts)):
            raise NotBatched("it is indexed by what may differ from item to item")
        return owner._replace(value=owner.value[(slice(None), *parts)])
    first, rest = (parts[0], parts[1:]) if parts else (None, ())
    if isinstance(first, ItemStack) and first.kind is ItemKind.INT:
        found = _rows(owner, first.value)
        return indexed(found, rest) if rest else found
    if isinstance(first, slice) and any(isinstance(end, ItemStack) for end in _ends(first)):
        found = _windows(owner, first)
        return indexed(found, (slice(None), *rest)) if rest else found
    by_place = is_plain(owner) or type(owner) in (list, tuple, range, str)
    by_name = type(owner) is dict and type(key) in (str, int)
    if not by_name and not (by_place and all(map(_is_place, parts))):
        raise NotBatched("it is indexed in a way that is not followed")
    return owner[key]


def _ends(window: slice) -> tuple[Any, ...]:
    return window.start, window.stop, window.step


def _is_place(key: Any) -> bool:
    if type(key) is slice:
        return all(end is None or type(end) is int for end in _ends(key))
    return key is None or key is ... or type(key) is int


def _rows(owner: Any, indices: Any) -> Any:
    """Return `owner[index]` for each index."""
    import torch

    if _is_array(owner) and owner.ndim:
        return ItemStack(ItemKind.ARRAY, sys.modules["numpy"].asarray(owner[indices]))
    if _is_tensor(owner) and owner.ndim:
        return ItemStack(ItemKind.TENSOR, take(owner, torch.from_numpy(indices)))
    if type(owner) not in (list, tuple, range):
        raise NotBatched(f"rows of a {type(owner).__name__} are not read together")
    return _stacked([owner[index] for index in indices.tolist()])


def _stacked(items: list[Any]) -> Any:
    """Return numbers, arrays or tensors as one stack, and lists of them as a list of stacks."""
    import torch

    kinds = set(map(type, items))
    if kinds == {int}:
        return ItemStack(ItemKind.INT, sys.modules["numpy"].frombuffer(array("q", items), "int64"))
    if kinds == {float}:
        return ItemStack(
            ItemKind.FLOAT, sys.modules["numpy"].frombuffer(array("d", items), "float64")
        )
    if len(kinds) == 1 and kinds <= {list, tuple, dict}:
        return _by_place(items)
    alike = len(kinds) == 1 and all(map(is_plain, items))
    if not alike or len({(item.dtype, item.shape) for item in items}) != 1:
        raise NotBatched("the members of a list are of several kinds")
    if kinds == {torch.Tensor}:
        return ItemStack(ItemKind.TENSOR, torch.stack(items))
    return ItemStack(ItemKind.ARRAY, sys.modules["numpy"].stack(items))


def _by_place(items: list[Any]) -> Any:
    """Return what short lists, tuples or dicts of one form hold: a stack for each place in them."""
    first = items[0]
    if len(set(map(len, items))) != 1 or len(first) > _MOST_PLACES:
        raise NotBatched("the members of a list are of several lengths, or long")
    if type(first) is not dict:
        return type(first)(_stacked(list(members)) for members in zip(*items, strict=True))
    if not all(type(key) is str for item in items for key in item):
        raise NotBatched("its items are dicts with other keys than words")
    if any(list(item) != list(first) for item in items):
        raise NotBatched("the members of a list have several keys")
    return {key: _stacked([item[key] for item in items]) for key in first}


def _windows(owner: Any, window: slice) -> ItemStack:
    """Return `owner[start:stop]` for each item; all are of one length."""
    import torch

    numpy: Any = sys.modules["numpy"]
    if window.step is not None or not is_plain(owner) or not owner.ndim:
        raise NotBatched("a slice differs from item to item")
    start, stop = (_bound_of(end) for end in (window.start, window.stop))
    lengths = numpy.unique(stop - start)
    if len(lengths) != 1 or lengths[0] < 1:
        raise NotBatched("slices are of several lengths")
    if numpy.min(start) < 0 or numpy.max(stop) > len(owner):
        raise NotBatched("a slice reaches beyond the end")
    places = start[:, None] + numpy.arange(int(lengths[0]))
    if _is_array(owner):
        return ItemStack(ItemKind.ARRAY, numpy.asarray(owner[places]))
    return ItemStack(ItemKind.TENSOR, owner[torch.from_numpy(places)])


def _bound_of(end: Any) -> Any:
    if isinstance(end, ItemStack) and end.kind is ItemKind.INT:
        return end.value
    raise NotBatched("a slice begins or ends at one place for all")


def computed(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return a sum, difference, product or quotient; for integers, also a remainder."""
    compute = _ARITHMETIC.get(kind) or _WHOLE.get(kind)
    if compute is None:
        raise NotBatched("an operator is not followed")
    both = (left, right)
    stacks = [one for one in both if isinstance(one, ItemStack)]
    if not stacks and all(is_number(one) or is_plain(one) or _is_scalar(one) for one in both):
        return compute(left, right)
    kinds = {one.kind for one in stacks}
    if kinds and kinds <= {ItemKind.INT, ItemKind.FLOAT}:
        return _of_numbers(kind, compute, left, right)
    if len(kinds) != 1 or kind not in _ARITHMETIC:
        raise NotBatched("an operator is not followed")
    # NumPy's numbers, items without dimensions, are promoted by other rules than arrays of them.
    if not stacks[0].item_ndim or not all(_fits(one, stacks[0]) for one in both):
        raise NotBatched("values of several kinds are computed with")
    return ItemStack(
        stacks[0].kind, compute(*(one.value if isinstance(one, ItemStack) else one for one in both))
    )


def _fits(one: Any, stack: ItemStack) -> bool:
    """Return whether a value combines with the whole stack as it does with each item."""
    if isinstance(one, ItemStack):
        return one.item_ndim == stack.item_ndim
    if stack.kind is ItemKind.TENSOR:
        return is_number(one) or (_is_tensor(one) and one.ndim <= stack.item_ndim)
    return is_number(one) or _is_scalar(one) or (_is_array(one) and one.ndim <= stack.item_ndim)


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a number of NumPy's."""
    numpy: Any = sys.modules["numpy"]
    return isinstance(value, numpy.generic) and value.dtype.kind in "iuf"


def _of_numbers(
    kind: type[ast.operator], compute: Callable[[Any, Any], Any], left: Any, right: Any
) -> ItemStack:
    """Compute with Python numbers in 64 bits, if these are enough."""
    numpy: Any = sys.modules["numpy"]
    values = []
    whole = True
    for one in (left, right):
        is_stack = isinstance(one, ItemStack)
        if not is_stack and not is_number(one):
            raise NotBatched("values of several kinds are computed with")
        is_whole = one.kind is ItemKind.INT if is_stack else type(one) is int
        value = one.value if is_stack else one
        if is_whole and not -_SMALL < numpy.min(value) <= numpy.max(value) < _SMALL:
            raise NotBatched("whole numbers are too large")
        values.append(value)
        whole = whole and is_whole
    if kind in (ast.Div, ast.FloorDiv, ast.Mod) and not numpy.all(values[1]):
        raise NotBatched("it divides by zero")
    if kind in _WHOLE and not whole:
        raise NotBatched("an operator is not followed")
    found = numpy.asarray(compute(*values))
    return ItemStack(ItemKind.INT if whole and kind is not ast.Div else ItemKind.FLOAT, found)
