"""Which of the sources that levers offer makes the batches of a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.sources.checked import Checked, Trust
from hasten.loader.sources.source import stock_of
from hasten.loader.view import worker_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.notices import Notices
    from hasten.loader.proofs import ItemFacts


class OfferedSources:
    """Chooses a source for one loader, and remembers which ones were given up.

    Args:
        items: what is known about the items.
        notices: is told why a source is not used.
    """

    def __init__(self, items: ItemFacts, notices: Notices) -> None:
        self._items = items
        self._notices = notices
        self._trusts: dict[str, Trust] = {}

    def choose(
        self, loader: Any, offers: Sequence[Callable[[Any], Any]]
    ) -> tuple[Checked | None, Checked | None]:
        """Return the first source that is offered for the loader as it is now, checked.

        It is the first of the two where it is light, made for the main process, and the second
        where it is for workers, too, for which light ones do not pay off. Each of `offers`
        proposes a source, or says why not.
        """
        unchanged = self._items.permit.is_unchanged
        made: dict[str, Any] = {}
        light = None
        if unchanged or not loader.num_workers:
            light = self._first(loader, offers, made, light=True)
        if light is not None:
            return light, None
        if unchanged:
            return None, self._first(loader, offers, made, light=False)
        if offers:  # it would show changes at once, or not at all
            self._notices.refuse(self._items.permit.missing)
        return None, None

    def _first(
        self, loader: Any, offers: Sequence[Callable[[Any], Any]], made: dict[str, Any], *,
        light: bool,
    ) -> Checked | None:  # fmt: skip
        """Return the first source of a kind; `made` holds what was offered already."""
        for offer in offers:
            key = f"{offer.__module__}.{offer.__qualname__}"
            trust = self._trusts.get(key)
            if trust is not None and trust.is_over:
                continue
            if key not in made:
                made[key] = offer(loader)
            found = made[key]
            if isinstance(found, str):
                if trust is not None:
                    self._notices.refuse(f"{trust.name} is given up: {found}")
                else:
                    self._notices.note(found)
                continue
            is_set_up = worker_setup(loader) is not None
            if found.light != light or (light and is_set_up and not found.pure):
                continue  # draws that an init function has seeded cannot be replayed here
            return self._trusted(key, found, loader)
        return None

    def _trusted(self, key: str, found: Any, loader: Any) -> Checked:
        notices = self._notices

        def give_up(why: str, *, is_wrong: bool) -> None:
            (notices.refuse if is_wrong else notices.note)(why)

        trust = self._trusts.setdefault(key, Trust(found.name))
        quiet = self._items.permit.draws is False
        return Checked(found, stock_of(loader), on_end=give_up, quiet=quiet, trust=trust)
