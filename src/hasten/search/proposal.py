"""What the search asks for, and how it reads the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import comb, inf, log, prod
from typing import TYPE_CHECKING

from hasten.records import LEAST_RATIO, Comparison, Plan, Scope, Verdict
from hasten.search.candidate import SCOPES, Candidate
from hasten.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CLEAR_RATIO = 1.1
_RARE_RATIO = 0.05
LAUNCHES_LOG = 0.058
"""By how much two launches of one script may differ, as a log ratio (`compare.launches_margin`)."""


class Kind(StrEnum):
    """Why a plan is tried.

    BUNDLE: several candidates at their best guess. BISECT: which of them breaks the bundle.
    TOGGLE: one more. REFINE: another setting of one that is in. PAIR: two at once, which may
    compete for the same cores. PRUNE: whether some are still worth it.
    """

    BUNDLE = "bundle"
    BISECT = "bisect"
    TOGGLE = "toggle"
    REFINE = "refine"
    PAIR = "pair"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Two plans to race.

    Attributes:
        lever: the candidate in question; None where it is about several.
        scope: the widest scope among the levers that differ: what the race needs.
        expected_ratio: the speed-up that such a race gives on average, 1 where it is not run
            for a speed-up.
        named_ratio: the largest share of a step, as it is beside the incumbent, that a finding
            names for a lever that would come in; 0 where none does.
    """

    kind: Kind
    baseline: Plan
    candidate: Plan
    lever: str | None
    scope: Scope
    expected_ratio: float = 1.0
    named_ratio: float = 0.0

    @property
    def promises_gain(self) -> bool:
        """Whether a speed-up is expected of it; else it finds a culprit or removes levers."""
        return self.expected_ratio > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCriteria:
    """When a lever is worth taking.

    Attributes:
        least_ratio: the gain that is worth a lever (0.02 is 2%).
        training_s: how long the training will run; a plan whose late start costs more than it
            saves is not taken. Infinite where nobody said.
        pass_count: passes of the training over its data, over which a longer first pass counts.
    """

    least_ratio: float = LEAST_RATIO
    training_s: float = inf
    pass_count: float = inf

    def saved_s(self, ratio: float) -> float:
        """Return the seconds that a speed-up saves of the training.

        >>> AcceptanceCriteria(training_s=3600.0).saved_s(2.0)
        1800.0
        """
        return self.training_s * (1.0 - 1.0 / ratio) if ratio != 1.0 else 0.0

    def too_late(self, ratio: float, later_s: float) -> str:
        """Say why a speed-up whose start comes `later_s` later is not taken.

        >>> AcceptanceCriteria(training_s=60.0).too_late(1.5, 30.0)
        'starts 30 s later and saves 20 s in 1m 00s of training'
        """
        saved, whole = duration(self.saved_s(ratio)), duration(self.training_s)
        return f"starts {duration(later_s)} later and saves {saved} in {whole} of training"


def propose_race(
    kind: Kind,
    baseline: Plan,
    candidate: Plan,
    candidates: Sequence[Candidate],
    *,
    lever: str | None = None,
    expected_ratio: float = 1.0,
    named_ratio: float = 0.0,
) -> Proposal:
    """Return the proposal of a race, with the scope that it needs."""
    differing = baseline.differing(candidate)
    switches = [SCOPES.index(one.scope) for one in candidates if one.lever in differing]
    return Proposal(
        kind=kind,
        baseline=baseline,
        candidate=candidate,
        lever=lever,
        scope=SCOPES[max(switches, default=0)],
        expected_ratio=expected_ratio,
        named_ratio=named_ratio,
    )


def is_better(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether the candidate is taken: it won, or its best estimate is worth it.

    A plan whose steps are no faster is taken for a shorter first pass over the data.
    """
    if starts_too_late(comparison, criteria) or is_unpaid(comparison, criteria):
        return False
    return is_faster(comparison, criteria) or is_shorter(comparison, criteria)


def is_taken_whole(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether a bundle is taken: it won, or showed a large gain that noise left unproven."""
    if starts_too_late(comparison, criteria) or is_unpaid(comparison, criteria):
        return False
    return has_won(comparison) or _is_clear(comparison)


def is_hidden(comparison: Comparison) -> bool:
    """Return whether a race showed a gain that may be large or noise.

    In much noise a race is dropped where it shows less than it could have proved, which may be a
    lot.
    """
    speedup = comparison.speedup
    shown = speedup is not None and speedup.mid_ratio >= 1.0 + LEAST_RATIO
    return shown and not has_won(comparison) and not comparison.excludes_gain


def _is_clear(comparison: Comparison) -> bool:
    """Return whether a race showed a large gain that noise left unproven.

    The confirmation decides whether it is one.
    """
    speedup = comparison.speedup
    clear = speedup is not None and speedup.mid_ratio > _CLEAR_RATIO
    return clear and not comparison.excludes_gain


def is_likely(comparison: Comparison | None) -> bool:
    """Return whether a race won, or showed a large gain in more pairs than chance would give.

    That is a sign test at 5%: 5 of 5 pairs, 7 of 8, 12 of 16.
    """
    if comparison is None or comparison.speedup is None:
        return False
    pairs, clear = comparison.pairs, comparison.speedup.mid_ratio > _CLEAR_RATIO
    faster_count = sum(pair.candidate_s < pair.baseline_s for pair in pairs)
    ways = sum(comb(len(pairs), count) for count in range(faster_count, len(pairs) + 1))
    return has_won(comparison) or (clear and ways <= _RARE_RATIO * 2 ** len(pairs))


def is_faster(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether the candidate won, or is the best guess and worth a lever."""
    if has_won(comparison) or _is_clear(comparison):
        return True
    speedup = comparison.speedup
    return (
        comparison.verdict is Verdict.UNDECIDED
        and speedup is not None
        and speedup.mid_ratio >= 1.0 + criteria.least_ratio
    )


def is_slower(comparison: Comparison, *, by_log: float = 0.0) -> bool:
    """Return whether the candidate was shown to be slower, by more than a log ratio, or broke."""
    speedup = comparison.speedup
    return speedup is None or log(speedup.high_ratio) < -by_log


def has_won(comparison: Comparison | None) -> bool:
    """Return whether a race was run, and proved that the candidate is faster."""
    return comparison is not None and comparison.verdict is Verdict.WIN


def shown_ratio(grounds: Iterable[Comparison | None]) -> float:
    """Return the product of the speed-ups that races have proved, each race counted once."""
    won = {id(seen): seen.speedup for seen in grounds if seen is not None and has_won(seen)}
    return prod(speedup.mid_ratio for speedup in won.values() if speedup is not None)


def last_about(plan: Plan, history: Iterable[Comparison]) -> Comparison | None:
    """Return the last race whose candidate is a plan, or the largest part of it.

    Levers that make launches alike may have joined the plan without a race of the whole.
    """
    settings = set(plan.settings)
    parts = [seen for seen in history if set(seen.candidate.settings) <= settings]
    return max(reversed(parts), key=lambda seen: len(seen.candidate.settings), default=None)


def gained_ratio(plan: Plan, history: Sequence[Comparison]) -> float:
    """Return the speed-up of a plan over the script, by the races that led to it.

    That of its last race is over the plan before it.
    """
    ratio = 1.0
    while plan.settings and (seen := last_about(plan, history)):
        ratio *= seen.speedup.mid_ratio if seen.speedup else 1.0
        plan, history = seen.baseline, history[: history.index(seen)]
    return ratio


def without_guesses(plan: Plan, grounds: Mapping[str, Comparison | None]) -> Plan:
    """Return the levers of a plan that have won; none where all have and it still does nothing."""
    won = plan.only(frozenset(lever for lever, seen in grounds.items() if has_won(seen)))
    return won if won != plan else Plan()


def starts_too_late(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether the candidate's start costs more than its steps save of the training."""
    speedup, later_s = comparison.speedup, comparison.later_s
    if speedup is None or later_s is None or later_s <= 0.0:
        return False
    return criteria.saved_s(speedup.mid_ratio) <= later_s


def is_unpaid(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether a longer first pass over the data costs what the steps save."""
    return comparison.longer_ratio > 0.0 and not _is_worth_it(comparison, criteria)


def is_shorter(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    """Return whether a shorter first pass over the data saves more than the steps may lose."""
    return comparison.longer_ratio < 0.0 and _is_worth_it(comparison, criteria)


def _is_worth_it(comparison: Comparison, criteria: AcceptanceCriteria) -> bool:
    return comparison.whole_ratio(criteria.pass_count) >= 1.0 + criteria.least_ratio
