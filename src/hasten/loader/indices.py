"""The indices of one pass, pulled from the script's sampler when torch would pull them."""

from __future__ import annotations

import sys
from collections import deque
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

from hasten.generators import is_reseeded
from hasten.loader import random_states
from hasten.loader.orders import fast_indices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SERIAL = count(1)


class Stream:
    """The indices of one pass, and the random draws that belong to them.

    A sampler may draw, count or look at the script's objects whenever it is asked. So it is
    asked as torch asks: a loader without workers pulls the indices of a batch when that batch
    is wanted; one with workers keeps `own_ahead_count` batches pulled. Only where nobody can
    tell the difference (`foreseen_count`) are more pulled earlier.

    Each is pulled by a method of torch's iterator, which finds here the attributes it expects of
    its own class: code that patches it to watch the order of the samples sees this pass too.

    Args:
        pulls: the sampler's own iterator, or what is left of it.
        seed: the base seed that torch gives to the workers of this pass.
        own_ahead_count: batches that the script's own workers would have asked for.
        foreseen_count: how many batches may be pulled before they are wanted.
        counted: the sampler is torch's own, whose length may be queried at any time. One of
            the script's may raise or draw there.
        fast: `pulls` gives tensors of ours, where torch's sampler gives lists.

    Attributes:
        ended: whether nothing is left to pull.
    """

    def __init__(
        self,
        pulls: Iterator[Any],
        sampler: Any,
        dataset: Any,
        *,
        seed: int,
        own_ahead_count: int = 0,
        foreseen_count: int = 0,
        counted: bool = False,
        fast: bool = False,
    ) -> None:
        from torch.utils.data import BatchSampler, dataloader

        self.sampler = sampler
        self.seed = seed
        self.ended = False
        self.fast = fast
        self._counted = counted
        self._torchs: Any = dataloader._BaseDataLoaderIter
        self._pulls, self._dataset = pulls, dataset
        self._own_ahead_count = own_ahead_count
        self._foreseen_count = foreseen_count
        self._pulled_count = 0
        self._held: deque[Any] = deque()
        # Torch's own sampler reads its batch size at each batch.
        is_watched = type(sampler) is BatchSampler and not own_ahead_count
        self._size = sampler.batch_size if is_watched else None

    def __iter__(self) -> Iterator[Any]:
        return self._pulls

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def _sampler_iter(self) -> Iterator[Any]:
        return self._pulls

    @property
    def _index_sampler(self) -> Any:
        return self.sampler

    def left_after(self, number: int) -> int:
        """Return how many batches follow batch `number`, the last one taken, as far as is known."""
        if self.ended:
            return len(self._held)
        return len(self.sampler) - number - 1 if self._counted else sys.maxsize

    def prefill(self) -> None:
        """Pull what the script's own workers would be given at the start."""
        for _ in range(self._own_ahead_count):
            self._pull()

    def _pull(self) -> None:
        if not self.ended:
            try:
                self._held.append(self._torchs._next_index(self))
                self._pulled_count += 1
            except StopIteration:
                self.ended = True

    def delivered(self) -> None:
        """Note that a batch has arrived: the script's own workers would now be given one more."""
        if self._own_ahead_count:
            self._pull()

    def take(self, *, now: bool, raw: bool = False) -> Any:
        """Return the indices of the next batch, or None where there are none (yet).

        Args:
            now: the script wants this very batch.
            raw: our own tensors will do; otherwise they are lists, as torch's sampler gives them.
        """
        if not self._held:
            foreseen = not self._own_ahead_count and self._pulled_count < self._foreseen_count
            if now or (foreseen and self._pulled_count):
                self._pull()
        if not self._held:
            return None
        indices = self._held.popleft()
        return listed(indices) if self.fast and not raw else indices

    @property
    def is_resized(self) -> bool:
        """Whether the script has changed the batch size since batches were pulled early."""
        return self._size is not None and self.sampler.batch_size != self._size

    def regroup(self) -> None:
        """Regroup batches that were pulled but not delivered, as torch would group them by now."""
        self._size = self.sampler.batch_size
        if self.sampler.drop_last:  # torch keeps to the size that a pass began with
            return
        rest = chain.from_iterable(map(listed, chain(list(self._held), self._pulls)))
        self._pulls = iter(lambda: list(islice(rest, self.sampler.batch_size)), [])
        self._held.clear()
        self._foreseen_count, self.fast, self.ended = 0, False, False

    def put_back(self, batches: list[Any]) -> None:
        """Let batches that were taken be taken again, before all others."""
        self._held.extendleft(reversed(batches))


def begin_stream(loader: Any, *, kept_seed: int | None = None, fast: bool = False) -> Stream:
    """Start the sampler of `loader` with the random draws of torch's own iterator, in order.

    torch starts the sampler, draws a base seed and, with workers, starts the sampler once more
    and asks it for what they prefetch. Whoever fetches afterwards must draw nothing.

    Args:
        loader: the script's loader.
        kept_seed: the seed of its own workers, if they stayed from an earlier pass: then torch
            draws no base seed, and starts the sampler once.
        fast: our own tensors may replace the lists of torch's own samplers.
    """
    import torch

    sampler, own_count = loader._index_sampler, int(loader.num_workers)
    pulls, is_fast = _begin(sampler, fast=fast)
    if kept_seed is not None:
        seed = kept_seed
    else:
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        if own_count:
            pulls, is_fast = _begin(sampler, fast=fast)
    foreseen_count = foreseen(loader)
    stream = Stream(
        pulls,
        sampler,
        loader.dataset,
        seed=seed,
        own_ahead_count=own_count * (loader.prefetch_factor or 0),
        foreseen_count=foreseen_count,
        counted=foreseen_count > 0,
        fast=is_fast,
    )
    stream.prefill()
    return stream


def kept_draws(loader: Any) -> Callable[[], None]:
    """Return a function that restores the generators that the start of a pass draws from."""
    import torch

    own = random_states.read()
    held = getattr(order_of(loader), "__dict__", {})  # this runs none of the script's code
    given = loader.generator, held.get("generator")
    kept = [(one, one.get_state()) for one in given if isinstance(one, torch.Generator)]

    def restore() -> None:
        random_states.restore(own)
        for generator, state in kept:
            generator.set_state(state)

    return restore


def _begin(sampler: Any, *, fast: bool) -> tuple[Iterator[Any], bool]:
    """Start a sampler; return its batches, and whether they are tensors of ours."""
    found = fast_indices(sampler) if fast else None
    return (iter(sampler), False) if found is None else (found, True)


def listed(indices: Any) -> Any:
    """Return a batch of a `fast` stream as torch's sampler gives it.

    Not for batches of other streams: an array or tensor there is the script's own.
    """
    return indices.tolist() if hasattr(indices, "tolist") else indices


def rest_of(loader: Any, pulls: Iterator[Any]) -> Stream:
    """Return what is left of a pass that torch's own iterator began; nothing is drawn."""
    return Stream(
        pulls,
        loader._index_sampler,
        loader.dataset,
        seed=fresh_seed(),
        own_ahead_count=int(loader.num_workers) * (loader.prefetch_factor or 0),
        foreseen_count=sys.maxsize,
        counted=foreseen(loader) > 0,
    )


def order_of(loader: Any) -> Any:
    """Return the sampler whose indices a loader groups into batches."""
    from torch.utils.data import BatchSampler

    sampler = loader._index_sampler
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def fresh_seed() -> int:
    """Return a seed that no earlier workers had, without drawing from the script's generators."""
    import torch

    return int(torch.initial_seed() + next(_SERIAL)) % (1 << 62)


def foreseen(loader: Any) -> int:
    """Return how many batches of a pass can be known early without anybody noticing.

    All of them if torch's own sampler draws once, at the first batch, and keeps nothing. With
    a generator of its own, a shuffle draws again with the last batch: that one waits. A
    sampler that draws in between is not foreseen at all, nor are the script's own samplers: they
    may look at anything.
    """
    from torch.utils.data import sampler as torchs
    from torch.utils.data.distributed import DistributedSampler

    inner = order_of(loader)
    quiet = (torchs.SequentialSampler, torchs.SubsetRandomSampler, torchs.WeightedRandomSampler)
    if type(inner) in (*quiet, DistributedSampler):
        return sys.maxsize
    if type(inner) is not torchs.RandomSampler and not is_reseeded(inner):
        return 0
    if inner.generator is None and not is_reseeded(inner):
        return sys.maxsize
    again = inner.replacement or inner.num_samples > len(inner.data_source)
    return 0 if again else max(0, len(loader._index_sampler) - 1)
