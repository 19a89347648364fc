"""The next race: a pure function of the candidates and of the races so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.search.budget_limits import BudgetLimits, Refusal, refuse
from hasten.search.proposal import AcceptanceCriteria, is_likely, is_shorter
from hasten.search.strategy import SearchStrategy, grounds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison, Plan
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import Proposal

EVEN = AcceptanceCriteria()
FREE = BudgetLimits()
_STOPPED = BudgetLimits(ended=True)


def propose(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria = EVEN,
    limits: BudgetLimits = FREE,
) -> Proposal | None:
    """Return the next race to run, None when the search is over.

    The same arguments give the same answer, so a search resumes from its journal. The order of
    the candidates is part of the search: keep it from the first proposal to the last.

    Args:
        candidates: what may be tried, most promising first, see `bounds`.
        history: every comparison so far, failures included.
        criteria: when a lever is taken.
        limits: what may be spent. A race beyond them is passed over: one that is too expensive
            does not end the search for cheaper ones.
    """
    return _replay(candidates, history, criteria, limits)[1]


def incumbent(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria = EVEN,
) -> Plan:
    """Return the best plan so far, at any point of the search."""
    return replay(candidates, history, criteria=criteria).plan


def guesses(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria = EVEN,
) -> frozenset[str]:
    """Return the levers of the best plan of which no race has shown a gain.

    That may be the race of a bundle. A lever that is in because it may make launches alike stays
    with one that gains.
    """
    strategy = replay(candidates, history, criteria=criteria)
    together, grounds = strategy.bundle, grounds_of(strategy)
    likely = {
        lever for lever, seen in grounds.items()
        if is_likely(seen) or (seen is not None and is_shorter(seen, criteria))
    }  # fmt: skip
    if together is not None and is_likely(together):
        likely |= together.baseline.differing(together.candidate)
    return frozenset(grounds) - likely - (strategy.steadied if likely else set())


def refusals(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria = EVEN,
    limits: BudgetLimits = FREE,
) -> tuple[Refusal, ...]:
    """Return the races that were passed over, in the order of the search."""
    return tuple(_replay(candidates, history, criteria, limits)[0].refused)


def replay(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    criteria: AcceptanceCriteria,
    limits: BudgetLimits | None = None,
) -> SearchStrategy:
    """Return the search as far as the history goes, with no further race run."""
    strategy, asked = _replay(candidates, history, criteria, limits or _STOPPED)
    return _replay(candidates, history, criteria, _STOPPED)[0] if asked else strategy


def _replay(
    candidates: Sequence[Candidate],
    history: Sequence[Comparison],
    criteria: AcceptanceCriteria,
    limits: BudgetLimits,
) -> tuple[SearchStrategy, Proposal | None]:
    known = {(seen.baseline, seen.candidate): seen for seen in history}
    strategy = SearchStrategy(candidates=candidates, criteria=criteria)
    steps = strategy.races()
    try:
        asked = next(steps)
        while True:
            answer = known.get((asked.baseline, asked.candidate))
            if answer is None:
                refusal = refuse(asked, limits)
                if refusal is None:
                    return strategy, asked
                strategy.refused.append(refusal)
            asked = steps.send(answer)
    except StopIteration:
        return strategy, None
