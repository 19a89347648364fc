"""Several watchers as one, such as the terminal and the event stream; or none at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.report.events import Events
    from hasten.report.progress import View


def _of_each(name: str) -> Callable[..., None]:
    """Return a method that calls the one of this name on each watcher."""

    def call(self: CombinedWatcher, *told: object) -> None:
        for one in self._watchers:
            getattr(one, name)(*told)

    return call


class CombinedWatcher:
    """Forwards each call to several watchers in the order given: a stream before the screen."""

    def __init__(self, *watchers: Events | View) -> None:
        self._watchers = watchers

    stage = _of_each("stage")
    profiled = _of_each("profiled")
    found = _of_each("found")
    race_begins = _of_each("race_begins")
    race_grows = _of_each("race_grows")
    race_ends = _of_each("race_ends")
    leads = _of_each("leads")
    known = _of_each("known")
    note = _of_each("note")
