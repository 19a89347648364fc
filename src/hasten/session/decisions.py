"""What a tuning has decided so far about each lever, and what the user should know about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hasten.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import LeverReport, Plan, Reason


@dataclass(frozen=True, slots=True)
class Lost:
    """Why levers that were faster are not in the plan."""

    reason: Reason | None
    why: str


@dataclass(slots=True)
class Decisions:
    """The rows of the report, and its notes.

    Attributes:
        rows: one for each lever with a decision.
        notes: sentences.
    """

    rows: list[LeverReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def searched(self, rows: Sequence[LeverReport]) -> None:
        """Take the rows of a search for the levers that it tried; others keep theirs."""
        self.reopen(rows)
        self.rows += rows

    def stopped(self, rows: Sequence[LeverReport]) -> None:
        """Take the rows of a search that was cut short, for levers without a decision."""
        decided = {row.lever for row in self.rows}
        self.rows += [row for row in rows if row.lever not in decided]

    def reopen(self, rows: Sequence[LeverReport]) -> None:
        """Take back the decisions about the levers of a search that goes on."""
        tried = {row.lever for row in rows}
        self.rows = [row for row in self.rows if row.lever not in tried]

    def lose(self, levers: frozenset[str], outcome: Outcome, lost: Lost) -> None:
        """Drop levers that a search had kept."""
        self.rows = [
            replace(row, outcome=outcome, why=lost.why, reason=lost.reason)
            if row.lever in levers
            else row
            for row in self.rows
        ]

    def unshown(self, plan: Plan) -> Plan:
        """Return the levers of a plan whose own race left open whether they gain anything."""
        return plan.only(self._raced_alone(gained=False))

    def won_alone(self, plan: Plan) -> Plan:
        """Return the levers of a plan that won a race of their own; none if all of them did."""
        rest = plan.only(self._raced_alone(gained=True))
        return rest if rest != plan else plan.only(frozenset())

    def _raced_alone(self, *, gained: bool) -> frozenset[str]:
        """Return the levers of the plan whose own race showed a gain, or did not."""
        kept = (row for row in self.rows if row.outcome is Outcome.KEPT)
        return frozenset(r.lever for r in kept if r.speedup and r.speedup.is_gain is gained)
