"""The way of a search: which races led from the script as it is to its last plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.records import Plan, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison

_LEAST_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A race after which the search went on from another plan.

    Attributes:
        seen: the race.
        before: the plan of the search until then.
        after: the plan from then on; without some levers where they were found not to be needed.
        time_ratio: time of a step after over before, as this race saw it.
    """

    seen: Comparison
    before: Plan
    after: Plan
    time_ratio: float


def moves(races: Sequence[Comparison], final: Plan) -> list[Move]:
    """Return the races that changed the plan, in order.

    A journal keeps races and not decisions: where the search stood is told by the race after,
    of which one side is always the plan that the search had by then.

    Args:
        races: every race of the search, in order.
        final: the plan in the end.
    """
    plan, found = Plan(), []
    for index, seen in enumerate(races):
        other = _other(seen, plan)
        if other is None or seen.speedup is None:
            continue
        if _went_on(seen, plan, other, following=races[index + 1 : index + 2], final=final):
            gain = seen.speedup.mid_ratio
            ratio = 1.0 / gain if other == seen.candidate else gain
            found.append(Move(seen=seen, before=plan, after=other, time_ratio=ratio))
            plan = other
    return found


def _other(seen: Comparison, plan: Plan) -> Plan | None:
    """Return the side of a race on which the search does not stand yet."""
    if seen.baseline == plan:
        return seen.candidate
    return seen.baseline if seen.candidate == plan else None


def _went_on(
    seen: Comparison, plan: Plan, other: Plan, *, following: Sequence[Comparison], final: Plan
) -> bool:
    for after in following:
        return other in (after.baseline, after.candidate)
    if final in (plan, other):
        return final == other
    better = _is_better(seen)
    return better if other == seen.candidate else not better


def _is_better(seen: Comparison) -> bool:
    """Return whether a search takes the candidate: it won, or is the best guess and worth it."""
    if seen.verdict is not Verdict.UNDECIDED or seen.speedup is None:
        return seen.verdict is Verdict.WIN
    return seen.speedup.mid_ratio >= 1.0 + _LEAST_RATIO
