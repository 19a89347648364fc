"""Everything known about a script when its findings are determined, and what determines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.diagnose.shares import ratio_of
from hasten.records import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.records import Finding, HotLine, Interval, Machine, Profile, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One examination of one script.

    Attributes:
        machine: this machine.
        profile: of the untouched script.
        traits: what the child reports about itself.
        found: what the examiners saw (`instrument.examine`), by `file.key`; missing means unknown.
        steps: the steps of the examination, in order.
        hot_lines: lines of the user's code that cost time.
    """

    machine: Machine
    profile: Profile
    traits: Traits = field(default_factory=Traits)
    found: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    hot_lines: tuple[HotLine, ...] = ()

    @property
    def step_s(self) -> float:
        """Mean seconds of a training step in the profile."""
        return self.profile.mean_step_s

    @property
    def quiet(self) -> list[int]:
        """The indices of the examined steps whose operations were not timed."""
        timed = set(self.found.get("operations.steps", ()))
        return [index for index in range(len(self.steps)) if index not in timed]

    def share(self, seconds: Sequence[float]) -> Interval | None:
        """Return the share of the examined steps that a part of each took, in order.

        It is the ratio of the sums with its 95% interval; None on fewer than two steps.
        """
        return self._share([step.wall_s for step in self.steps], seconds)

    @property
    def spans_s(self) -> Sequence[float]:
        """Seconds between the moments at which waits for CPUs were read, for each examined step.

        They include what examiners do between two steps, which belongs to no phase.
        """
        spans_s: Sequence[float] = self.found.get("processors.spans_s", ())
        if len(spans_s) == len(self.steps):
            return spans_s
        return [sum(step.phase_ns.values()) * 1e-9 for step in self.steps]

    def share_of_all(self, seconds: Sequence[float]) -> Interval | None:
        """Return the same share of all time, evaluations and checkpoints between steps included."""
        return self._share(self.spans_s, seconds)

    def _share(self, walls: Sequence[float], seconds: Sequence[float]) -> Interval | None:
        walls = walls[: len(seconds)]
        if len(walls) < 2 or not sum(walls):
            return None
        return ratio_of(seconds[: len(walls)], walls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One cause of lost time that can be recognized from what was measured.

    Attributes:
        name: the id of its findings; that of their page, whose title says what users notice.
        find: returns the finding, or None if the case does not show it or a fact is unknown.
        on_host: host work inside a step, which costs nothing while an accelerator is
            still busy with work queued earlier.
        explained_by: names of symptoms that say more about the same time: it is left out where
            one of them accounts for half of its share.
    """

    name: str
    find: Callable[[Case], Finding | None]
    on_host: bool = False
    explained_by: frozenset[str] = frozenset()
