"""Where the values of a memo lie: side by side where this process made them, else by their keys."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader.cache import file_access, packing
from hasten.loader.cache.stacks import StackedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.cache.store import Store

_MOST_READY_COUNT = 1 << 16


class NewValue(NamedTuple):
    """A value that is to be kept, untouched since it was made of files with these stamps.

    Attributes:
        replaces: an older one, whose files have changed, may be there.
        parts: it is packed already.
    """

    name: bytes
    value: Any
    stamps: tuple[file_access.Stamp, ...]
    replaces: bool
    parts: Sequence[Any] | None


class Found(NamedTuple):
    """A value that is kept, made of files with these stamps.

    Attributes:
        lent: the value in the memory that keeps it, only to be read; None where it is not there.
        make: makes a copy.
    """

    stamps: tuple[file_access.Stamp, ...]
    lent: Any
    make: Callable[[], Any]


class KeptValues:
    """The values of one memo in the store.

    The process that made the memo remembers where its own values lie, and what it has found: it
    writes those of a batch in one go and without keys. Processes that are forked later know what
    it knew by then. Other processes find each value by its key.

    Args:
        store: where the bytes lie.
        salt: what sets the keys of this memo apart.
        owns: this process made the memo.

    Attributes:
        is_full: nothing more fits.
    """

    def __init__(self, store: Store, salt: bytes, *, owns: bool) -> None:
        self.store = store
        self.salt = salt
        self.is_full = False
        self._pid = os.getpid() if owns else None
        self._rows: dict[bytes, Any] = {}
        self._stamps: dict[bytes, tuple[file_access.Stamp, ...]] = {}
        self._sought: dict[bytes, Found] = {}

    def has(self, name: bytes) -> bool:
        """Return whether the value of `name` is kept."""
        return name in self._rows or self.store.has(self.salt + name)

    def find(self, name: bytes) -> tuple[Found | None, bool]:
        """Return the value of `name`, and whether only one is there whose files have changed."""
        found = self._ready(name)
        if found is not None and file_access.unchanged(found.stamps):
            return found, False
        view = self.store.get(self.salt + name)
        if view is None:
            return None, found is not None
        packed = packing.Packed(view)
        if not file_access.unchanged(packed.note):
            return None, True
        if not self._remembers(1):
            return Found(packed.note, None, packed.build), False
        found = self._sought[name] = Found(packed.note, *packed.lend())
        return found, False

    def lent(self, names: Sequence[bytes]) -> list[Any] | None:
        """Return values in the memory that keeps them; None where one of them is not there."""
        lent = []
        for name in names:
            value, stamps = self._rows.get(name), self._stamps.get(name, ())
            if value is None and name in self._sought:
                stamps, value, _ = self._sought[name]
            if value is None or not file_access.unchanged(stamps):
                return None
            file_access.read(stamps)
            lent.append(value)
        return lent

    def forget(self) -> None:
        """Remember nothing."""
        self._rows, self._stamps, self._sought = {}, {}, {}

    def _ready(self, name: bytes) -> Found | None:
        """Return what this process remembers of the value of `name`."""
        if name in self._rows:
            row = self._rows[name]
            return Found(self._stamps.get(name, ()), row, partial(packing.copied, row))
        return self._sought.get(name)

    def _remembers(self, count: int) -> bool:
        """Return whether this process remembers where `count` more values lie."""
        known_count = len(self._rows) + len(self._sought)
        return known_count + count <= _MOST_READY_COUNT and os.getpid() == self._pid

    def keep(self, values: list[NewValue], pack: Callable[[NewValue], Any]) -> None:
        """Keep the values of a batch, as far as there is room and `pack` returns their parts."""
        if not self._stack(values):
            packed = [(one, pack(one) if one.parts is None else one.parts) for one in values]
            self._put([(one, parts) for one, parts in packed if parts is not None])

    def _stack(self, values: list[NewValue]) -> bool:
        """Let the values lie side by side; return whether they do."""
        if not self._remembers(len(values)) or any(one.parts for one in values):
            return False
        try:
            stack = StackedValues([one.value for one in values])
        except Exception:  # foreign objects may raise anything
            return False
        fresh = {one.name for one in values if not one.replaces} - self._rows.keys()
        view = self.store.lay(stack.length, len(fresh))
        if view is None:
            return False
        # No object more than these two for each value: the collector looks at all of them.
        for one, row in zip(values, stack.fill(view), strict=True):
            self._rows[one.name] = row
            if one.stamps or one.replaces:
                self._stamps[one.name] = one.stamps
        return True

    def _put(self, packed: list[tuple[NewValue, Sequence[Any]]]) -> None:
        for one, _ in packed:
            self._rows.pop(one.name, None)
        entries = [(self.salt + one.name, parts, one.replaces) for one, parts in packed]
        if self.store.put_all(entries) < len(entries):
            needed_bytes = max(
                sum(memoryview(part).nbytes for part in parts) for _, parts, _ in entries
            )
            self.is_full = not self.store.has_room(needed_bytes)
