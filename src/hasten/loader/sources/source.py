"""What turns the indices of a batch into the batch: torch's own way, or a faster equal one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hasten.loader.workers.worker_info import collate_in_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Source(Protocol):
    """Makes finished batches in the calling process.

    A source is a claim: for any indices it returns what the loader's own fetch and collate
    would return, with the same draws from the same generators. Its user compares the first
    batches with torch's own, bit for bit, and switches back for good if they differ or if
    `fetch` raises; so a source may assume what it checked when it was offered, and no more.

    Attributes:
        name: one word for reports, such as "gather".
        pure: it draws no random numbers and changes nothing, so any order or process will do.
        light: it makes a batch so fast in the main process that no worker is worth it.
    """

    name: str
    pure: bool
    light: bool

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`, before `pin_memory`.

        Args:
            indices: of one batch, as the batch sampler gave them: a list of integers in any
                order, with repetitions and negative ones as the script likes.
        """


class Setup(Protocol):
    """Something that acts in each worker process; it is pickled if workers are spawned.

    It may make batches twice, so only pure items get it.
    """

    def enter(self, worker_index: int) -> None:
        """Act at the start of the process."""

    def first(
        self, fetch: Callable[[Any], Any], indices: Any, dataset: Any, collate_fn: Any = None
    ) -> Any:
        """Return the batch that `fetch(indices)` makes with these two; called for each batch."""


class Stock:
    """Torch's own fetch and collate of a map-style loader.

    Attributes:
        roots: the script's objects that it makes batches with.
    """

    name = "stock"
    pure = light = False

    def __init__(self, loader: Any, *, collate_fn: Any = None) -> None:
        from torch.utils.data import _DatasetKind

        self.roots = loader.dataset, loader.collate_fn
        create: Any = _DatasetKind.create_fetcher
        self._fetcher = create(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            collate_fn or loader.collate_fn,
            loader.drop_last,
        )

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch as torch makes it."""
        return self._fetcher.fetch(indices)


def stock_of(loader: Any) -> Stock:
    """Return torch's own way to make the batches of a loader, layouts included."""
    return Stock(loader, collate_fn=collate_in_worker(loader) if loader.num_workers else None)


def drawable(source: Source, loader: Any) -> bool:
    """Return whether a source's draws can be replayed: those seeded by an init function cannot."""
    own_init = loader.num_workers and loader.worker_init_fn is not None
    return not (source.light and own_init and not source.pure)
