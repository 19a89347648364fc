"""Which part of a sample is kept: all of it, or what precedes its first random transform."""

from __future__ import annotations

import os
import sys
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from hasten.loader.cache import packing, prefix

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from hasten.loader.cache.memo import Memo
    from hasten.loader.cache.pictures import Pictures

    Recipe: TypeAlias = "WholeSample | Folder | Pictures"

_FILLED_RATIO = 0.9
_FOLDER_NAMES = {"samples", "loader", "transform", "target_transform"}


def recipe_of(dataset: Any) -> WholeSample | Folder:
    """Return what is kept of the samples of a dataset."""
    return Folder(dataset) if is_folder(dataset) else WholeSample(dataset)


class WholeSample:
    """Keeps whole samples of a dataset whose code is unknown.

    Attributes:
        roots: the objects whose code makes what is kept.
        defers: nobody writes into what is kept before the samples are collated.
        is_known_pure: nothing but known code makes a sample, and it draws nothing.
        value_ratio: what is kept is one value for each sample.
        saved_ratio: the share of the time of warming that later passes save.
    """

    defers = True
    is_known_pure = False
    value_ratio = saved_ratio = 1.0

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._around = b""
        self.roots: tuple[Any, ...] = (dataset,)

    def settle(self, memo: Memo) -> None:
        """Set the memo that keeps the samples."""
        self._memo = memo

    def begin_batch(self, *, for_workers: bool = False) -> None:
        """Read what the samples of a batch depend on besides the dataset."""
        self._around = _around(for_workers=for_workers)

    def has(self, index: Any) -> bool:
        """Return whether the sample of an index is kept."""
        return self._memo.has(b"%d " % index + self._around)

    def fetch(self, index: Any) -> Any:
        """Return the sample of an index."""
        dataset = self._dataset
        if type(index) is not int:
            return dataset[index]
        return self._memo.fetch(b"%d " % index + self._around, lambda: dataset[index])

    fetch_kept = fetch

    def lend(self, indices: Sequence[Any]) -> list[Any] | None:
        """Return the samples of a batch in the memory that keeps them; None where one is not."""
        if set(map(type, indices)) != {int}:
            return None
        return self._memo.lend([b"%d " % index + self._around for index in indices])


class Folder:
    """Keeps the images of torchvision's `DatasetFolder` as they are before the first draw.

    Its `__getitem__` is known: it loads the file, then calls `transform` and
    `target_transform`. It keeps what the file and the leading known transforms give. There
    are no `roots` where the function that loads a file is torchvision's, too.
    """

    value_ratio = saved_ratio = 1.0

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

    @property
    def defers(self) -> bool:
        """Whether no transform follows what is kept."""
        return not self._rest

    def settle(self, memo: Memo) -> None:
        """Decide how much of the chain to keep: floats take four times the memory of pixels."""
        self._memo = memo
        if not self._is_known:
            return
        chain = prefix.chain_of(self._dataset.transform)
        signatures, kinds = prefix.split(chain)
        self._most_count = kinds.count(prefix.IMAGE)  # these come first, and are bytes
        if self._most_count < len(signatures):
            leading = chain[: len(signatures)]
            room_bytes = _FILLED_RATIO * memo.store.budget_bytes / len(self._dataset.samples)
            if _first_bytes(self._dataset, leading) <= room_bytes:
                self._most_count = len(signatures)

    def begin_batch(self, *, for_workers: bool = False) -> None:
        """Split the chain of transforms as it is now: a script may change sizes between batches."""
        chain = prefix.chain_of(self._dataset.transform)
        signatures = prefix.split(chain)[0][: self._most_count] if self._most_count else []
        self._leading, self._rest = chain[: len(signatures)], chain[len(signatures) :]
        around = _around(threads=not self._is_known, for_workers=for_workers)
        self._name = blake2b(repr((signatures, around)).encode(), digest_size=12).digest()

    def has(self, index: Any) -> bool:
        """Return whether the sample of an index is kept, and nothing is left to do to it."""
        path, _ = self._dataset.samples[index]
        return not self._rest and self._memo.has(self._name + os.fsencode(path))

    def fetch(self, index: Any) -> Any:
        """Return the sample of an index."""
        dataset = self._dataset
        sample, target = self._kept(index)
        for transform in self._rest:
            sample = transform(sample)
        if dataset.target_transform is not None:
            target = dataset.target_transform(target)
        return sample, target

    def lend(self, indices: Sequence[Any]) -> list[Any] | None:
        """Return the samples of a batch in the memory that keeps them; None where one is not."""
        if self._rest or self._dataset.target_transform is not None:
            return None
        chosen = [self._dataset.samples[index] for index in indices]
        lent = self._memo.lend([self._name + os.fsencode(path) for path, _ in chosen])
        return lent and [(one, target) for one, (_, target) in zip(lent, chosen, strict=True)]

    def fetch_kept(self, index: Any) -> Any:
        """Return the part of a sample that is kept."""
        return self._kept(index)[0]

    def _kept(self, index: Any) -> tuple[Any, Any]:
        path, target = self._dataset.samples[index]
        make = partial(_loaded, self._dataset.loader, path, self._leading)
        name = self._name + os.fsencode(path)
        return self._memo.fetch(name, make, path if self._is_known else None), target


def _loaded(load: Any, path: Any, leading: list[Any]) -> Any:
    """Load one file and call the leading transforms."""
    sample = load(path)
    for transform in leading:
        sample = transform(sample)
    return sample


def _around(*, threads: bool = True, for_workers: bool = False) -> bytes:
    """Return what samples can depend on besides their dataset: torch's defaults and threads.

    Args:
        threads: unknown code may sum in an order that depends on their number.
        for_workers: workers have one thread.
    """
    import torch

    count: object = 1 if for_workers else torch.get_num_threads()
    count = count if threads else ""
    return f"{torch.get_default_dtype()} {count}".encode()


def is_folder(dataset: Any) -> bool:
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
    own = home.pil_loader.__module__ == home.__name__  # the script may have replaced it
    return bool(own and (by_default or load is home.pil_loader))


def _first_bytes(dataset: Any, leading: list[Any]) -> float:
    """Return the size of the first sample, packed; infinite where it cannot be made."""
    try:
        sample = _loaded(dataset.loader, dataset.samples[0][0], leading)
        return float(sum(memoryview(part).nbytes for part in packing.pack(sample)))
    except Exception:  # the script will see the error itself
        return float("inf")
