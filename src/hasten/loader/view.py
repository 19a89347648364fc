"""A DataLoader seen with other settings, without touching the script's own object."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any
from weakref import WeakSet

_WORKER_ITERATORS: WeakSet[Any] = WeakSet()
_FORKED: list[int] = []


class Unknown(Exception):
    """This version of torch makes its iterators in a way unknown to hasten."""


def new_tensors_device() -> Any:
    """Return the device of new tensors; torch 2.5's own answer leaves out `with` blocks."""
    import torch

    return torch.empty(0).device


class LoaderView:
    """Stand in for a DataLoader where torch's iterators read its settings.

    Scripts, trainers and `__setattr__` guards hold the loader itself, so it is never written:
    `loader.num_workers` still says what the script said.
    """

    def __init__(self, loader: Any, worker_count: int, **overrides: Any) -> None:
        import torch

        self.__dict__.update(
            overrides,
            _loader=loader,
            num_workers=worker_count,
            # Torch draws a base seed from here, not from the script's generators, and into new
            # tensors: a generator on another device than theirs cannot fill them.
            generator=torch.Generator(device=new_tensors_device()),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def worker_setup(loader: Any) -> Any:
    """Return the function that sets up each worker; None where it has none, or no workers.

    Frameworks set one for every loader: only torch's worker processes call it.
    """
    return loader.worker_init_fn if loader.num_workers else None


def make_front(loader: Any) -> Any:
    """Return torch's own iterator for the script to hold; it has no indices yet.

    For that, nothing of the script's is queried or drawn from.

    Raises:
        Unknown: torch could not make it.
    """
    from torch.utils.data import dataloader

    overrides: dict[str, Any] = {"timeout": 0, "prefetch_factor": None, "_index_sampler": ()}
    try:
        single: Any = dataloader._SingleProcessDataLoaderIter
        front = single(LoaderView(loader, 0, persistent_workers=False, **overrides))
    except (AttributeError, TypeError, RuntimeError) as error:
        raise Unknown from error
    for name in ("num_workers", "timeout", "persistent_workers", "prefetch_factor"):
        setattr(front, f"_{name}", getattr(loader, name))
    return front


def make_worker_iterator(loader: Any, worker_count: int, **overrides: Any) -> Any:
    """Return torch's own iterator with persistent workers, over an endless stream of tasks.

    Args:
        loader: the script's loader.
        worker_count: worker processes.
        **overrides: `dataset`, `collate_fn`, `worker_init_fn`, `prefetch_factor`, `timeout` and
            `_index_sampler` of the view.

    Raises:
        Unknown: torch could not make it.
    """
    import torch
    from torch.utils.data import dataloader

    # Without an accelerator torch warns and does not pin: the script's own iterator has warned.
    accelerator: Any = getattr(torch, "accelerator", torch.cuda)
    pins = bool(loader.pin_memory) and accelerator.is_available()
    view = LoaderView(
        loader, worker_count, persistent_workers=True, in_order=True, pin_memory=pins, **overrides
    )
    many: Any = dataloader._MultiProcessingDataLoaderIter
    try:
        iterator = many(view)
    except (AttributeError, TypeError) as error:
        raise Unknown from error
    # The workers have these. They may hold the loader, whose entry in our tables would never go.
    iterator._dataset = iterator._worker_init_fn = None
    _WORKER_ITERATORS.add(iterator)
    return iterator


def _disown() -> None:
    """Leave the parent process's workers to the parent after a fork."""
    _FORKED.append(os.getpid())
    for iterator in _WORKER_ITERATORS:
        iterator._shutdown = True


os.register_at_fork(after_in_child=_disown)


def is_forked() -> bool:
    """Return whether this process was forked from one that ran hasten."""
    return bool(_FORKED)


def steerable(loader: Any) -> bool:
    """Return whether the samples and their order depend on the index sampler alone.

    Iterable datasets split their stream by worker, and data pipes are sharded by it. Loaders
    with an iterator of their own, or that deliver out of order, behave in unknown ways. A
    loader worker whose items use loaders of their own can have no processes, nor can a fork.
    """
    from torch.utils.data import DataLoader, MapDataPipe

    plain_iter = type(loader)._get_iterator is DataLoader._get_iterator
    in_order = getattr(loader, "in_order", True)
    piped = isinstance(loader.dataset, MapDataPipe)
    in_worker = is_forked() or multiprocessing.current_process().daemon
    known = loader._dataset_kind == 0 and plain_iter and in_order and not piped
    return bool(known and not in_worker)
