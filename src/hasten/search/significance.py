"""Whether what a search ends with is a gain at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.records import Plan
from hasten.search.proposal import Kind, shown_ratio, without_guesses

if TYPE_CHECKING:
    from collections.abc import Generator

    from hasten.records import Comparison
    from hasten.search.proposal import Proposal
    from hasten.search.strategy import SearchStrategy

_DOUBTED_RATIO = 1.06


def doubt(strategy: SearchStrategy) -> Generator[Proposal, Comparison | None, None]:
    """Race a gain that is small or guessed once more: of many races some win by chance.

    A plan that does not win again is left with the knobs that have won alone, then with none.
    """
    while strategy.plan.settings:
        grounds = {
            name: strategy.deciding.get(name, strategy.bundle) for name, _ in strategy.plan.settings
        }
        if shown_ratio(grounds.values()) > _DOUBTED_RATIO:
            return
        seen = yield from strategy.race(Kind.PRUNE, strategy.plan, Plan())
        least = 1.0 + strategy.criteria.least_ratio / 2
        if seen is None or seen.speedup is None or seen.speedup.mid_ratio <= 1.0 / least:
            return
        left = without_guesses(strategy.plan, grounds)
        strategy.doubted |= dict.fromkeys(strategy.plan.differing(left), seen)
        strategy.plan = left
