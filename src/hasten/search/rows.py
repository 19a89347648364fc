"""What the search found about each lever, in one honest sentence."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from hasten.records import Comparison, LeverReport, Outcome, Reason, Setting, Verdict
from hasten.search.budget_limits import RefusalReason
from hasten.search.proposal import (
    has_won,
    is_faster,
    is_hidden,
    is_shorter,
    is_unpaid,
    starts_too_late,
)
from hasten.search.propose import EVEN, replay
from hasten.units import counted, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Plan
    from hasten.search.budget_limits import BudgetLimits, Refusal
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import AcceptanceCriteria
    from hasten.search.strategy import SearchStrategy


def rows(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria = EVEN,
    limits: BudgetLimits | None = None,
) -> tuple[LeverReport, ...]:
    """Return one row per candidate: kept, dropped, failed, or skipped where nobody tried it.

    The limits that the search ended under say why; there are none where it was stopped.
    """
    strategy = replay(candidates, history, criteria=criteria, limits=limits)
    return tuple(_row(candidate, strategy) for candidate in candidates)


def _row(candidate: Candidate, strategy: SearchStrategy) -> LeverReport:
    setting = dict(strategy.plan.settings).get(candidate.lever)
    seen = strategy.deciding.get(candidate.lever)
    if seen is None and candidate.lever in strategy.doubted:
        seen = strategy.moved.get(candidate.lever, strategy.bundle)
    if candidate.lever in strategy.broken:
        failed = strategy.broken[candidate.lever]
        return _report(
            candidate,
            dict(failed.candidate.settings)[candidate.lever],
            Outcome.FAILED,
            _broke(failed),
        )
    if setting is not None and seen is None:
        return _report(candidate, setting, Outcome.KEPT, _kept_unseen(candidate, strategy))
    if seen is None and (left := _left(candidate, strategy)):
        return left
    if seen is None:
        why, untried = _untried(candidate, strategy)
        return _report(candidate, None, Outcome.SKIPPED, why, reason=untried)
    if setting is not None:
        why = f"{_why_kept(candidate, seen, strategy)}{_expected(candidate, seen)}"
        # An interval that holds 1 beside "kept" would be no reason.
        return _report(candidate, setting, Outcome.KEPT, why, seen if has_won(seen) else None)
    tried = dict(seen.candidate.settings)[candidate.lever]
    if candidate.lever in strategy.doubted:
        again = inverse_figure(strategy.doubted[candidate.lever])
        why = f"{_figure_of(seen)}, but {again} in a second race: no gain worth a lever here"
        return _report(candidate, tried, Outcome.DROPPED, why, seen)
    lost, reason = _dropped(seen, strategy.criteria)
    why = f"{_figure_of(seen)}: {lost}{_expected(candidate, seen)}"
    return _report(candidate, tried, Outcome.DROPPED, why, seen, reason=reason)


def _left(candidate: Candidate, strategy: SearchStrategy) -> LeverReport | None:
    """Return the row of a lever that another one replaced; None where none did."""
    if candidate.lever in strategy.redundant:
        seen, why = strategy.redundant[candidate.lever]
        return _report(candidate, None, Outcome.DROPPED, f"{why}: {_came(seen)} came in")
    if candidate.lever not in strategy.replaced:
        return None
    seen = strategy.replaced[candidate.lever]
    before = dict(seen.baseline.settings)[candidate.lever]
    why = f"{_came(seen)} in its place: {figure(seen)}"
    return _report(candidate, before, Outcome.DROPPED, why)


def _came(seen: Comparison) -> Plan:
    return seen.candidate.only(seen.baseline.differing(seen.candidate))


def _kept_unseen(candidate: Candidate, strategy: SearchStrategy) -> str:
    if candidate.lever in strategy.moved:
        seen = strategy.moved[candidate.lever]
        before = dict(seen.baseline.settings)[candidate.lever]
        return f"{figure(seen)} over {before}; not measured alone"
    together = figure(strategy.bundle) if strategy.bundle else "not measured"
    why = _why_passed_over(candidate, strategy)
    return f"part of the winning set ({together}); not measured separately{why and ': '}{why}"


def _untried(candidate: Candidate, strategy: SearchStrategy) -> tuple[str, Reason | None]:
    refused = _refused(candidate, strategy)
    why = _why_passed_over(candidate, strategy)
    if candidate.slower is not None and not why:
        slower, ratio = candidate.slower
        under = "" if slower is True else f" under {slower}"
        return f"not tried: {times(ratio)}{under} in the closer look before the search", None
    why = why or "the search ended before its turn"
    limit = times(exp(candidate.limit_log()))
    could = "" if candidate.lever in strategy.bounded else f"; it could give at most {limit}"
    together = strategy.together
    if together is None or candidate.lever not in dict(together.candidate.settings):
        is_late = refused is not None and refused.reason is RefusalReason.TIME
        return f"not tried: {why}{could}", Reason.NO_TIME if is_late else Reason.UNTRIED
    together_with = f"({figure(together)} together with other levers)"
    return f"not tried alone: {why}{could} {together_with}", Reason.UNTRIED_ALONE


def _why_passed_over(candidate: Candidate, strategy: SearchStrategy) -> str:
    """Return why the last race about a candidate was not run, empty where it was."""
    if candidate.lever in strategy.bounded:
        return strategy.bounded[candidate.lever]
    refused = _refused(candidate, strategy)
    return refused.message if refused else ""


def _refused(candidate: Candidate, strategy: SearchStrategy) -> Refusal | None:
    """Return the last race about a candidate that was not run."""
    about = [one for one in strategy.refused if one.asked.lever == candidate.lever]
    return about[-1] if about and candidate.lever not in strategy.bounded else None


def _report(
    candidate: Candidate,
    setting: Setting | None,
    outcome: Outcome,
    why: str,
    seen: Comparison | None = None,
    *,
    reason: Reason | None = None,
) -> LeverReport:
    """Return a row; the figure of a race of several levers is that of none of them."""
    is_alone = seen is not None and not _other_count(seen)
    return LeverReport(
        lever=candidate.lever,
        setting=setting,
        outcome=outcome,
        why=why,
        effect=candidate.effect,
        speedup=seen.speedup if seen and is_alone else None,
        reason=reason,
    )


def _expected(candidate: Candidate, seen: Comparison) -> str:
    """Say what was predicted, where both figures are about the lever alone."""
    ratio = candidate.forecasts.get(dict(seen.candidate.settings)[candidate.lever])
    if ratio is None or seen.baseline.settings:
        return ""
    return f"; predicted {times(ratio)}"


def figure(seen: Comparison) -> str:
    """Return a comparison as `1.02x [0.99, 1.05] after 40 pairs`."""
    speedup = seen.speedup
    if speedup is None:
        return "no pairs"
    ends = f" [{speedup.low_ratio:.2f}, {speedup.high_ratio:.2f}]"
    ends = "" if speedup.says_nothing else ends
    return f"{times(speedup.mid_ratio)}{ends} after {counted(len(seen.pairs), 'pair')}"


def inverse_figure(seen: Comparison) -> str:
    """Return the speed-up of the baseline over the candidate, as `0.99x after 40 pairs`."""
    if seen.speedup is None:
        return "no pairs"
    return f"{times(1.0 / seen.speedup.mid_ratio)} after {counted(len(seen.pairs), 'pair')}"


def _figure_of(seen: Comparison) -> str:
    """Return the figure of a deciding comparison, with how many other levers it included."""
    if count := _other_count(seen):
        return f"{figure(seen)} together with {counted(count, 'other lever')}"
    return figure(seen)


def _other_count(seen: Comparison) -> int:
    return len(seen.baseline.differing(seen.candidate)) - 1


def _why_kept(candidate: Candidate, seen: Comparison, strategy: SearchStrategy) -> str:
    told = _figure_of(seen)
    if has_won(seen):
        return told
    if is_shorter(seen, strategy.criteria):
        return f"{told}: its first pass is shorter"
    if candidate.lever in strategy.steadied:
        return f"{told}: not shown to be slower, and kept because launches may differ less with it"
    if len(strategy.plan.settings) == 1:
        return f"{told}: the best guess, not proven in the search"
    return f"part of the winning set, not proven alone: {told}"


def _dropped(seen: Comparison, criteria: AcceptanceCriteria) -> tuple[str, Reason | None]:
    speedup = seen.speedup
    if is_faster(seen, criteria) and starts_too_late(seen, criteria) and speedup and seen.later_s:
        return criteria.too_late(speedup.mid_ratio, seen.later_s), Reason.STARTS_LATE
    if is_faster(seen, criteria) and is_unpaid(seen, criteria) and speedup:
        whole = times(seen.whole_ratio(criteria.pass_count))
        return f"its first pass takes longer: {whole} for the whole training", Reason.FIRST_PASS
    if speedup is not None and speedup.high_ratio < 1.0:
        return "slower here", None
    if is_hidden(seen):
        return "noise hides whether that is a gain", Reason.HIDDEN
    if seen.verdict is Verdict.DROP and seen.excludes_gain:
        return "no gain worth a lever here", None
    return "no measurable gain", None


def _broke(failed: Comparison) -> str:
    first = failed.failure.strip().splitlines()[0]
    count = len(failed.candidate.settings) - 1
    return f"{first} (with {counted(count, 'other lever')})" if count > 0 else first
