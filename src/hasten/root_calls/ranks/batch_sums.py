"""Sums over the batch by which a model scales what it returns.

A sum over the samples that is divided by a sum of their mask is a mean as long as the mask leaves
nothing out: one batch does not show that shares cannot be joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.root_calls.values import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.root_calls.ranks.messages import RootCall

_ADDING = ("sum", "mean", "nansum", "nanmean", "count_nonzero", "dot")
_SCALING = ("mul", "div", "addcmul", "addcdiv")
_OF_A_SIZE = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones",
              "new_full", "new_empty")  # fmt: skip
_COMPARING = ("eq", "ne", "ge", "gt", "le", "lt")
_READING, _PICKING = "_local_scalar_dense", ("nonzero", "masked_select")


def scaled_by_sums(root_call: RootCall, *, has_scalars: bool) -> tuple[str, Any]:
    """Make a call; return the operation that scales by a sum over the batch, and what it returns.

    Where scalars are returned, a sum that Python reads counts, too, and a choice of elements: their
    number may be divided by.
    """
    seen = _Sums(root_call)
    with _watching(seen.follow):
        result = root_call.call(root_call.args, root_call.kwargs)
    return seen.scaling or (seen.reading if has_scalars else ""), result


class _Sums:
    """What is computed from the samples, and whether it is a sum over them.

    Attributes:
        scaling: an operation that scales something by a sum; empty for none.
        reading: one by which Python learns a sum or a number of elements; empty for none.
    """

    def __init__(self, root_call: RootCall) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self.scaling = self.reading = ""
        self._size = root_call.size
        self._is_sum: Any = WeakTensorKeyDictionary()
        for tensor in root_call.tensors:
            if tensor.dim() and len(tensor) == root_call.size:
                self._is_sum[tensor] = False

    def follow(self, name: str, given: tuple[Any, Any], result: Any, *, draws: bool) -> None:
        """Follow one operation."""
        sums = [self._is_sum[one] for one in tensors_in(given) if one in self._is_sum]
        if not (sums or draws) or _tells_nothing(name, given[0]):
            return
        is_sum = bool(sums) and all(sums)
        if name in _SCALING and len(sums) > 1 and any(sums):
            self.scaling = name
        if _is_read(name, given[0], result, is_sum=is_sum):
            self.reading = name
        if name in _ADDING:
            is_sum = is_sum or _adds_samples(given[0], self._size)
        for one in tensors_in(result):
            self._is_sum[one] = is_sum


def _watching(follow: Callable[..., None]) -> Any:
    """Return a context in which `follow` is told of every operation of torch."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(mode: Any, operation: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
        result = operation(*args, **(kw or {}))
        name = operation.overloadpacket.__name__.removesuffix("_")
        draws = torch.Tag.nondeterministic_seeded in operation.tags
        follow(name, (args, kw), result, draws=draws)
        return result

    return type("SumMode", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _tells_nothing(name: str, args: Any) -> bool:
    """Return whether a result has nothing of the samples, but their number.

    What integers below zero mark is looked for before each call that is shared.
    """
    if name in _COMPARING and not args[0].is_floating_point():
        return isinstance(args[1], int) and args[1] < 0
    return name in _OF_A_SIZE


def _is_read(name: str, args: Any, result: Any, *, is_sum: bool) -> bool:
    """Return whether Python learns a sum, or how many elements a mask selects."""
    if name == "index":
        return any(one is not None and one.element_size() == 1 for one in args[1])
    return name in _PICKING or (name == _READING and is_sum and not isinstance(result, bool))


def _adds_samples(args: Any, size: int) -> bool:
    """Return whether a sum over some dimensions goes over that of the batch."""
    sizes, dims = args[0].shape, args[1] if len(args) > 1 else None
    place = next((index for index, count in enumerate(sizes) if count % size == 0), None)
    return place is not None and (
        not isinstance(dims, (list, tuple))
        or not dims
        or place in {dim % len(sizes) for dim in dims}
    )
