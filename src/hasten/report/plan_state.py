"""How far the plan of a tuning can be relied on."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.records import Tuning


class State(StrEnum):
    """How far a plan can be relied on, weakest first.

    EMPTY means that nothing was found that helps, and nothing was to be proved; the empty plan of
    a search that was cut off, or that lost what was faster for want of evidence, is UNPROVED.
    """

    FAILED = "failed"
    UNPROVED = "unproved"
    PROVED = "proved"
    EMPTY = "empty"
    CONFIRMED = "confirmed"

    @property
    def strength_index(self) -> int:
        """The position in the order FAILED < UNPROVED < PROVED < EMPTY < CONFIRMED."""
        return list(State).index(self)


def state_of(tuning: Tuning) -> State:
    """Return how far the plan of a tuning can be relied on."""
    if not tuning.plan.settings or (tuning.finds_nothing and not tuning.proof.gates):
        return State.UNPROVED if tuning.undecided else State.EMPTY
    if not tuning.proof.holds:
        return State.FAILED
    if tuning.speedup is not None and tuning.speedup.is_gain:
        return State.CONFIRMED
    return State.PROVED if tuning.proof.gates else State.UNPROVED
