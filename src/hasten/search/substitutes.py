"""What may do better in the place of levers that are in than beside them.

Levers of one phase act through one state: a cache that is read by workers may give nothing, and
without them more than they do. So such a lever is raced beside them and in their place, and when
one comes in, those that were in are raced against their absence once more.
"""

from __future__ import annotations

from math import log1p
from typing import TYPE_CHECKING

from hasten.search.proposal import Kind, is_better

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hasten.records import Comparison, Setting
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import Proposal
    from hasten.search.strategy import SearchStrategy

_CHANCE_RATIO = 0.2


def rivals(knob: Candidate, knobs: Sequence[Candidate]) -> list[Candidate]:
    """Return the other knobs that act on the one phase that a knob acts on."""
    if len(knob.phases) != 1:
        return []
    return [other for other in knobs if other.phases == knob.phases and other is not knob]


def instead(
    strategy: SearchStrategy, knob: Candidate, setting: Setting
) -> Generator[Proposal, Comparison | None, None]:
    """Race a knob that gave nothing beside the rivals that are in once in their place."""
    levers = {other.lever for other in rivals(knob, strategy.knobs) if strategy.is_in(other)}
    left_log = knob.limit_log(strategy.estimator.share_ratio(knob))
    if not levers or left_log < log1p(strategy.criteria.least_ratio):
        return
    kept = frozenset(name for name, _ in strategy.plan.settings) - levers
    candidate = strategy.plan.only(kept).with_lever(knob.lever, setting)
    if knob.redundant_with(setting, candidate):
        return
    seen = yield from strategy.race(
        Kind.TOGGLE,
        strategy.plan,
        candidate,
        lever=knob.lever,
        expected_log=_CHANCE_RATIO * left_log,
    )
    if seen is None or not is_better(seen, strategy.criteria):
        return
    strategy.take(seen)
    strategy.deciding[knob.lever] = seen
    for lever in levers:
        strategy.deciding.pop(lever, None)
        strategy.replaced[lever] = seen
