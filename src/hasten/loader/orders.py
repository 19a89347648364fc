"""The order of torch's own samplers as tensors: same numbers, same draws at the same moments.

A `BatchSampler` passes 50,000 numbers from one Python generator to the next. Where a source
reads a batch in ten microseconds, that is half of the remaining time.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.loader.view import new_tensors_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AHEAD_COUNT = 1024
_CHUNK_COUNT = 1 << 16


def fast_indices(sampler: Any) -> Iterator[Any] | None:
    """Return what `iter(sampler)` would, each batch as a tensor; None if that is uncertain.

    It knows torch's own `BatchSampler` over torch's own `SequentialSampler`, and over a
    `RandomSampler` that shuffles all samples. As in torch, nothing happens before the first
    `next`. From then on, each generator that others can see is drawn from as often, and as late,
    as by torch.

    Returns:
        1-D int64 tensors on the CPU, to be read but not written: they share memory.
        `tolist()` gives the list that torch would.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    if type(sampler) is not BatchSampler or new_tensors_device().type != "cpu":
        return None
    inner: Any = sampler.sampler
    if type(inner) is SequentialSampler:
        start = _sequential
    elif type(inner) is RandomSampler and not inner.replacement and inner._num_samples is None:
        start = _random
    else:
        return None
    is_known = _untouched(sampler) and _untouched(inner) and _proved(sampler.drop_last)
    return _batches(sampler, start) if is_known else None


def _untouched(sampler: Any) -> bool:
    """Return whether the methods of a torch sampler are still torch's own."""
    from torch.utils.data import sampler as module

    kind: Any = type(sampler)
    functions = [kind.__iter__]
    if hasattr(kind, "num_samples"):
        functions.append(kind.num_samples.fget)
    own = all(getattr(function, "__globals__", None) is vars(module) for function in functions)
    return own and kind.__getattribute__ is object.__getattribute__


def _sequential(sampler: Any) -> Iterator[Any]:
    import torch

    count = len(sampler.data_source)
    for start in range(0, count, _CHUNK_COUNT):
        stop = min(start + _CHUNK_COUNT, count)
        yield torch.arange(start, stop, dtype=torch.int64, device="cpu")


def _random(sampler: Any) -> Iterator[Any]:
    """Yield what torch draws, each draw made when torch would make it.

    Where the data has grown or shrunk meanwhile, torch begins a second permutation. If nothing of
    it is used, and nobody sees the generator, it is skipped.
    """
    import torch

    count, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(seed)
    for _ in range(sampler.num_samples // count):
        yield torch.randperm(count, generator=generator)
    rest_count = sampler.num_samples % count
    if rest_count or sampler.generator is not None:
        yield torch.randperm(count, generator=generator)[:rest_count]


def _batches(sampler: Any, start: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """Cut the runs of the inner sampler into batches.

    Scripts that grow their batches set `batch_size` during a pass; torch heeds it
    unless it drops the last batch.
    """
    import torch

    drop_last, size = sampler.drop_last, sampler.batch_size
    runs, rest = start(sampler.sampler), torch.empty(0, dtype=torch.int64, device="cpu")
    while True:
        if not drop_last:
            size = sampler.batch_size
        rest = _filled(rest, runs, size)
        if not 0 < size <= len(rest):
            break
        taken_count = 0
        for batch in rest[: min(len(rest) // size, _AHEAD_COUNT) * size].split(size):
            taken_count += size
            yield batch
            if not drop_last and sampler.batch_size != size:
                break
        rest = rest[taken_count:]
    if len(rest) and size and not drop_last:
        yield rest


def _filled(rest: Any, runs: Iterator[Any], size: int) -> Any:
    """Ask for runs only until a batch is full, since each may draw."""
    import torch

    while len(rest) < size:
        run = next(runs, None)
        if run is None:
            break
        rest = torch.cat((rest, run)) if len(rest) else run
    return rest


@cache
def _proved(drop_last: bool) -> bool:
    """Return whether this release of torch draws as we do, tried once on small samplers."""
    import torch

    before = torch.get_rng_state()
    cases = [(size, given, drop_last) for size in (3, 7) for given in (False, True)]
    try:
        return all(_story(_own, *case) == _story(iter, *case) for case in cases)
    finally:
        torch.set_rng_state(before)


def _own(sampler: Any) -> Iterator[list[int]]:
    return (batch.tolist() for batch in _batches(sampler, _random))


def _story(begin: Any, size: int, given: bool, drop_last: bool) -> list[Any]:
    """Return the batches of a small sampler, and the generator's state after each.

    Between two batches they grow, which torch 2.5 heeds in another way.
    """
    import torch
    from torch.utils.data import BatchSampler, RandomSampler

    seen = torch.Generator() if given else torch.default_generator
    seen.manual_seed(size)
    inner = RandomSampler(range(7), generator=seen if given else None)
    told: list[Any] = []
    sampler = BatchSampler(inner, size, drop_last=drop_last)
    for batch in begin(sampler):
        told += [batch, seen.get_state().tolist()]
        sampler.batch_size = size + 1
    return [*told, seen.get_state().tolist()]
