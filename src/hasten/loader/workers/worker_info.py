"""What `get_worker_info()` says, and what torch's collate function makes of it."""

from __future__ import annotations

from typing import Any

from hasten.loader.batch_equality import difference
from hasten.loader.workers.inline_batch import leaves, small


def say_worker(said: tuple[int, int, int, Any] | None) -> Any:
    """Make `get_worker_info()` return something else; return what it returned before.

    Args:
        said: index, count, seed and dataset of a worker; None for the main process.
    """
    from torch.utils.data._utils import worker

    info = None
    if said is not None:
        index, count, seed, dataset = said
        info = worker.WorkerInfo(id=index, num_workers=count, seed=seed, dataset=dataset)
    return restore(info)


def restore(info: Any) -> Any:
    """Make `get_worker_info()` return `info` again; return what it returned before."""
    from torch.utils.data._utils import worker

    before: Any = worker._worker_info
    worker._worker_info = info
    return before


class SharedCollate:
    """`default_collate` in a process that stands in for one of the script's own.

    Torch's own version writes into shared memory if it finds itself in a worker, and then lays
    out contiguously images that it would leave channels_last in the main process. Small batches
    travel differently and need none; if the two layouts are the same, they are made plainly.

    Args:
        for_worker: the layout must be a worker's; otherwise that of the main process.
    """

    def __init__(self, *, for_worker: bool) -> None:
        self._for_worker = for_worker
        self._shares: bool | None = None

    def __call__(self, samples: Any) -> Any:
        """Collate the items of a batch."""
        if self._shares:
            return _collated(samples, shared=True)
        plain = _collated(samples, shared=False)
        if self._shares is None:
            return self._decide(plain, _collated(samples, shared=True))
        by_rows = all(one.is_contiguous() for one in leaves(plain) if hasattr(one, "is_contiguous"))
        if self._for_worker and not by_rows:
            self._shares = True
            return _collated(samples, shared=True)
        return plain

    def _decide(self, plain: Any, shared: Any) -> Any:
        """Decide from the first batch how the others are made."""
        same = not difference(plain, shared)
        self._shares = not small(plain) if same else self._for_worker
        return shared if self._shares else plain


def _collated(samples: Any, *, shared: bool) -> Any:
    """Collate as torch does in a worker, or in the main process."""
    from torch.utils.data import default_collate

    before = say_worker((0, 1, 0, None) if shared else None)
    try:
        return default_collate(samples)
    finally:
        restore(before)


def collate_in_worker(loader: Any) -> Any:
    """Return the collate function for a process that stands in for one of the script's."""
    from torch.utils.data import default_collate

    if loader.collate_fn is not default_collate:
        return loader.collate_fn
    return SharedCollate(for_worker=loader.num_workers > 0)
