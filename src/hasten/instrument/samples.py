"""How many samples, or tokens, a step consumed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_DEEPEST = 4
_TOKEN_DIMENSIONS = 2


def quietly(look: Callable[..., None], *seen: Any) -> None:
    """Look at something of the script; if that fails, a fact is missing and the script goes on."""
    with suppress(Exception):
        look(*seen)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors inside nested lists, tuples and mappings, a few levels deep."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        for part in _parts(value):
            yield from tensors_in(part, depth + 1)


def first_tensor(value: Any) -> Any:
    """Return the first tensor inside nested lists, tuples and mappings, or None."""
    return next(tensors_in(value), None)


def element_count(value: Any) -> int:
    """Return the elements of all tensors inside nested lists, tuples and mappings."""
    return sum(int(tensor.numel()) for tensor in tensors_in(value))


def _parts(value: Any) -> Sequence[Any]:
    """Return what a list, tuple or mapping holds; nothing of other values."""
    if isinstance(value, (list, tuple)):
        return value
    with suppress(Exception):  # a class of the script's may have any method of this name
        if callable(getattr(value, "values", None)):
            return tuple(value.values())
    return ()


def sample_count(value: Any) -> int:
    """Return the batch dimension of the first tensor in `value`; 0 where there is none."""
    tensor = first_tensor(value)
    return int(tensor.size(0)) if tensor is not None and tensor.dim() else 0


def loaded_count(iterator: Any, batch: Any) -> int:
    """Return the samples of a batch that a loader's iterator gave.

    The first tensor of a batch may have another first dimension: a batch of graphs begins with
    the edges, one of detection with a single picture. Then torch's sampler knows, unless it draws
    one index at a time, where the item may be a whole batch. The script's own is not asked.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    seen = sample_count(batch)
    batches: Any = getattr(iterator, "_index_sampler", None)
    batches = getattr(batches, "_index_sampler", batches)  # our own stream of indices
    if type(batches) is not BatchSampler or batches.batch_size in (1, seen):
        return seen
    order: Any = batches.sampler
    if type(order) not in (RandomSampler, SequentialSampler):
        return seen
    left_count = len(order) - batches.batch_size * (iterator._num_yielded - 1)
    return min(batches.batch_size, left_count) if left_count > 0 else seen


def token_count(value: Any) -> int:
    """Return the number of tokens in `value`: the elements of a 2-D integer tensor, else 0.

    Both (batch, time) and (time, batch) inputs of language models are such tensors.
    """
    tensor = first_tensor(value)
    if tensor is None or tensor.dim() != _TOKEN_DIMENSIONS or tensor.is_floating_point():
        return 0
    return 0 if tensor.is_complex() or str(tensor.dtype) == "torch.bool" else int(tensor.numel())


def _identity(module: int, tensor: Any) -> tuple[tuple[int, ...], Any]:
    """Return what identifies this input of `module`, and what keeps the identity valid.

    Memory is reused: the next micro-batch often lies where the last one was. A weak
    reference to the storage keeps its identity from being reused, but not its bytes.
    """
    try:
        storage = tensor.untyped_storage()
        writes = 0 if tensor.is_inference() else tensor._version
        return (module, tensor.data_ptr(), storage._cdata, writes), storage._weak_ref()
    except RuntimeError:  # sparse and fake tensors have no storage
        return (module, id(tensor)), tensor


class SampleCounter:
    """Count what one step consumed: batches of the loader, or inputs of the root calls.

    A batch is counted when a backward pass follows it; batches of an evaluation are dropped.
    A closure that runs twenty times on one batch (LBFGS) consumes it once.
    """

    def __init__(self) -> None:
        self._tokens = self._loads = self._shares = False
        self._cut_count = self._told_count = 0
        self._loaded_count = self._loaded_waiting = 0
        self._called_count = self._called_waiting = 0
        self._seen: dict[tuple[int, ...], Any] = {}
        self._first = 0

    @property
    def unit(self) -> str:
        """What is counted: samples, tokens, or steps where most of them show nothing else."""
        if 2 * self._told_count < self._cut_count:
            return "steps"
        return "tokens" if self._tokens else "samples"

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note a batch from a loader's iterator."""
        self._loaded_waiting += loaded_count(iterator, batch)

    def called(self, module: int, args: Any, kwargs: Any) -> None:
        """Note the inputs of a root call of `module` (its id)."""
        inputs = (one for one in (*args, *kwargs.values()) if first_tensor(one) is not None)
        first = next(inputs, None)
        if first is None:
            return
        tensor = first_tensor(first)
        # A class of its own may hold other whole numbers, as a graph does its edges.
        is_object = not isinstance(first, (type(tensor), list, tuple, Mapping))
        identity, keeper = _identity(module, tensor)
        if identity in self._seen:
            return
        tokens = 0 if is_object else token_count(tensor)
        if tokens:
            self._tokens = True
        if not self._seen or module == self._first:
            self._called_waiting += tokens or sample_count(tensor)
        if not self._seen:
            self._first = module
        self._seen[identity] = keeper

    def evaluated(self) -> None:
        """Forget what is waiting: it served an evaluation."""
        self._loaded_waiting = self._called_waiting = 0

    def trained(self) -> None:
        """Keep what is waiting: a backward pass follows it."""
        self._loaded_count += self._loaded_waiting
        self._called_count += self._called_waiting
        self._loaded_waiting = self._called_waiting = 0

    def cut(self) -> int:
        """End a step and return its samples (or tokens), at least 1."""
        self.trained()
        self._loads |= bool(self._loaded_count)
        # Several steps on parts of one batch: the first would have all of its samples.
        self._shares |= self._loads and not self._loaded_count and bool(self._called_count)
        whole = self._called_count if self._tokens or self._shares else self._loaded_count
        result = whole or self._called_count or 1
        self._told_count += bool(whole or self._called_count)
        self._cut_count += 1
        self._loaded_count = self._called_count = 0
        self._seen.clear()
        return result
