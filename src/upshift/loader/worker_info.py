"""What `get_worker_info()` says, and what torch's collate function makes of it."""

from __future__ import annotations

from typing import Any

from upshift.loader.same import difference


def say_worker(said: tuple[int, int, int, Any] | None) -> Any:
    """Let `get_worker_info()` say something else; return what it said.

    Args:
        said: index, count, seed and dataset of a worker; None for the main process.
    """
    from torch.utils.data._utils import worker

    info = None
    if said is not None:
        index, count, seed, dataset = said
        info = worker.WorkerInfo(id=index, num_workers=count, seed=seed, dataset=dataset)
    return put_back(info)


def put_back(info: Any) -> Any:
    """Let `get_worker_info()` say what an earlier call returned; return what it said."""
    from torch.utils.data._utils import worker

    before: Any = worker._worker_info
    worker._worker_info = info
    return before


class SharedCollate:
    """`default_collate` into memory that other processes see, as in a worker.

    Torch's own does so where it finds itself in a worker, and then it lays images out by rows
    that it would leave channels_last in the main process.

    Args:
        always: as a worker would; else only where the layout is that of the main process.
    """

    def __init__(self, *, always: bool) -> None:
        self._shares: bool | None = True if always else None

    def __call__(self, samples: Any) -> Any:
        """Collate the items of a batch."""
        from torch.utils.data import default_collate

        if self._shares is False:
            return default_collate(samples)
        shared = self._shared(samples)
        if self._shares is None:
            plain = default_collate(samples)
            self._shares = not difference(plain, shared)
            return shared if self._shares else plain
        return shared

    def _shared(self, samples: Any) -> Any:
        from torch.utils.data import default_collate

        before = say_worker((0, 1, 0, None))
        try:
            return default_collate(samples)
        finally:
            put_back(before)


def collate_in_worker(loader: Any) -> Any:
    """Return the collate function for a process that stands in for one of the script's."""
    from torch.utils.data import default_collate

    if loader.collate_fn is not default_collate:
        return loader.collate_fn
    return SharedCollate(always=loader.num_workers > 0)
