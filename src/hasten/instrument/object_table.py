"""Live objects of the script, by identity, and what levers do to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Undo = Callable[[], None]
    Apply = Callable[[Any], Undo | None]


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Table:
    """A value for each of some live objects, without keeping them alive.

    They are told apart by identity: a dataclass that is a module has no hash, two modules may be
    equal, and we must call neither hash nor equality.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[ref[Any], Any]] = {}

    def __setitem__(self, item: Any, value: Any) -> None:
        key, rows = id(item), self._rows
        rows[key] = (ref(item, lambda _: rows.pop(key, None)), value)

    def __contains__(self, item: Any) -> bool:
        return id(item) in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        items = [there() for there, _ in list(self._rows.values())]
        return iter([item for item in items if item is not None])

    def get(self, item: Any, default: Any = None) -> Any:
        """Return the value of an object."""
        row = self._rows.get(id(item))
        return default if row is None else row[1]

    def values(self) -> list[Any]:
        """Return all values."""
        return [value for _, value in list(self._rows.values())]

    def clear(self) -> None:
        """Forget all objects."""
        self._rows.clear()


class Registry:
    """Objects of one kind, and what levers do to each of them, old and new."""

    def __init__(self) -> None:
        self.known = Table()
        self._applied: list[tuple[Apply, Table]] = []

    def __contains__(self, item: Any) -> bool:
        return item in self.known

    def add(self, item: Any) -> None:
        """Add an object, and let every lever act on it."""
        self.known[item] = None
        for apply, undos in self._applied:
            undos[item] = apply(item)

    def act(self, apply: Apply) -> Undo:
        """Apply `apply` to every object, now and later; the result undoes all of it."""
        undos = Table()
        applied = apply, undos
        self._applied.append(applied)
        for item in self.known:
            undos[item] = apply(item)

        def undo() -> None:
            self._applied.remove(applied)
            for one in undos.values():
                if one is not None:
                    one()

        return undo
