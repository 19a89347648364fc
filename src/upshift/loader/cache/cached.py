"""Batches from samples that were decoded before, in memory shared by all workers."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from upshift.loader import states
from upshift.loader.cache import packing, prefix
from upshift.loader.cache.memo import Memo, new_salt
from upshift.loader.cache.store import Store
from upshift.loader.portrait import Portrait

if TYPE_CHECKING:
    from collections.abc import Sequence

    Recipe = "Whole | Folder"

_MOST_DROPS = 3
# A look at the dataset, once in a pass.
_LOOK_S = 1.0
_LOOK_BYTES = 1 << 30
_FILLED_RATIO = 0.9
_FOLDER_NAMES = {"samples", "loader", "transform", "target_transform"}


class Cache:
    """Offers sources that keep samples, for all loaders of a training and up to one budget.

    Args:
        budget_bytes: the most that all kept samples take.
        spill_dir: a folder on disk to hold them in, in place of memory.
    """

    def __init__(self, budget_bytes: int, *, spill_dir: str | None = None) -> None:
        self._budget_bytes = budget_bytes
        self._spill_dir = spill_dir
        self._store: Store | None = None
        self._memos: dict[int, tuple[weakref.ref[Any], Memo, Portrait, int]] = {}

    def offer(self, loader: Any) -> Source | str:
        """Return a source for `loader`, or why it gets none.

        Call it in the main process before the workers of a pass are started: they inherit the
        memory. What an earlier pass kept is used if the dataset looks as it did then.
        """
        dataset = _base(loader.dataset)
        if why := _why_not(loader, dataset):
            return why
        try:
            recipe = Folder(dataset) if _is_folder(dataset) else Whole(dataset)
            memo = self._memo_of(dataset, recipe.roots)
        except OSError as error:
            return f"no memory to share: {error.strerror or error}"
        if why := memo.why_not:
            stays = loader.num_workers and loader.persistent_workers
            if memo.is_forbidden or not stays:
                return why
            # Without a source these workers would start anew, and so would their random streams.
            memo.off = why
        recipe.settle(memo)
        return Source(loader, recipe, memo)

    def counts(self) -> dict[str, int]:
        """Return entries, bytes, hits and misses so far."""
        return self._store.counts() if self._store else {}

    def _memo_of(self, dataset: Any, roots: tuple[Any, ...]) -> Memo:
        """Return the memo of a dataset; a new one, and new memory, where it was changed."""
        entry = self._memos.get(id(dataset))
        drop_count = 0
        looks = Portrait(*roots, most_s=_LOOK_S, most_bytes=_LOOK_BYTES)
        if entry is not None and entry[0]() is dataset:
            _, memo, seen, drop_count = entry
            same = len(memo.roots) == len(roots) and all(map(_is, memo.roots, roots))
            if same and (memo.why_not or looks == seen):
                return memo
            drop_count += 1
            self._store = None
        memo = Memo(self._current_store(), new_salt(), roots)
        if drop_count >= _MOST_DROPS:
            memo.off = "the dataset changes from pass to pass"
        elif not looks.is_whole:
            memo.off = "to see whether the dataset has changed takes too long"
        self._memos[id(dataset)] = weakref.ref(dataset), memo, looks, drop_count
        return memo

    def _current_store(self) -> Store:
        if self._store is None:
            self._store = Store(self._budget_bytes, spill_dir=self._spill_dir)
        return self._store


class Source:
    """Fetches samples from the store where they are there, and collates them as torch does.

    The loader's own `collate_fn` and all that follows a kept prefix run anew for each batch, on
    objects of their own.
    """

    name = "cache"

    def __init__(self, loader: Any, recipe: Whole | Folder, memo: Memo) -> None:
        from torch.utils.data import default_collate

        self._dataset = loader.dataset
        self.collate_fn = loader.collate_fn  # a worker puts its own there
        self._recipe = recipe
        self._memo = memo
        self.pure = recipe.is_known_pure and self.collate_fn is default_collate

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`."""
        self._memo.begin_batch(len(indices))
        self._recipe.begin_batch()
        samples = [self._recipe.fetch(self._resolve(index)) for index in indices]
        self._memo.end_batch()
        return self.collate_fn(samples)

    def warm(self, indices: Sequence[int]) -> int:
        """Make the kept part of samples ahead of their use; return how many were made.

        The first pass over the data pays for all later ones. A trial that sees seconds of
        training can call this before it times anything, with the indices of batches that it
        will see, to measure what a later pass takes. The global generators are left as they
        were. Stops early where nothing more will be kept, or a sample cannot be made.
        """
        if self._memo.draws_privately:
            return 0
        before = states.read()
        warmed_count = 0
        with contextlib.suppress(Exception):  # the script meets it in its own time
            for index in indices:
                if self._memo.is_done:
                    break
                self._memo.begin_batch(len(indices))
                self._recipe.begin_batch()
                try:
                    self._recipe.fetch_kept(self._resolve(index))
                finally:
                    if states.read() != before:
                        states.restore(before)
                self._memo.end_batch()
                warmed_count += 1
        return warmed_count

    @property
    def token(self) -> object:
        """What tells kept samples from those of another dataset or another look of it."""
        return self._memo.salt

    @property
    def is_off(self) -> bool:
        """Nothing is kept any more."""
        return bool(self._memo.off)

    @property
    def kept_ratio(self) -> float:
        """The share of the loader's samples that will be kept, by those made so far.

        Nothing where none is kept any more; all where the dataset has no length.
        """
        if self._memo.off:
            return 0.0
        store, share = self._memo.store, self._memo.kept_share
        with contextlib.suppress(Exception):  # a dataset of the script's own
            share *= min(1.0, store.room_count / len(self._dataset))
        return share

    def _resolve(self, index: Any) -> Any:
        """Return the index of the innermost dataset, as nested subsets would ask for it."""
        dataset = self._dataset
        while _is_subset(dataset):
            index, dataset = dataset.indices[index], dataset.dataset
        return index


class Whole:
    """Keeps whole samples of a dataset whose code nobody knows.

    Attributes:
        roots: the objects whose code makes what is kept.
        is_known_pure: nothing but known code makes a sample, and it draws nothing.
    """

    is_known_pure = False

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._around = b""
        self.roots: tuple[Any, ...] = (dataset,)

    def settle(self, memo: Memo) -> None:
        """Take in where to keep."""
        self._memo = memo

    def begin_batch(self) -> None:
        """Read what the samples of a batch depend on, beside the dataset."""
        self._around = _around()

    def fetch(self, index: Any) -> Any:
        """Return the sample of an index."""
        dataset = self._dataset
        if type(index) is not int:
            return dataset[index]
        return self._memo.fetch(b"%d " % index + self._around, lambda: dataset[index])

    fetch_kept = fetch


class Folder:
    """Keeps the images of torchvision's `DatasetFolder` as they are before the first draw.

    Its `__getitem__` is known: it loads the file, then calls `transform` and
    `target_transform`. Kept is what the file and the leading known transforms give.

    Attributes:
        roots: the objects whose code makes what is kept; none where it is torchvision's.
        is_known_pure: nothing but known code makes a sample, and it draws nothing.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._is_known = _loads_by_pillow(dataset.loader)
        self.roots: tuple[Any, ...] = () if self._is_known else (dataset.loader,)
        self._most_count = 0
        self._name = b""
        self._leading: list[Any] = []
        self._rest: list[Any] = []

    @property
    def is_known_pure(self) -> bool:
        """Whether the whole chain is kept."""
        self.begin_batch()
        return self._is_known and not self._rest and self._dataset.target_transform is None

    def settle(self, memo: Memo) -> None:
        """Decide how much of the chain to keep: floats take four times the memory of pixels."""
        self._memo = memo
        if not self._is_known:
            return
        chain = prefix.chain_of(self._dataset.transform)
        signatures, kinds = prefix.split(chain)
        self._most_count = prefix.image_length(kinds)
        if self._most_count < len(signatures):
            leading = chain[: len(signatures)]
            room_bytes = _FILLED_RATIO * memo.store.budget_bytes / len(self._dataset.samples)
            if _first_bytes(self._dataset, leading) <= room_bytes:
                self._most_count = len(signatures)

    def begin_batch(self) -> None:
        """Split the chain of transforms as it is now: a script may change its size in between."""
        chain = prefix.chain_of(self._dataset.transform)
        signatures = prefix.split(chain)[0][: self._most_count] if self._most_count else []
        self._leading, self._rest = chain[: len(signatures)], chain[len(signatures) :]
        text = repr((signatures, _around(threads=not self._is_known))).encode()
        self._name = blake2b(text, digest_size=12).digest()

    def fetch(self, index: Any) -> Any:
        """Return the sample of an index."""
        dataset = self._dataset
        sample, target = self._kept(index)
        for transform in self._rest:
            sample = transform(sample)
        if dataset.target_transform is not None:
            target = dataset.target_transform(target)
        return sample, target

    def fetch_kept(self, index: Any) -> Any:
        """Return the part of a sample that is kept."""
        return self._kept(index)[0]

    def _kept(self, index: Any) -> tuple[Any, Any]:
        path, target = self._dataset.samples[index]
        make = _Load(self._dataset.loader, path, self._leading)
        name = self._name + os.fsencode(path)
        return self._memo.fetch(name, make, path if self._is_known else None), target


class _Load:
    """Loads one file and calls the leading transforms."""

    def __init__(self, load: Any, path: Any, leading: list[Any]) -> None:
        self._load, self._path, self._leading = load, path, leading

    def __call__(self) -> Any:
        sample = self._load(self._path)
        for transform in self._leading:
            sample = transform(sample)
        return sample


def _around(*, threads: bool = True) -> bytes:
    """Return what samples can depend on beside their dataset: torch's defaults and threads.

    Args:
        threads: unknown code may sum in an order that depends on their number.
    """
    import torch

    count = torch.get_num_threads() if threads else ""
    return f"{torch.get_default_dtype()} {count}".encode()


def _is(left: Any, right: Any) -> bool:
    return left is right


def _is_subset(dataset: Any) -> bool:
    from torch.utils.data import Subset

    return type(dataset) is Subset


def _base(dataset: Any) -> Any:
    """Return the dataset beneath subsets."""
    while _is_subset(dataset):
        dataset = dataset.dataset
    return dataset


def _why_not(loader: Any, dataset: Any) -> str:
    from torch.utils.data import TensorDataset

    if loader._dataset_kind != 0:
        return "an iterable dataset has no samples that could be asked for twice"
    if not loader._auto_collation:
        return "its dataset makes whole batches (batch_size=None)"
    if getattr(dataset, "__getitems__", None):
        return "its dataset makes whole batches (__getitems__)"
    if type(dataset) is TensorDataset:
        return "its samples are in memory already"
    try:
        weakref.ref(dataset)
    except TypeError:
        return "its dataset cannot be followed from pass to pass"
    return ""


def _is_folder(dataset: Any) -> bool:
    """Return whether the samples come from torchvision's own, unmodified `__getitem__`."""
    folder: Any = getattr(sys.modules.get("torchvision.datasets.folder"), "DatasetFolder", None)
    kind: Any = type(dataset)
    if folder is None or not isinstance(dataset, folder):
        return False
    own = kind.__getitem__
    return bool(
        own is folder.__getitem__
        and own.__module__ == "torchvision.datasets.folder"
        and set(own.__code__.co_names) == _FOLDER_NAMES
        and kind.__getattribute__ is object.__getattribute__
        and set(vars(dataset)) >= _FOLDER_NAMES
        and type(dataset.samples) is list
        and dataset.samples
    )


def _loads_by_pillow(load: Any) -> bool:
    home: Any = sys.modules.get("torchvision.datasets.folder")
    by_default = load is home.default_loader
    if by_default and sys.modules["torchvision"].get_image_backend() != "PIL":
        return False
    return bool(by_default or load is home.pil_loader)


def _first_bytes(dataset: Any, leading: list[Any]) -> float:
    """Return the size of the first sample, packed; infinite where it cannot be made."""
    try:
        sample = _Load(dataset.loader, dataset.samples[0][0], leading)()
        return float(sum(memoryview(part).nbytes for part in packing.pack(sample)))
    except Exception:  # the script will meet it
        return float("inf")
