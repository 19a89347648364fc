"""Which part of a plan the gates let through, and which lever is to blame for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import TRIAL_FAILURES, OutOfTime, Unprovable
from hasten.lever import lookup
from hasten.records import Plan, Proof

if TYPE_CHECKING:
    from collections.abc import Callable


class Judge:
    """Judges a plan, and what is left of it where it fails.

    A plan that fails loses the lever that may change the most, and is judged again. Once it
    holds, the lever that went last was to blame, and those that went before it may have been
    innocent: they are judged once more, together and then one by one, while there is time.

    Args:
        prove: what the gates say of a plan, with what the user set by hand.
        in_time: whether a plan can still be proved and confirmed.
        has_applied: the user set something by hand, which may fail alone.

    Attributes:
        plan: what is left, at any time.
        proof: that of the plan; None before it holds.
        rejected: why each lever had to go, by its name.
        fails_alone: what the user set fails by itself: no other lever is to blame.
    """

    def __init__(
        self,
        prove: Callable[[Plan], Proof],
        in_time: Callable[[Plan], bool],
        *,
        has_applied: bool = False,
    ) -> None:
        self._prove = prove
        self._in_time = in_time
        self._has_applied = has_applied
        self.plan = Plan()
        self.proof: Proof | None = None
        self.rejected: dict[str, str] = {}
        self.fails_alone = False

    def judge(self, plan: Plan) -> Proof:
        """Return the proof of what is left of `plan`.

        Raises:
            Unprovable: nothing can be said of any plan.
        """
        self.plan = plan
        while not (proof := self._prove(self.plan)).holds and self.plan.settings:
            if self._has_applied and not (own := self._prove(Plan())).holds:
                self.plan, self.fails_alone = Plan(), True
                return own
            lever = _gravest(self.plan)
            self.rejected[lever] = next(g.message for g in proof.gates if g.passed is False)
            self.plan = self.plan.without(lever)
        self.proof = proof
        doubtful = list(self.rejected)[:-1]
        if again := self._readmit(plan, doubtful):
            return again
        for lever in doubtful[1:] and doubtful:
            proof = self._readmit(plan, [lever]) or proof
        return proof

    def _readmit(self, whole: Plan, levers: list[str]) -> Proof | None:
        """Take rejected levers in again if the plan holds with them; None where it does not."""
        wider = whole.only(frozenset(levers).union(name for name, _ in self.plan.settings))
        if not levers or not self._in_time(wider):
            return None
        try:
            proof = self._prove(wider)
        except (Unprovable, OutOfTime, *TRIAL_FAILURES):  # what has been proved stays so
            return None
        if not proof.holds:
            return None
        self.plan = wider
        self.proof = proof
        for lever in levers:
            self.rejected.pop(lever)
        return proof


def _gravest(plan: Plan) -> str:
    """Return the lever of a plan that may change the most."""
    return max(lookup(plan), key=lambda pair: pair[0].effect.severity_index)[0].name
