"""All that is known of a script when its findings are looked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.diagnose.shares import ratio_of
from hasten.records import Traits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.records import HotLine, Interval, Machine, Profile, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One look at one script.

    Attributes:
        machine: this machine.
        profile: of the untouched script.
        traits: what the child says of itself.
        found: what the examiners saw (`instrument.examine`), by `file.key`; unknown where missing.
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

    def share(self, seconds: Sequence[float]) -> Interval | None:
        """Return the share of the examined steps that some part of each took.

        Args:
            seconds: of each examined step, in order.

        Returns:
            The ratio of the sums with its 95% interval; None on fewer than two steps.
        """
        return self._share([step.wall_s for step in self.steps], seconds)

    def share_of_all(self, seconds: Sequence[float]) -> Interval | None:
        """Return the share of all the time between two step ends, with its 95% interval.

        Args:
            seconds: of each examined step, with what passed in evaluations and checkpoints.
        """
        walls = [sum(step.phase_ns.values()) * 1e-9 for step in self.steps]
        return self._share(walls, seconds)

    def _share(self, walls: Sequence[float], seconds: Sequence[float]) -> Interval | None:
        walls = walls[: len(seconds)]
        if len(walls) < 2 or not sum(walls):
            return None
        return ratio_of(seconds[: len(walls)], walls)
