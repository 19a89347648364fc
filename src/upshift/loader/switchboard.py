"""Change the number of workers, also in the middle of an epoch: same samples, same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from upshift.loader.pool import Pool
from upshift.loader.view import make_iterator, steerable

if TYPE_CHECKING:
    from collections.abc import Callable


class Switchboard:
    """Stand between the script's iterators and the workers that really fetch.

    The script's `for` loop holds torch's own iterator. When another number of workers is
    wanted, that iterator is cut off from its index stream and drained: it returns what it had
    already asked for, in order. Then a new one goes on with the rest of the stream, and the
    script's iterator is answered from there.
    """

    def __init__(self) -> None:
        self.wanted_count: int | None = None
        self._loaders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._pools: WeakKeyDictionary[Any, Pool] = WeakKeyDictionary()
        self._behind: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._rests: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def want(self, count: int | None) -> None:
        """Ask for `count` workers from now on; None goes back to what the script says."""
        self.wanted_count = count
        self._pools.clear()

    def make(self, loader: Any, stock: Callable[[], Any]) -> Any:
        """Return the iterator of a new epoch."""
        count = self.wanted_count
        if count is None or not steerable(loader):
            iterator = stock()
        elif count == 0:
            iterator = make_iterator(loader, 0)
        else:
            pool = self._pools.setdefault(loader, Pool(count))
            iterator = pool.begin(loader)
        inner = getattr(iterator, "iterator", iterator)
        if steerable(loader) and hasattr(inner, "_sampler_iter"):
            self._loaders[inner] = loader
        return iterator

    def advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch of the script's `iterator`, from whoever fetches for it now."""
        loader = self._loaders.get(iterator)
        if loader is None:
            return original(iterator)
        behind = self._behind.get(iterator, iterator)
        count = loader.num_workers if self.wanted_count is None else self.wanted_count
        if iterator not in self._rests and behind._num_workers != count:
            self._rests[iterator] = behind._sampler_iter
            behind._sampler_iter = iter(())
        if iterator in self._rests:
            try:
                return original(behind)
            except StopIteration:
                behind = self._replace(iterator, loader, count)
        return original(behind)

    def _replace(self, iterator: Any, loader: Any, count: int) -> Any:
        behind = make_iterator(loader, count, rest=self._rests.pop(iterator))
        self._behind[iterator] = behind
        return behind
