"""When a plan whose start takes longer has paid for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from upshift.units import duration

if TYPE_CHECKING:
    from upshift.records import Comparison, Plan

WORTH_SAYING_S = 3.0
_BLAMED_SHARE, _TOLD_SHARE = 0.5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """A later start against faster steps.

    Attributes:
        later_s: seconds by which the training is behind under the plan, until its steps tell.
        first_pass_s: of these, what the first pass over the data takes longer than later ones.
        step_s: seconds of a step of the script as it is.
        speedup_ratio: of its steps under the plan; above 1.
    """

    later_s: float
    step_s: float
    speedup_ratio: float
    first_pass_s: float = 0.0

    @property
    def step_count(self) -> int:
        """Steps after which both have trained as far in the same time.

        >>> Payback(later_s=30.0, step_s=0.1, speedup_ratio=2.0).step_count
        600
        """
        return ceil(self.later_s / (self.step_s * (1.0 - 1.0 / self.speedup_ratio)))

    @property
    def wall_s(self) -> float:
        """Seconds of training under the plan until then, its start not counted."""
        return self.step_count * self.step_s / self.speedup_ratio

    def is_repaid(self, training_s: float) -> bool:
        """Return whether a training as long as this gets it back.

        Args:
            training_s: seconds that the training takes as it is.
        """
        return self.later_s < training_s * (1.0 - 1.0 / self.speedup_ratio)

    @property
    def says(self) -> str:
        """The break-even in one sentence.

        >>> Payback(later_s=30.0, step_s=0.1, speedup_ratio=2.0).says
        'Under the plan the first step comes 30 s later: paid back after 600 steps (30 s).'
        >>> Payback(later_s=9.0, step_s=0.1, speedup_ratio=2.0, first_pass_s=9.0).says[:67]
        'Under the plan the first pass over the data takes 9 s longer than l'
        """
        start_s, pass_s = self.later_s - self.first_pass_s, self.first_pass_s
        parts = []
        if start_s >= _TOLD_SHARE * self.later_s:
            parts.append(f"the first step comes {duration(start_s)} later")
        if pass_s >= _TOLD_SHARE * self.later_s:
            longer = duration(pass_s)
            parts.append(f"the first pass over the data takes {longer} longer than later ones")
        return (
            f"Under the plan {' and '.join(parts)}: "
            f"paid back after {self.step_count:,} steps ({duration(self.wall_s)})."
        )


def blamed(plan: Plan, history: tuple[Comparison, ...], *, later_s: float) -> frozenset[str]:
    """Return the levers of a plan that make its start late, as their races saw it; all if none.

    Args:
        plan: what starts late.
        history: every race.
        later_s: how late.
    """
    names = {name for name, _ in plan.settings}
    found = [
        seen.baseline.differing(seen.candidate)
        for seen in history
        if seen.later_s is not None and seen.later_s >= _BLAMED_SHARE * later_s
    ]
    single = [levers for levers in found if len(levers) == 1]
    return frozenset(names & frozenset().union(*single)) or frozenset(names)
