"""A DataLoader seen with other settings, without touching the script's own object."""

from __future__ import annotations

from typing import Any

_PREFETCH_COUNT = 2


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


class Rest:
    """What is left of an index stream: iterating it goes on where it stands."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Any:
        return self.stream


def make_iterator(loader: Any, worker_count: int, *, kept: bool = False, rest: Any = None) -> Any:
    """Return torch's own iterator over `loader` with `worker_count` workers.

    Args:
        loader: the script's loader, or a view of it.
        worker_count: worker processes; 0 fetches in this process.
        kept: workers outlive the epoch (`persistent_workers`).
        rest: an index stream to go on with; None starts the loader's own sampler.
    """
    import torch
    from torch.utils.data import dataloader

    overrides: dict[str, Any] = {
        "num_workers": worker_count,
        "persistent_workers": kept and worker_count > 0,
        "prefetch_factor": (loader.prefetch_factor or _PREFETCH_COUNT) if worker_count else None,
        "timeout": loader.timeout if worker_count else 0,
    }
    if rest is not None:
        # In mid-epoch the base seed of the workers must not come from the script's generator.
        overrides["_index_sampler"] = Rest(rest)
        overrides["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    kind = "_MultiProcessingDataLoaderIter" if worker_count else "_SingleProcessDataLoaderIter"
    return getattr(dataloader, kind)(LoaderView(loader, **overrides))


def steerable(loader: Any) -> bool:
    """Return whether another number of workers leaves the samples and their order alone.

    Iterable datasets split their stream by worker, so their samples would change. Workers that
    are given another batch size by hand (`batch_size=None`) work as usual.
    """
    from torch.utils.data import DataLoader

    plain_iter = type(loader)._get_iterator is DataLoader._get_iterator
    return bool(loader._dataset_kind == 0 and plain_iter)
