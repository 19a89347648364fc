"""Batches from samples that were decoded before, in memory shared by all workers."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.cache import file_access
from hasten.loader.cache.memo import Memo
from hasten.loader.cache.pictures import Pictures
from hasten.loader.cache.purity import PurityAnalysis
from hasten.loader.cache.recipes import WholeSample, recipe_of
from hasten.loader.cache.store import Account, Store
from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.sources.gather import why_not_collated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hasten.loader.cache.recipes import Recipe

_MOST_DROPS = 3
# A look at the dataset, once in a pass.
_LOOK_S = 1.0
_LOOK_BYTES = 1 << 30
_SEEN_COUNT = 64
_DRAWS = b"draws"
_MOST_STORES = 8  # each takes two open files


class Cache:
    """Offers sources that keep samples, for all loaders of a training and up to one budget.

    Args:
        budget_bytes: the most that all kept samples may take.
        spill_dir: a folder on disk to hold them instead of memory.
    """

    def __init__(self, budget_bytes: int, *, spill_dir: str | None = None) -> None:
        self._budget_bytes = budget_bytes
        self._spill_dir = spill_dir
        self._account: Account | None = None
        self._memos: dict[int, tuple[weakref.ref[Any], Memo, DatasetSnapshot, int]] = {}
        self._of_pictures: weakref.WeakKeyDictionary[Memo, Memo] = weakref.WeakKeyDictionary()

    def offer(self, loader: Any) -> CachedSource | str:
        """Return a source for `loader`, or why it gets none.

        Call it in the main process before the workers of a pass are started: they inherit the
        memory. What an earlier pass kept is used if the dataset looks as it did then.
        """
        dataset = base_of(loader.dataset)
        if why := _why_not(loader, dataset):
            return why
        try:
            recipe = recipe_of(dataset)
            memo = self._drawing(dataset) or self._memo_of(dataset, recipe.roots)
        except OSError as error:
            return f"no memory to share: {error.strerror or error}"
        pictures = self._pictures_of(dataset, memo) if type(recipe) is WholeSample else None
        why = memo.why_not
        if pictures is not None and pictures.memo.why_not:
            # Of samples that draw, nothing can be kept any more.
            why = why or (pictures.memo.why_not if _draws(memo) else "")
            pictures = None
        if pictures is None and why:
            stays = loader.num_workers and loader.persistent_workers
            was_offered = not memo.made_of.code.why_not or memo in self._of_pictures
            if not (stays and was_offered):
                return why
            # Without a source these workers would restart, and so would their random streams.
            memo.off = why
        recipe.settle(memo)
        return CachedSource(loader, recipe, memo, pictures)

    def counts(self) -> dict[str, int]:
        """Return entries and bytes so far."""
        found = [store.counts() for store in self._stores()]
        return {name: sum(one[name] for one in found) for name in (found[0] if found else ())}

    def _stores(self) -> list[Store]:
        """Return the memory of the samples of all living datasets, the newest last."""
        return list(dict.fromkeys(memo.store for _, memo, *_ in list(self._memos.values())))

    def _store_of_new(self) -> Store:
        """Return memory for the samples of a dataset: its own, which goes when the dataset goes."""
        stores = self._stores()
        if len(stores) >= _MOST_STORES:
            return stores[-1]
        if self._account is None or self._account.maker_pid != os.getpid():
            self._account = Account()
        return Store(self._budget_bytes, spill_dir=self._spill_dir, account=self._account)

    def _drawing(self, dataset: Any) -> Memo | None:
        """Return the memo of a dataset whose pictures are kept: only their files change them."""
        entry = self._memos.get(id(dataset))
        if entry is None or entry[0]() is not dataset or entry[1] not in self._of_pictures:
            return None
        return entry[1] if _draws(entry[1]) else None

    def _pictures_of(self, dataset: Any, memo: Memo) -> Pictures | None:
        """Return what is kept of the samples of `memo` if they draw; None where it is nothing."""
        if not memo.made_of.code.opens_pictures:
            return None
        known = self._of_pictures.get(memo)
        if known is None:
            known = self._of_pictures[memo] = Memo(memo.store, ())
        return Pictures(dataset, known)

    def _memo_of(self, dataset: Any, roots: tuple[Any, ...]) -> Memo:
        """Return the memo of a dataset; a new one, with new memory, if the dataset was changed."""
        entry = self._memos.get(id(dataset))
        drop_count = 0
        looks = DatasetSnapshot(*roots, most_s=_LOOK_S, most_bytes=_LOOK_BYTES)
        if entry is not None and entry[0]() is dataset:
            _, memo, seen, drop_count = entry
            known = memo.made_of.roots
            same = len(known) == len(roots) and all(map(operator.is_, known, roots))
            if same and (memo.why_not or looks == seen):
                return memo
            drop_count += 1
            self._forget(id(dataset))
        memo = Memo(self._store_of_new(), roots)
        if drop_count >= _MOST_DROPS:
            memo.off = "the dataset changes from pass to pass"
        elif not looks.is_whole:
            memo.off = "to see whether the dataset has changed takes too long"
        key = id(dataset)
        self._memos[key] = weakref.ref(dataset, partial(self._forget, key)), memo, looks, drop_count
        return memo

    def _forget(
        self, key: int, _: object = None, ends: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Forget a dataset that is gone, or as it was; other samples get the room of its own."""
        entry = None if ends() else self._memos.pop(key, None)
        if entry is not None and entry[1].store not in self._stores():
            entry[1].store.release()


class CachedSource:
    """Fetches samples from the store if they are in it, and collates them as torch does.

    The loader's own `collate_fn` and all that follows a kept prefix run again for each batch, on
    objects of their own. Where whole samples cannot be kept, as most of them draw random numbers,
    the pictures are kept that they are made of.

    Attributes:
        for_workers: the main process fetches for added workers, whose samples have been
            found equal to its own.
    """

    name = "cache"
    light = False

    def __init__(
        self, loader: Any, recipe: Recipe, memo: Memo, pictures: Pictures | None = None
    ) -> None:
        from torch.utils.data import default_collate

        self._dataset = loader.dataset
        self.collate_fn = loader.collate_fn  # a worker puts its own there
        self._recipe = recipe
        self._memo = self._whole = memo
        self._pictures = pictures
        if pictures is not None and memo.why_not:
            self._recipe, self._memo = pictures, pictures.memo
        self.pure = self._recipe.is_known_pure and self.collate_fn is default_collate
        # Torch's own collation copies each sample, and writes to none.
        self._copying = default_collate if not why_not_collated(loader) else None
        self.for_workers = False

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`."""
        self._turn()
        self._recipe.begin_batch(for_workers=self.for_workers)
        if self._lends:
            lent = self._recipe.lend([self._resolve(index) for index in indices])
            if lent is not None:
                return self.collate_fn(lent)
        samples = []
        with self._filling(len(indices)):
            for index in indices:
                samples.append(self._recipe.fetch(self._resolve(index)))
                # What other processes tell is asked once a batch.
                if self._pictures is not None and self._whole.admission.mostly_draws:
                    self._turn()
        return self.collate_fn(samples)

    @contextlib.contextmanager
    def _filling(self, count: int) -> Iterator[None]:
        """Keep what is made of a batch of `count` samples, unless one of them raises."""
        memo = self._memo
        memo.begin_batch(count, lends=self._lends, defers=self._recipe.defers)
        is_watched = memo.made_of.has_roots and not memo.off
        if is_watched:
            file_access.record()  # to record single samples costs less within this
        try:
            yield
        finally:
            if is_watched:
                file_access.stop()
        self._memo.end_batch()  # it checks whether one of them has drawn

    def warm(self, indices: Sequence[int]) -> int:
        """Make the kept part of samples ahead of their use; return how many were made.

        The first pass over the data pays for all later ones. A trial that sees seconds of
        training can call this before it times anything, with the indices of batches that it
        will see, to measure what a later pass takes. The global generators are left as they
        were. Stops early where nothing more will be kept, or a sample cannot be made.
        """
        if self._whole.made_of.draws_privately:
            return 0
        before = random_states.read()
        self._turn()
        recipe = self._recipe
        warmed_count = self._warm(indices)
        if self._recipe is not recipe:  # the first ones have shown that they draw
            random_states.restore(before)
            warmed_count = self._warm(indices)
        if random_states.read() != before:
            random_states.restore(before)
        return warmed_count

    def _warm(self, indices: Sequence[int]) -> int:
        warmed_count = 0
        self._recipe.begin_batch()
        with self._filling(len(indices)), contextlib.suppress(Exception):
            for index in indices:
                if self._memo.off or self._memo.kept.is_full:
                    break
                self._recipe.fetch_kept(self._resolve(index))
                self._turn()
                warmed_count += 1
        return warmed_count

    @property
    def _lends(self) -> bool:
        """Whether the collation copies samples, so that they need no copy before."""
        return self.collate_fn is self._copying and self._recipe is not self._pictures

    def _turn(self) -> None:
        """Keep pictures instead of samples from now on, if samples are not kept."""
        pictures = self._pictures
        if pictures is None or self._recipe is pictures:
            return
        if self._whole.off or _draws(self._whole):
            self._whole.end_batch()
            self._recipe, self._memo = pictures, pictures.memo
            pictures.memo.begin_batch(1)
            pictures.begin_batch()

    def is_kept(self, indices: Sequence[Any] | None = None) -> bool:
        """Return whether fetching for workers is mere copying, because samples are kept whole.

        Args:
            indices: those that matter; None for some spread over the dataset.
        """
        with contextlib.suppress(Exception):  # a dataset of the script's own
            if indices is None:
                count = len(self._dataset)
                indices = range(0, count, max(1, count // _SEEN_COUNT))
            self._recipe.begin_batch(for_workers=True)
            return all(self._recipe.has(self._resolve(index)) for index in indices)
        return False

    @property
    def token(self) -> object:
        """What sets kept samples apart from those of another dataset, or of another state of it."""
        return self._whole.salt

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept any more."""
        self._turn()
        return bool(self._memo.off)

    @property
    def kept_ratio(self) -> float:
        """The share of the loader's samples that will be kept, by those made so far.

        0 if none is kept any more; a dataset without a length is taken to fit.
        """
        self._turn()
        each = self._recipe.value_ratio
        if self._memo.off or not each:
            return 0.0
        store, share = self._memo.store, self._memo.admission.kept_share
        with contextlib.suppress(Exception):  # a dataset of the script's own
            share *= min(1.0, store.room_count / (each * len(self._dataset)))
        return share

    @property
    def saved_ratio(self) -> float:
        """The share of the time of warming that later passes save."""
        return self._recipe.saved_ratio

    def _resolve(self, index: Any) -> Any:
        """Return the index into the innermost dataset, as nested subsets would ask for it."""
        from torch.utils.data import Subset

        dataset = self._dataset
        while type(dataset) is Subset:
            index, dataset = dataset.indices[index], dataset.dataset
        return index


def _draws(memo: Memo) -> bool:
    """Return whether most samples draw, here or by what another process has told; tell others."""
    key = memo.salt + _DRAWS
    if memo.store.has(key):
        return True
    return memo.admission.mostly_draws and memo.store.put(key, b"1")


def base_of(dataset: Any) -> Any:
    """Return the dataset beneath subsets."""
    from torch.utils.data import Subset

    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def what_is_kept(loader: Any) -> tuple[str, bool]:
    """Return why no sample of a loader may be kept, and whether pictures may, judging by its code.

    The first is empty where something may be kept.
    """
    dataset = base_of(loader.dataset)
    with contextlib.suppress(Exception):  # a dataset of the script's own
        if why := _why_not(loader, dataset):
            return why, False
        recipe = recipe_of(dataset)
        code = PurityAnalysis(*recipe.roots)
        opens_pictures = type(recipe) is WholeSample and code.opens_pictures
        return "" if opens_pictures else code.why_not, opens_pictures
    return "", False


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
