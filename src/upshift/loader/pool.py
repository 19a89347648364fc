"""Workers that stay between epochs, with the random stream of a loader that starts anew."""

from __future__ import annotations

import weakref
from typing import Any

from upshift.loader.view import make_iterator

_DEEPEST = 3
_PLAIN = (int, float, str, bytes, bool, type(None))


def fingerprint(value: Any, depth: int = 0) -> Any:
    """Return what a dataset looks like from here; workers that saw another one are stale.

    Plain attributes by value, everything else by identity, three levels deep. A change inside
    a list or an array is not seen: what the script writes there after the workers have started
    is not seen by stock workers within an epoch either.
    """
    if isinstance(value, _PLAIN):
        return value
    attributes = getattr(value, "__dict__", None)
    if depth == _DEEPEST or not attributes or isinstance(value, type):
        return id(value)
    return tuple((name, fingerprint(part, depth + 1)) for name, part in sorted(attributes.items()))


class Epoch:
    """One pass over a kept pool, as the iterator that the script holds.

    The pool is free again when the pass has ended or this object is gone (`break`).
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.ended = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except BaseException:
            self.ended = True
            raise

    def __len__(self) -> int:
        return len(self.iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)


class Pool:
    """The kept workers of one loader."""

    def __init__(self, worker_count: int) -> None:
        self._count = worker_count
        self._iterator: Any = None
        self._seen: Any = None
        self._epoch: weakref.ref[Epoch] | None = None

    def begin(self, loader: Any) -> Any:
        """Start an epoch: with the kept workers where they are free and saw this dataset.

        A new iterator of torch draws a base seed before the sampler draws its own. A kept pool
        would skip that draw and shift every later shuffle, so it is drawn here all the same.
        """
        seen = fingerprint(loader.dataset)
        epoch = self._epoch() if self._epoch is not None else None
        if epoch is not None and not epoch.ended:  # two passes at the same time
            return make_iterator(loader, self._count)
        if self._iterator is None or seen != self._seen or self._broken():
            self._iterator = make_iterator(loader, self._count, kept=True)
            self._seen = seen
        else:
            import torch

            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            self._iterator._reset(loader)
        handle = Epoch(self._iterator)
        self._epoch = weakref.ref(handle)
        return handle

    def _broken(self) -> bool:
        workers = self._iterator._workers
        return bool(self._iterator._shutdown or not all(w.is_alive() for w in workers))
