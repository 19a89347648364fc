"""Workers that stay between epochs, with the random stream of a loader that starts anew."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

from upshift.loader.view import make_iterator

if TYPE_CHECKING:
    from upshift.loader.view import Stream

_DEEPEST = 3
_LONGEST = 64
_SAMPLE_COUNT = 4096
_PLAIN = (int, float, str, bytes, bool, type(None))


def fingerprint(value: Any, depth: int = 0) -> Any:
    """Return what a dataset looks like from here; workers that saw another one are stale.

    Plain attributes by value, everything else by identity, three levels deep; long containers
    by the identity of their members, tensors by their count of writes, arrays by a sample. A
    write deeper than that is not seen.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (type, ModuleType)) or depth == _DEEPEST:
        return id(value)
    parts: Any = value
    if type(value) is dict:
        parts = [*value.keys(), *value.values()]
    if type(parts) in (list, tuple, set):
        if len(parts) > _LONGEST:
            return id(value), len(parts), hash(tuple(map(id, parts)))
        return id(value), tuple(fingerprint(part, depth + 1) for part in parts)
    attributes = getattr(value, "__dict__", None) or {}
    inside = [(name, fingerprint(part, depth + 1)) for name, part in sorted(attributes.items())]
    return id(value), _writes(value), tuple(inside)


def _writes(value: Any) -> Any:
    """Return what changes when a tensor or an array is written in place."""
    kind = type(value)
    try:
        if hasattr(kind, "_version"):
            return value._version
        if hasattr(kind, "__array_interface__") and kind.__name__ != "memmap":
            flat = value.reshape(-1)
            return hash(flat[:: 1 + flat.size // _SAMPLE_COUNT].tobytes())
    except Exception:  # an inference tensor counts no writes; arrays of strangers may refuse
        return None
    return None


class Epoch:
    """One pass over a kept pool, as the iterator that the script holds.

    The pool is free again when the pass has ended or this object is gone (`break`). It holds
    the loader too: `for batch in DataLoader(...)` would otherwise lose it at once.
    """

    def __init__(self, iterator: Any, loader: Any) -> None:
        self.iterator = iterator
        self.loader = loader
        self.ended = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
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

    def begin(self, loader: Any, stream: Stream) -> Any:
        """Start an epoch: with the kept workers where they are free and saw this dataset."""
        epoch = self._epoch() if self._epoch is not None else None
        if epoch is not None and not epoch.ended:  # two passes at the same time
            return make_iterator(loader, self._count, stream)
        carried = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
        seen = tuple(map(fingerprint, carried))
        if self._iterator is None or seen != self._seen or self._broken():
            self._iterator = make_iterator(loader, self._count, stream, kept=True)
            self._seen = seen
        else:
            self._iterator._index_sampler = stream
            self._iterator._reset(loader)
        handle = Epoch(self._iterator, loader)
        self._epoch = weakref.ref(handle)
        return handle

    def _broken(self) -> bool:
        workers = self._iterator._workers
        return bool(self._iterator._shutdown or not all(w.is_alive() for w in workers))
