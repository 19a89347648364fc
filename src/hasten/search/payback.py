"""When a plan with a slower start has paid for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from hasten.records import Interval, Passes
from hasten.search.proposal import AcceptanceCriteria
from hasten.units import duration

if TYPE_CHECKING:
    from hasten.records import Comparison, Plan, Traits

_WORTH_SAYING_S = 3.0
_BLAMED_SHARE, _TOLD_SHARE = 0.5, 0.1
_ASSUMED_PASSES = 10
_TOLD_RATIO, _ALIKE = 0.98, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """A later start against faster steps.

    Attributes:
        later_s: seconds by which the plan puts the training behind before its steps catch up.
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
        """Steps after which the script and the plan have trained equally far.

        >>> Payback(later_s=30.0, step_s=0.1, speedup_ratio=2.0).step_count
        600
        """
        return ceil(self.later_s / (self.step_s * (1.0 - 1.0 / self.speedup_ratio)))

    @property
    def wall_s(self) -> float:
        """Seconds of training under the plan until it has paid back, its start not counted."""
        return self.step_count * self.step_s / self.speedup_ratio

    def is_repaid(self, training_s: float) -> bool:
        """Return whether a training that takes so long as it is pays back the late start."""
        return self.later_s < training_s * (1.0 - 1.0 / self.speedup_ratio)

    @property
    def message(self) -> str:
        """The break-even in one sentence.

        >>> Payback(later_s=30.0, step_s=0.1, speedup_ratio=2.0).message
        'Under the plan the first step comes 30 s later: paid back after 600 steps (30 s).'
        >>> Payback(later_s=9.0, step_s=0.1, speedup_ratio=2.0, first_pass_s=9.0).message[:67]
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
    """Return the levers of a plan whose races saw a late start; all of them if none did."""
    found = [
        seen.baseline.differing(seen.candidate)
        for seen in history
        if seen.later_s is not None and seen.later_s >= _BLAMED_SHARE * later_s
    ]
    single = [levers for levers in found if len(levers) == 1]
    return plan.levers & frozenset[str]().union(*single) or plan.levers


def payback_of(
    later_s: float | None, *, first_pass_s: float, step_s: float, speedup_ratio: float
) -> Payback | None:
    """Return the payback of a plan; None where it starts about as early, or nobody knows."""
    if later_s is None or later_s < _WORTH_SAYING_S:
        return None
    return Payback(
        later_s=later_s, step_s=step_s, speedup_ratio=speedup_ratio, first_pass_s=first_pass_s
    )


def known_training_s(
    training_s: float | None, life_count: int | None, *, step_s: float
) -> float | None:
    """Return the seconds of the training as it is; None where nobody knows.

    Args:
        training_s: what the user said.
        life_count: steps of the training, where a trial has seen its end.
        step_s: seconds of a step, and of what lies between steps.
    """
    return life_count * step_s if training_s is None and life_count else training_s


def pass_count_of(training_s: float | None, pass_s: float) -> int:
    """Return the passes of a training over its data, an assumed number where nobody knows.

    >>> pass_count_of(None, 2.0), pass_count_of(7.0, 2.0), pass_count_of(0.5, 2.0)
    (10, 4, 1)
    """
    return _ASSUMED_PASSES if training_s is None else max(1, round(training_s / pass_s))


def passes_of(
    traits: Traits,
    speedup: Interval,
    *,
    step_s: float,
    longer_s: float,
    outside_s: float = 0.0,
    outside_under_s: float | None = None,
    outside_off_s: float = 0.0,
    training_s: float | None,
    life_count: int | None = None,
) -> Passes | None:
    """Return the gain of the whole training; None where it is about that of a step.

    Args:
        traits: what the child saw of the script.
        speedup: of steps of later passes.
        step_s: seconds of a step of the script as it is.
        longer_s: seconds that the first pass takes longer under the plan.
        outside_s: seconds that pass outside of steps for each step.
        outside_under_s: the same under the plan, None where that is not known. What is about the
            same counts as unchanged: it was seen a few times at most.
        outside_off_s: how far both may be off, which widens the interval.
        training_s: seconds of the training as it is; None where nobody said.
        life_count: steps of the training, where a trial has seen its end.
    """
    step_count = traits.pass_step_count
    longer_s = max(0.0, longer_s) if step_count else 0.0
    if outside_under_s is None or abs(outside_under_s - outside_s) <= _ALIKE * outside_s:
        outside_under_s = outside_s
    pass_s, between_s, under_s, off_s = (
        max(1, step_count) * seconds
        for seconds in (step_s, outside_s, outside_under_s, outside_off_s)
    )
    training_s = known_training_s(training_s, life_count, step_s=step_s + outside_s)
    pass_count = pass_count_of(training_s, pass_s + between_s)

    def over(count: int, ratio: float, also_s: float = 0.0) -> float:
        whole_s = count * (pass_s + between_s + also_s)
        return whole_s / (count * (pass_s / ratio + under_s + also_s) + longer_s)

    mid_ratio = speedup.mid_ratio
    if over(pass_count, mid_ratio) > _TOLD_RATIO * mid_ratio:
        return None
    lows, highs = (
        [over(pass_count, end, also_s) for also_s in (-off_s, off_s)]
        for end in (speedup.low_ratio, speedup.high_ratio)
    )
    return Passes(
        step_count=step_count, longer_s=longer_s, outside_s=outside_s,
        outside_under_s=outside_under_s, pass_count=pass_count,
        is_assumed=training_s is None, first_ratio=over(1, mid_ratio),
        whole=Interval(
            low_ratio=min(lows), mid_ratio=over(pass_count, mid_ratio), high_ratio=max(highs)
        ),
    )  # fmt: skip


def unpaid(passes: Passes | None) -> str:
    """Say what takes longer than steps gain, the first pass or evaluation; empty for nothing."""
    if passes is None or passes.whole.is_gain:
        return ""
    if not passes.longer_s:
        ratio = passes.outside_under_s / passes.outside_s
        return f"evaluation and the like took {ratio:.2f} times as long, more than steps gain"
    longer, count = duration(passes.longer_s), passes.pass_count
    over = "one pass is" if count == 1 else f"{count:,} passes are"
    return f"the first pass over the data takes {longer} longer, and {over} too few to repay that"


def of_all(payback: Payback | None, passes: Passes | None) -> Payback | None:
    """Return a payback by the gain of the whole training, which includes the first pass."""
    if payback is None or passes is None or not passes.whole.is_gain:
        return payback
    counted_s = payback.first_pass_s if passes.longer_s else 0.0
    return replace(
        payback, speedup_ratio=passes.whole.mid_ratio, first_pass_s=0.0,
        later_s=max(0.0, payback.later_s - counted_s),
    )  # fmt: skip


def too_late(payback: Payback | None, training_s: float | None) -> str:
    """Say that a plan's start costs more than the whole training saves; empty where not."""
    if payback is None or training_s is None or payback.is_repaid(training_s):
        return ""
    return AcceptanceCriteria(training_s=training_s).too_late(
        payback.speedup_ratio, payback.later_s
    )


def savings(
    payback: Payback | None,
    speedup_ratio: float,
    training_s: float | None,
    *,
    passes: Passes | None = None,
) -> list[str]:
    """Weigh the gain of a plan against its start, in sentences.

    Args:
        payback: by the gain of later steps.
        speedup_ratio: of the whole training.
        training_s: its seconds as it is; None where nobody said.
        passes: the gain of the whole training, where it differs from that of its steps.
    """
    said = [payback.message] if payback is not None else []
    if training_s is None:
        return said
    start = of_all(payback, passes)
    saved_s = training_s * (1 - 1 / speedup_ratio) - (start.later_s if start else 0.0)
    saved = f"the plan saves about {duration(saved_s)}"
    return [*said, f"In {duration(training_s)} of training {saved}."]
