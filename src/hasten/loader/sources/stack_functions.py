"""Methods of items, and functions of Python, NumPy and torch, applied to a whole batch.

Changes of type and shape, whose bits do not depend on how many items there are.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.source import is_user_function
from hasten.loader.sources.item_stack import (
    ItemKind,
    ItemStack,
    NotBatched,
    computed,
    is_plain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGEST, _EXACT = (1 << 63) - 1, 1 << 53


def method_of(stack: ItemStack, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Return what a method gives for each item.

    Raises:
        NotBatched: it is not known.
    """
    of_kind = {ItemKind.TENSOR: _TENSOR_METHODS, ItemKind.ARRAY: _ARRAY_METHODS}.get(stack.kind, {})
    method = of_kind.get(name)
    if method is None or any(isinstance(one, ItemStack) for one in named.values()):
        raise NotBatched(f"`.{name}()` is not known")
    try:
        return method(stack, *arguments, **named)
    except TypeError:
        raise NotBatched(f"`.{name}()` is called in a way that is not known") from None


def _cast(name: str) -> Callable[[ItemStack], ItemStack]:
    return lambda stack: _to(stack, _dtype(name))


def _to(stack: ItemStack, dtype: Any) -> ItemStack:
    import torch

    if type(dtype) is not torch.dtype or dtype.is_complex:
        raise NotBatched("a tensor goes to another device")
    if dtype == stack.value.dtype:
        return stack
    if not (dtype.is_floating_point or dtype is torch.bool):
        limits = torch.iinfo(dtype)
        _refuse_beyond(stack.value, limits.min, limits.max)
    return stack._replace(value=stack.value.to(dtype))


def _refuse_beyond(value: Any, lowest: float, highest: float) -> None:
    """Refuse numbers that an integer type cannot hold, and NaNs.

    What they become depends on an element's position, or torch raises.
    """
    size = value.numel() if hasattr(value, "numel") else value.size
    if size and not lowest <= value.min().item() <= value.max().item() <= highest:
        raise NotBatched("a number does not fit into its type")


def _astype(stack: ItemStack, dtype: Any) -> ItemStack:
    numpy: Any = sys.modules["numpy"]
    asked = numpy.dtype(dtype)
    if asked.kind not in "biuf":
        raise NotBatched("an array becomes one of objects")
    if asked.kind in "iu" and asked != stack.value.dtype:
        limits = numpy.iinfo(asked)
        _refuse_beyond(stack.value, int(limits.min), int(limits.max))
    return stack._replace(value=stack.value.astype(dtype))


def _operation(kind: type[ast.operator]) -> Callable[[ItemStack, Any], Any]:
    return lambda stack, other: computed(kind, stack, other)


def _axes(stack: ItemStack, axes: Sequence[Any], *, more: int = 0) -> list[int]:
    """Return dimensions of one item as those of the stack."""
    if len(axes) == 1 and type(axes[0]) in (tuple, list):
        axes = axes[0]
    count = stack.item_ndim + more
    if not all(type(axis) is int and -count <= axis < count for axis in axes):
        raise NotBatched("a dimension is not there")
    return [axis % count + 1 for axis in axes]


def _unsqueezed(stack: ItemStack, dim: Any) -> ItemStack:
    (place,) = _axes(stack, [dim], more=1)
    key = (*[slice(None)] * place, None)
    return stack._replace(value=stack.value[key])


def _squeezed(stack: ItemStack, dim: Any) -> ItemStack:
    (place,) = _axes(stack, [dim])
    return stack._replace(value=stack.value.squeeze(place))


def _permuted(stack: ItemStack, *dims: Any) -> ItemStack:
    places = [0, *_axes(stack, dims)]
    if len(places) != stack.item_ndim + 1:
        raise NotBatched("a transposition names some dimensions alone")
    permute = "permute" if stack.kind is ItemKind.TENSOR else "transpose"
    return stack._replace(value=getattr(stack.value, permute)(*places))


def _swapped(stack: ItemStack, one: Any, other: Any) -> ItemStack:
    return stack._replace(value=stack.value.transpose(*_axes(stack, [one, other])))


def _reshaped(stack: ItemStack, *shape: Any) -> ItemStack:
    if len(shape) == 1 and type(shape[0]) in (tuple, list):
        shape = tuple(shape[0])
    if not all(type(size) is int for size in shape):
        raise NotBatched("a shape is not known")
    return stack._replace(value=stack.value.reshape(len(stack.value), *shape))


def _flattened(stack: ItemStack) -> ItemStack:
    return _reshaped(stack, -1)


def _same(stack: ItemStack) -> ItemStack:
    return stack


def _number(stack: ItemStack) -> ItemStack:
    """Return Python numbers for those in arrays or tensors."""
    if stack.kind in (ItemKind.INT, ItemKind.FLOAT):
        return stack
    if stack.item_ndim:
        raise NotBatched("an item of several numbers is taken for one")
    value = stack.value.numpy() if stack.kind is ItemKind.TENSOR else stack.value
    if value.dtype.kind in "iu":
        if value.dtype.name == "uint64" and value.max() > _LARGEST:
            raise NotBatched("whole numbers are too large")
        return ItemStack(ItemKind.INT, value.astype("int64"))
    if value.dtype.kind == "f":
        return ItemStack(ItemKind.FLOAT, value.astype("float64"))
    raise NotBatched("an item is neither a whole number nor a real one")


_TENSOR_METHODS: dict[str, Callable[..., Any]] = {
    **{name: _cast(name) for name in ("float", "double", "half", "int", "long", "short", "byte")},
    "to": _to, "type": _to, "add": _operation(ast.Add), "sub": _operation(ast.Sub),
    "mul": _operation(ast.Mult), "div": _operation(ast.Div), "unsqueeze": _unsqueezed,
    "squeeze": _squeezed, "permute": _permuted, "transpose": _swapped, "view": _reshaped,
    "reshape": _reshaped, "flatten": _flattened, "contiguous": _same, "clone": _same,
    "detach": _same, "item": _number,
}  # fmt: skip
_ARRAY_METHODS: dict[str, Callable[..., Any]] = {
    "astype": _astype, "transpose": _permuted, "reshape": _reshaped, "flatten": _flattened,
    "ravel": _flattened, "copy": _same, "item": _number,
}  # fmt: skip


def _tensor(given: Any, dtype: Any = None) -> ItemStack:
    """Return `torch.tensor` of each item, or of a list of numbers in each."""
    import torch

    stack = _listed(given) if _is_row(given) else given
    if not isinstance(stack, ItemStack) or stack.kind is ItemKind.TENSOR:
        raise NotBatched("a tensor is made of something else than an array or numbers")
    if stack.value.dtype.kind in "iu" and (_is_row(given) or not stack.item_ndim):
        _refuse_beyond(stack.value, -_EXACT, _EXACT)  # torch converts via doubles
    found = ItemStack(
        ItemKind.TENSOR, torch.from_numpy(sys.modules["numpy"].ascontiguousarray(stack.value))
    )
    return _to(found, torch.tensor(_first(given)).dtype if dtype is None else dtype)


def _is_row(given: Any) -> bool:
    return type(given) in (list, tuple)


def _listed(members: Sequence[Any]) -> ItemStack:
    """Return lists of numbers, one list for each item, as a stack of arrays."""
    stacks = [one for one in members if isinstance(one, ItemStack) and not one.item_ndim]
    alike = {(one.kind, one.value.dtype) for one in stacks}
    if len(stacks) != len(members) or len(alike) != 1 or stacks[0].kind is ItemKind.TENSOR:
        raise NotBatched("a list is not one of numbers of one kind")
    return ItemStack(ItemKind.ARRAY, sys.modules["numpy"].stack([one.value for one in stacks], 1))


def _first(given: Any) -> Any:
    """Return the first item, as the script sees it."""
    if _is_row(given):
        return [_first(one) for one in given]
    first = given.value[0]
    return first if given.kind is ItemKind.ARRAY else first.item()


def _legacy(name: str, kinds: str = "iuf") -> Callable[[Any], ItemStack]:
    """Return a converter like `torch.FloatTensor` for arrays; it would read a number as a size.

    Args:
        name: of its type; empty for the default one, that of `torch.Tensor`.
        kinds: of the numbers that it takes.
    """

    def convert(given: Any) -> ItemStack:
        stack = _listed(given) if _is_row(given) else given
        if _arrays(stack).value.dtype.kind not in kinds:
            raise NotBatched("a tensor is made of an array of another kind")
        return _tensor(given, _dtype(name))

    return convert


def _dtype(name: str) -> Any:
    """Return the type of torch that a method or a constructor is named after, or the default one.

    >>> _dtype("byte"), _dtype("float32")
    (torch.uint8, torch.float32)
    """
    import torch

    if not name:
        return torch.get_default_dtype()
    return torch.uint8 if name == "byte" else getattr(torch, name)


def _is_tensor_item(value: Any) -> bool:
    import torch

    kind = value.kind if isinstance(value, ItemStack) else None
    return kind is ItemKind.TENSOR or isinstance(value, torch.Tensor)


def _arrays(stack: Any) -> ItemStack:
    if isinstance(stack, ItemStack) and stack.kind is ItemKind.ARRAY and stack.item_ndim:
        return stack
    raise NotBatched("it is made of something else than an array")


def _from_numpy(stack: Any) -> ItemStack:
    return _tensor(_arrays(stack))


def _array(stack: Any, dtype: Any = None) -> ItemStack:
    return _arrays(stack) if dtype is None else _astype(_arrays(stack), dtype)


def _int(stack: Any) -> ItemStack:
    found = _number(stack) if isinstance(stack, ItemStack) else None
    if found is None or found.kind is not ItemKind.INT:
        raise NotBatched("a whole number is made of something else than one")
    return found


def _float(stack: Any) -> ItemStack:
    if not isinstance(stack, ItemStack):
        raise NotBatched("a real number is made of something else than one")
    return ItemStack(ItemKind.FLOAT, _number(stack).value.astype("float64"))


def _length(value: Any) -> int:
    if type(value) in (list, tuple, dict, range) or (is_plain(value) and value.ndim):
        return len(value)
    raise NotBatched("a length is not known")


BUILTINS: dict[str, Any] = {"int": int, "float": float, "len": len}


@cache
def known_functions() -> dict[int, Callable[..., Any]]:
    """Return batched versions of functions, by their ids."""
    import torch

    found: dict[Any, Callable[..., Any]] = {
        int: _int, float: _float, len: _length, torch.tensor: _tensor, torch.as_tensor: _tensor,
        torch.from_numpy: _from_numpy, torch.is_tensor: _is_tensor_item,
        torch.Tensor: _legacy(""), torch.FloatTensor: _legacy("float32"),
        torch.DoubleTensor: _legacy("float64"), torch.LongTensor: _legacy("int64", "iu"),
        torch.IntTensor: _legacy("int32", "iu"),
    }  # fmt: skip
    numpy: Any = sys.modules["numpy"]
    found |= dict.fromkeys((numpy.array, numpy.asarray, numpy.ascontiguousarray), _array)
    # The script may have replaced some of torch's functions with its own.
    return {
        id(function): answer for function, answer in found.items() if not is_user_function(function)
    }
