"""What the search asks for, and how it reads the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from upshift.records import Comparison, Plan, Switch, Verdict
from upshift.search.knob import SWITCHES, Knob

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(StrEnum):
    """Why a plan is tried.

    BUNDLE: every knob at its best guess. BISECT: which knob breaks the bundle. TOGGLE: one knob
    more. REFINE: another setting of a knob that is in. PRUNE: is one knob still worth it.
    """

    BUNDLE = "bundle"
    BISECT = "bisect"
    TOGGLE = "toggle"
    REFINE = "refine"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Two plans to race.

    Attributes:
        lever: the knob in question; None for a bundle and its parts.
        switch: the dearest switch among the levers that differ: what the race needs.
    """

    kind: Kind
    baseline: Plan
    candidate: Plan
    lever: str | None
    switch: Switch


def propose_race(
    kind: Kind, baseline: Plan, candidate: Plan, knobs: Sequence[Knob], *, lever: str | None = None
) -> Proposal:
    """Return the proposal of a race, with the switch that it needs."""
    differing = baseline.differing(candidate)
    switches = [SWITCHES.index(knob.switch) for knob in knobs if knob.lever in differing]
    return Proposal(
        kind=kind,
        baseline=baseline,
        candidate=candidate,
        lever=lever,
        switch=SWITCHES[max(switches, default=0)],
    )


def is_better(comparison: Comparison, *, least_ratio: float) -> bool:
    """Return whether the candidate is taken: it won, or its best estimate is worth it."""
    if comparison.verdict is Verdict.WIN:
        return True
    speedup = comparison.speedup
    return (
        comparison.verdict is Verdict.UNDECIDED
        and speedup is not None
        and speedup.mid_ratio >= 1.0 + least_ratio
    )
