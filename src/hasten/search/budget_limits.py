"""Whether a race may be run, and the sentence that says why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

from hasten.search.proposal import Kind, Proposal
from hasten.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable

_FOR_SPEED = (Kind.BUNDLE, Kind.TOGGLE, Kind.REFINE, Kind.PAIR)


class RefusalReason(StrEnum):
    """Why a race is not run: no time, no launch left, more cost than gain, or an early end."""

    TIME = "time"
    LAUNCHES = "launches"
    WORTH = "worth"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A race that was not run.

    Attributes:
        message: why, in half a sentence that follows "not tried: ".
    """

    asked: Proposal
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The least that a race costs: seconds until it can be decided, and fresh launches."""

    wall_s: float = 0.0
    launch_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What a search may spend; the default is everything.

    Attributes:
        price: what a race costs.
        left_s: seconds that the search has left for a race, less those for what comes after it.
        launches_left: fresh processes that it may still start.
        weighed_s: seconds of training that an expected gain is weighed against.
        answer_s: seconds that an answer costs after a race, where it needs one of its own.
        ended: somebody ended the search.
        for_speed: no race that only finds a culprit or removes levers.
    """

    price: Callable[[Proposal], Price] = lambda asked: Price(
        launch_count=int(asked.scope == "launch")
    )
    left_s: Callable[[Proposal], float] = lambda asked: inf
    launches_left: float = inf
    weighed_s: float = inf
    answer_s: Callable[[Proposal], float] = lambda asked: 0.0
    ended: bool = False
    for_speed: bool = False


def refuse(asked: Proposal, limits: BudgetLimits) -> Refusal | None:
    """Return why a race is not run, None where it may be.

    Races that look for a speed-up have to save more of the training than they cost; those that
    find a culprit or remove levers serve another purpose and do not have to.
    """
    if limits.ended or (limits.for_speed and not asked.promises_gain):
        return Refusal(
            asked=asked, reason=RefusalReason.ENDED, message="the search was stopped before it"
        )
    price = limits.price(asked)
    if price.launch_count > limits.launches_left:
        message = f"it needs a fresh launch, and {limits.launches_left:.0f} are left"
        return Refusal(asked=asked, reason=RefusalReason.LAUNCHES, message=message)
    left_s = limits.left_s(asked)
    if price.wall_s > left_s:
        message = "what is left of the budget is kept for the proof and the confirmation"
        if left_s > 0:
            needed, left = duration(price.wall_s), duration(left_s)
            message = f"its race needs about {needed}, and {left} were left of the budget"
        return Refusal(asked=asked, reason=RefusalReason.TIME, message=message)
    if asked.kind in _FOR_SPEED and limits.weighed_s < inf:
        saved_s = limits.weighed_s * (1.0 - 1.0 / asked.expected_ratio)
        cost_s = price.wall_s + limits.answer_s(asked)
        if saved_s < cost_s:
            saved, cost = duration(saved_s), duration(cost_s)
            message = f"expected to save {saved} of {duration(limits.weighed_s)} and to cost {cost}"
            return Refusal(asked=asked, reason=RefusalReason.WORTH, message=message)
    return None
