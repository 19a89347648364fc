"""Change the number of workers, also in the middle of an epoch: same samples, same order."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from upshift.loader.pool import Epoch, Pool
from upshift.loader.view import begin_stream, let_flow, make_iterator, rest_of, steerable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from upshift.loader.source import Source

    Offer = Callable[[Any], Source | str]


class Switchboard:
    """Stand between the script's iterators and the workers that really fetch.

    The script's `for` loop holds torch's own iterator. When another number of workers is
    wanted, that iterator is cut off from its index stream and drained: it returns what it had
    already asked for, in order. Then a new one goes on with the rest of the stream, and the
    script's iterator is answered from there.
    """

    def __init__(self) -> None:
        self.wanted_count: int | None = None
        self.offers: list[Offer] = []
        self._pools: WeakKeyDictionary[Any, Pool] = WeakKeyDictionary()
        self._taken: WeakSet[Any] = WeakSet()
        # All three by the iterator that the script holds.
        self._loaders: WeakKeyDictionary[Any, Callable[[], Any]] = WeakKeyDictionary()
        self._behind: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._rests: WeakKeyDictionary[Any, tuple[Any, Iterator[Any]]] = WeakKeyDictionary()

    def want(self, count: int | None) -> None:
        """Ask for `count` workers from now on; None goes back to what the script says."""
        self.wanted_count = count
        self._pools.clear()

    def add(self, offer: Offer) -> Callable[[], None]:
        """Let `offer(loader)` propose a source for each loader, until the result is called.

        It returns a `Source`, or one sentence why it has none for this loader.
        """
        self.offers.append(offer)
        return lambda: self.offers.remove(offer)

    def make(self, loader: Any, stock: Callable[[], Any]) -> Any:
        """Return the iterator of a new epoch."""
        if not steerable(loader):
            return stock()
        # torch draws no base seed where the loader's own workers stayed from epoch to epoch.
        stays = loader.persistent_workers and loader.num_workers > 0
        resumed = stays and (loader._iterator is not None or loader in self._taken)
        if self.wanted_count is None and not (resumed and loader._iterator is None):
            iterator = stock()
        else:
            if stays:
                self._taken.add(loader)
            iterator = self._begin(loader, resumed=resumed)
        inner = iterator.iterator if isinstance(iterator, Epoch) else iterator
        if hasattr(inner, "_sampler_iter"):
            # The loader, or its pool, may hold this iterator: then it must not hold the loader.
            held = stays or inner is not iterator
            self._loaders[inner] = weakref.ref(loader) if held else lambda: loader
            self._behind.pop(inner, None)
            self._rests.pop(inner, None)
        return iterator

    def _begin(self, loader: Any, *, resumed: bool) -> Any:
        count = loader.num_workers if self.wanted_count is None else self.wanted_count
        stream = begin_stream(loader, resumed=resumed)
        if count == 0:
            return make_iterator(loader, 0, stream)
        return self._pools.setdefault(loader, Pool(count)).begin(loader, stream)

    def advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch of the script's `iterator`, from whoever fetches for it now."""
        behind = self._behind.get(iterator, iterator)
        loader = self._loaders.get(iterator, lambda: None)()
        if loader is not None:
            self._turn(iterator, behind, loader)
        if iterator in self._rests:
            try:
                return original(behind)
            except StopIteration:
                loader, rest = self._rests.pop(iterator)
                count = loader.num_workers if self.wanted_count is None else self.wanted_count
                behind = make_iterator(loader, count, rest_of(loader, rest))
                self._behind[iterator] = behind
        return original(behind)

    def _turn(self, iterator: Any, behind: Any, loader: Any) -> None:
        """Let an iterator begin; cut it off from its indices where other workers are wanted."""
        let_flow(behind)
        count = loader.num_workers if self.wanted_count is None else self.wanted_count
        if iterator not in self._rests and behind._num_workers != count:
            self._rests[iterator] = loader, behind._sampler_iter
            behind._sampler_iter = iter(())
