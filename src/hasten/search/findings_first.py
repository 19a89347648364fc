"""What findings name is raced first, the largest share before smaller ones.

A share that was measured in the running script says more than any record of other scripts. So no
budget ends on a small gain while a larger one is named and untried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.search.candidate import SCOPES
from hasten.search.proposal import is_taken_whole

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hasten.records import Comparison
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import Proposal
    from hasten.search.strategy import SearchStrategy


def lead(strategy: SearchStrategy) -> Generator[Proposal, Comparison | None, None]:
    """Race what findings name: together where the phases differ, then what is not in yet."""
    together = _apart(_named(strategy.usable()))
    if len(together) > 1:
        seen = yield from strategy.race_bundle(together)
        if seen is not None and is_taken_whole(seen, strategy.criteria):
            strategy.take(seen)
            strategy.deciding |= dict.fromkeys((knob.lever for knob in together), seen)
    for knob in _named(strategy.usable()):
        setting = knob.settings[0]
        is_due = strategy.estimator.named_ratio(knob) >= strategy.criteria.least_ratio
        if is_due and not strategy.is_in(knob) and not knob.redundant_with(setting, strategy.plan):
            yield from strategy.attempt(
                knob, setting, strategy.estimator.expected_log(knob, setting)
            )


def _named(knobs: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the knobs that findings name, largest share first.

    Of those of one share the one that promises most comes first, then the one that is switched
    most cheaply.
    """

    def order(knob: Candidate) -> tuple[float, float, int]:
        promise = knob.expected_log(knob.settings[0])
        return -knob.named_ratio, -promise, SCOPES.index(knob.scope)

    return sorted((knob for knob in knobs if knob.named_ratio), key=order)


def _apart(knobs: Sequence[Candidate]) -> list[Candidate]:
    """Return the knobs, in order, whose phases none before has: two cures of one ill conflict."""
    found: list[Candidate] = []
    for knob in knobs:
        if not any(knob.phases <= other.phases for other in found):
            found.append(knob)
    return found
