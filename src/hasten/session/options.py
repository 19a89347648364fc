"""What the user asked for, and who watches."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol

from hasten.lever import enabling, lookup
from hasten.records import Effect, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison, Diagnosis, Interval, Pair, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        budget_s: seconds that the whole tuning may take.
        spent_s: seconds of these that are gone when it begins, such as for the start of Python.
        first_s: seconds within which a first answer should be ready, if the script permits.
        numerics: the strongest effect on the numbers that the user permits.
        only: levers to try, all where it is empty.
        skip: levers not to try.
        applied: levers set by hand; everything is tried on top of them.
        patience_s: how long to wait for the first training step.
        training_s: how long the training will run, where the user said so.
        step_count: steps to profile, None to let the time decide.
        unprotected: start trials even where the kernel cannot keep them from the files.
        assumed: what the user grants, by name.
    """

    budget_s: float = 300.0
    spent_s: float = 0.0
    first_s: float = inf
    numerics: Effect = Effect.DISTRIBUTION
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    applied: Plan = field(default_factory=Plan)
    patience_s: float = 60.0
    training_s: float | None = None
    step_count: int | None = None
    unprotected: bool = False
    assumed: frozenset[str] = frozenset()

    @property
    def aim_s(self) -> float:
        """Seconds that are planned for at first."""
        return min(self.budget_s, self.first_s)

    @property
    def reference(self) -> Plan:
        """What of it the script may need to train here at all: a proof compares with that."""
        return enabling(self.applied)

    def with_applied(self, plan: Plan) -> Plan:
        """Return a plan with what the user set by hand."""
        return plan.merged(self.applied)

    def judged(self, plan: Plan) -> Plan:
        """Return what a proof of a plan is about: what it adds to the reference."""
        whole = self.with_applied(plan)
        return whole.only(whole.differing(self.reference))

    def unrepaid(self, plan: Plan) -> Plan:
        """Return the levers of a plan that first compile, where nobody said how long it trains.

        Only a confirmation shows after how many steps they are repaid. Of a training whose length
        is known, the races have weighed it.
        """
        if self.training_s is not None:
            return Plan()
        return plan.only(frozenset(lever.name for lever, _ in lookup(plan) if lever.start_ratio))


class Watcher(Protocol):
    """Whoever watches: the terminal, a log, or nobody."""

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a part of the work."""

    def profiled(self, profile: Profile) -> None:
        """Take the profile of the script as it is."""

    def found(self, diagnosis: Diagnosis) -> None:
        """Take what makes it slow."""

    def race_begins(self, baseline: Plan, candidate: Plan) -> None:
        """Begin a race; it ends before the next one begins."""

    def race_grows(self, pairs: Sequence[Pair], speedup: Interval) -> None:
        """Take some more pairs of the race, and what all of them show so far."""

    def race_ends(self, seen: Comparison) -> None:
        """End the race."""

    def leads(self, plan: Plan) -> None:
        """Take a new best plan."""

    def known(self, text: str) -> None:
        """Keep a fact on the screen."""

    def note(self, text: str) -> None:
        """Say something once."""
