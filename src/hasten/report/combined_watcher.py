"""Several watchers as one, such as the terminal and the event stream; or none at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison, Diagnosis, Interval, Pair, Plan, Profile
    from hasten.report.events import Events
    from hasten.report.progress import View


class CombinedWatcher:
    """Forwards each call to several watchers in the order given: a stream before the screen."""

    def __init__(self, *watchers: Events | View) -> None:
        self._watchers = watchers

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a stage of the work."""
        for one in self._watchers:
            one.stage(name, detail)

    def profiled(self, profile: Profile) -> None:
        """Take the profile of the unmodified script."""
        for one in self._watchers:
            one.profiled(profile)

    def found(self, diagnosis: Diagnosis) -> None:
        """Take the findings on what makes the script slow."""
        for one in self._watchers:
            one.found(diagnosis)

    def race_begins(self, baseline: Plan, candidate: Plan) -> None:
        """Begin a race."""
        for one in self._watchers:
            one.race_begins(baseline, candidate)

    def race_grows(self, pairs: Sequence[Pair], speedup: Interval) -> None:
        """Take more pairs of the race."""
        for one in self._watchers:
            one.race_grows(pairs, speedup)

    def race_ends(self, seen: Comparison) -> None:
        """End the race."""
        for one in self._watchers:
            one.race_ends(seen)

    def leads(self, plan: Plan) -> None:
        """Take a new best plan."""
        for one in self._watchers:
            one.leads(plan)

    def known(self, text: str) -> None:
        """Keep a fact."""
        for one in self._watchers:
            one.known(text)

    def note(self, text: str) -> None:
        """Say something once."""
        for one in self._watchers:
            one.note(text)
