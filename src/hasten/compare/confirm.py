"""The number that is published: fresh pairs, a fixed count of them, no early stop.

The best of many noisy races overstates itself (winner's curse), so the races only choose and a
confirmation reports.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import hypot, log
from statistics import fmean, median_high
from typing import TYPE_CHECKING

from hasten.compare.interval import around, signed_rank_interval
from hasten.compare.launches import launches_margin, states_margin
from hasten.compare.race import Measure, means_ratio, run_chunk
from hasten.records import LEAST_RATIO, Interval, Pair, Verdict

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_CHUNK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The speed-up of one plan over another, as published.

    Attributes:
        speedup: Hodges-Lehmann estimate with the 95% interval of the signed-rank test, over rounds
            of launches the mean of theirs; the ratio of the means where it shows a smaller gain.
        means_ratio: ratio of plain mean times; a median hides periodic stalls, this does not.
        usual_means_ratio: the upper median of such ratios over the rounds of launches.
    """

    speedup: Interval
    means_ratio: float
    usual_means_ratio: float
    pairs: tuple[Pair, ...]
    wall_s: float

    @property
    def stalls(self) -> bool:
        """Whether steps that stall cost more than the others gain, in most rounds of launches."""
        return self.speedup.is_gain and self.usual_means_ratio < 1.0

    @property
    def verdict(self) -> Verdict:
        """WIN or DROP where the whole interval lies on one side of 1; no WIN below 2%."""
        if self.speedup.is_gain and self.speedup.mid_ratio >= 1.0 + LEAST_RATIO:
            return Verdict.WIN
        return Verdict.DROP if self.speedup.high_ratio < 1.0 else Verdict.UNDECIDED


def confirm(
    measure: Measure,
    *,
    pair_count: int,
    coin: random.Random,
    clock: Callable[[], float] = time.monotonic,
    on_pairs: Callable[[Sequence[Pair]], None] | None = None,
) -> Confirmation:
    """Run `pair_count` pairs (see `confirming_pairs`), or as many as the script has.

    The other arguments are those of `race`.
    """
    started_s = clock()
    pairs: list[Pair] = []
    while len(pairs) < pair_count:
        size = min(_CHUNK, pair_count - len(pairs))
        answer = run_chunk(measure, size, coin=coin, on_pairs=on_pairs)
        if not answer:
            break
        pairs += answer
    return settle(pairs, wall_s=clock() - started_s)


def span(
    rounds: Sequence[Confirmation],
    *,
    nulls: Sequence[float] = (),
    states: Sequence[Sequence[float]] = (),
) -> Confirmation:
    """Join rounds of fresh launches into one figure.

    It is the mean over the rounds, however many pairs each of them has: a launch is one of many
    that a user may get. Its interval combines that of all pairs with a margin for other launches
    (`launches_margin`, `states_margin`). Steps that take long now and then (plots, logs, workers
    that start) may gain less than most, and a training is all of its steps: where the means gain
    less than the whole interval says, their gain is the figure. A single stall in one round of
    launches says nothing, so the upper median of the rounds counts.

    Args:
        rounds: one or several.
        nulls: log ratios of two launches of one plan.
        states: for each plan, the log ratios by which page faults lengthen its launches' steps.
    """
    joined = settle([pair for each in rounds for pair in each.pairs])
    shown = [log(each.speedup.mid_ratio) for each in rounds]
    margin = max(
        launches_margin(shown, nulls=nulls),
        states_margin(states, round_count=len(rounds)),
    )
    usual_ratio = median_high(each.means_ratio for each in rounds)
    pairs, middle = joined.speedup, fmean(shown)
    low = middle - hypot(log(pairs.mid_ratio / pairs.low_ratio), margin)
    high = middle + hypot(log(pairs.high_ratio / pairs.mid_ratio), margin)
    if 0.0 < log(usual_ratio) < low:
        middle = log(usual_ratio)
        low = min(log(joined.means_ratio), middle - margin)
    return replace(
        joined,
        speedup=around(middle, low=low, high=high),
        usual_means_ratio=usual_ratio,
        wall_s=sum(each.wall_s for each in rounds),
    )


def settle(pairs: Sequence[Pair], *, wall_s: float = 0.0) -> Confirmation:
    """Return what a fixed set of pairs shows, at least one; those of launches may be joined."""
    ratio = means_ratio(pairs)
    if ratio is None:
        raise ValueError("a confirmation needs at least one pair")
    return Confirmation(
        speedup=signed_rank_interval([pair.log_ratio for pair in pairs]),
        means_ratio=ratio,
        usual_means_ratio=ratio,
        pairs=tuple(pairs),
        wall_s=wall_s,
    )
