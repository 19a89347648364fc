"""A DataLoader seen with other settings, without touching the script's own object."""

from __future__ import annotations

from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFETCH_COUNT = 2
_SERIAL = count(1)


class LoaderView:
    """Stand in for a DataLoader where torch's iterators read its settings.

    Scripts, trainers and `__setattr__` guards hold the loader itself, so it is never written:
    `loader.num_workers` still says what the script said.
    """

    def __init__(self, loader: Any, **overrides: Any) -> None:
        self.__dict__.update(overrides)
        self.__dict__["_loader"] = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Stream:
    """The indices of one pass. Iterating it goes on where it stands.

    Args:
        indices: what is left of the sampler's own iterator.
        sampler: where they come from, for the length.
        seed: of the workers that will fetch.
        is_open: False holds the indices back until the first batch is asked for. A loader
            without workers asks its sampler that late, and a sampler draws random numbers.
    """

    def __init__(
        self, indices: Iterator[Any], sampler: Any, *, seed: int, is_open: bool = True
    ) -> None:
        self.indices = indices
        self.sampler = sampler
        self.seed = seed
        self.is_open = is_open

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if not self.is_open:
            raise StopIteration
        return next(self.indices)

    def __len__(self) -> int:
        return len(self.sampler)


def begin_stream(loader: Any, *, resumed: bool) -> Stream:
    """Start the sampler of `loader` with the random draws of its own iterator, in their order.

    torch starts the sampler, draws a base seed, and with workers starts the sampler once more
    and asks it for what they fetch ahead. Whoever fetches then must draw nothing.

    Args:
        loader: the script's loader.
        resumed: its own workers would have stayed since an earlier pass (no base seed).
    """
    import torch

    sampler, own_count = loader._index_sampler, int(loader.num_workers)
    indices, seed = iter(sampler), _next_seed()
    if not resumed:
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        if own_count:
            indices = iter(sampler)
    if own_count:
        ahead = list(islice(indices, own_count * loader.prefetch_factor))
        indices = chain(ahead, indices)
    return Stream(indices, sampler, seed=seed, is_open=own_count > 0)


def rest_of(loader: Any, indices: Iterator[Any]) -> Stream:
    """Return what is left of a pass, to be fetched by others; nothing is drawn."""
    return Stream(indices, loader._index_sampler, seed=_next_seed())


def _next_seed() -> int:
    """Return a seed that no earlier workers had, without a draw from the script's generator."""
    import torch

    return (torch.initial_seed() + next(_SERIAL)) % (1 << 63)


def make_iterator(loader: Any, worker_count: int, stream: Stream, *, kept: bool = False) -> Any:
    """Return torch's own iterator over `stream` with `worker_count` workers.

    Args:
        loader: the script's loader, or a view of it.
        worker_count: worker processes; 0 fetches in this process.
        stream: the indices; the iterator draws no random number of the script's.
        kept: workers outlive the epoch (`persistent_workers`).
    """
    import torch
    from torch.utils.data import dataloader

    overrides: dict[str, Any] = {
        "num_workers": worker_count,
        "persistent_workers": kept and worker_count > 0,
        "prefetch_factor": (loader.prefetch_factor or _PREFETCH_COUNT) if worker_count else None,
        "timeout": loader.timeout if worker_count else 0,
        "generator": torch.Generator().manual_seed(stream.seed),
        "_index_sampler": stream,
    }
    kind = "_MultiProcessingDataLoaderIter" if worker_count else "_SingleProcessDataLoaderIter"
    return getattr(dataloader, kind)(LoaderView(loader, **overrides))


def let_flow(iterator: Any) -> None:
    """Open the stream of an iterator at its first batch, and let its workers fetch ahead."""
    stream = iterator._sampler_iter
    if type(stream) is Stream and not stream.is_open:
        stream.is_open = True
        ahead_count = iterator._num_workers and iterator._num_workers * iterator._prefetch_factor
        for _ in range(ahead_count):
            iterator._try_put_index()


def steerable(loader: Any) -> bool:
    """Return whether another number of workers leaves the samples and their order alone.

    Iterable datasets split their stream by worker, so their samples would change. Workers that
    are given another batch size by hand (`batch_size=None`) work as usual.
    """
    from torch.utils.data import DataLoader

    plain_iter = type(loader)._get_iterator is DataLoader._get_iterator
    return bool(loader._dataset_kind == 0 and plain_iter)
