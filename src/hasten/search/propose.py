"""The next race: a pure function of the knobs and of the races so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.search.budget_limits import BudgetLimits, Refusal, refuse
from hasten.search.proposal import AcceptanceCriteria
from hasten.search.strategy import SearchStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison, Plan
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import Proposal

EVEN = AcceptanceCriteria()
FREE = BudgetLimits()
_STOPPED = BudgetLimits(ended=True)


def propose(
    knobs: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    stakes: AcceptanceCriteria = EVEN,
    terms: BudgetLimits = FREE,
) -> Proposal | None:
    """Return the next race to run, None when the search is over.

    The same arguments give the same answer, so a search resumes from its journal. The order of
    the knobs is part of the search: keep it from the first proposal to the last.

    Args:
        knobs: what may be turned, most promising first, see `bounds`.
        history: every comparison so far, failures included.
        stakes: when a lever is taken.
        terms: what may be spent. A race that does not meet them is passed over; a dearer one
            does not end the search for cheaper ones.
    """
    return _replay(knobs, history, stakes, terms)[1]


def incumbent(
    knobs: Sequence[Candidate], history: Sequence[Comparison], *, stakes: AcceptanceCriteria = EVEN
) -> Plan:
    """Return the best plan so far, at any point of the search."""
    return retell(knobs, history, stakes=stakes).plan


def refusals(
    knobs: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    stakes: AcceptanceCriteria = EVEN,
    terms: BudgetLimits = FREE,
) -> tuple[Refusal, ...]:
    """Return the races that were passed over, in the order of the search."""
    return tuple(_replay(knobs, history, stakes, terms)[0].refused)


def retell(
    knobs: Sequence[Candidate],
    history: Sequence[Comparison],
    *,
    stakes: AcceptanceCriteria,
    terms: BudgetLimits | None = None,
) -> SearchStrategy:
    """Return the story as far as the history goes, with no further race run."""
    story, asked = _replay(knobs, history, stakes, terms or _STOPPED)
    return _replay(knobs, history, stakes, _STOPPED)[0] if asked else story


def _replay(
    knobs: Sequence[Candidate],
    history: Sequence[Comparison],
    stakes: AcceptanceCriteria,
    terms: BudgetLimits,
) -> tuple[SearchStrategy, Proposal | None]:
    known = {(seen.baseline, seen.candidate): seen for seen in history}
    story = SearchStrategy(knobs=knobs, stakes=stakes)
    steps = story.tell()
    try:
        asked = next(steps)
        while True:
            answer = known.get((asked.baseline, asked.candidate))
            if answer is None:
                refusal = refuse(asked, terms)
                if refusal is None:
                    return story, asked
                story.refused.append(refusal)
            asked = steps.send(answer)
    except StopIteration:
        return story, None
