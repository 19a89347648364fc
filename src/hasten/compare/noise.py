"""What this machine can resolve: the baseline against itself, before anything is compared."""

from __future__ import annotations

from math import ceil, expm1, log1p, sqrt
from typing import TYPE_CHECKING

import numpy as np

from hasten.compare.interval import signed_rank_interval
from hasten.records import Noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Pair

# A race over n pairs of normal noise wins 80% of the time at a log gain of
# _POWER * sd / sqrt(n - _FIXED). By simulation of the centred grid at odds of 20, _POWER is 3.0
# at 6 pairs, 3.3 at 12, 3.4 at 24 and 3.5 from 50 to 400. The fixed part is the price of 20:
# a pair at most doubles the evidence.
_POWER, _FIXED = 3.5, 4
_FEWEST = 6
_FEW = 3  # the middle half of so few is one gap between two of them, and may be next to nothing


def measure_noise(pairs: Sequence[Pair], *, pair_s: float, budget_s: float) -> Noise:
    """Return the noise of an A/A run: two or more pairs in which both plans are the same.

    Args:
        pairs: of that run.
        pair_s: seconds that one pair takes, with its switches.
        budget_s: seconds of pairs that one candidate may take.
    """
    sd_ratio = spread(pairs)
    return Noise(
        sd_ratio=sd_ratio,
        pair_s=pair_s,
        resolution_ratio=resolution(sd_ratio, pair_count=int(budget_s / pair_s)),
        bias=signed_rank_interval([pair.log_ratio for pair in pairs]),
    )


def spread(pairs: Sequence[Pair]) -> float:
    """Return the standard deviation of two or more log ratios, a robust one above three."""
    values = np.asarray([pair.log_ratio for pair in pairs])
    if len(values) < 2:
        raise ValueError(f"noise needs at least 2 pairs, got {len(values)}")
    middle = float(np.median(np.abs(values - np.median(values))))
    # 1.4826 makes it the sd of a normal law; n/(n - 0.8) undoes its small-sample bias (Croux and
    # Rousseeuw 1992, https://doi.org/10.1007/978-3-662-26811-7_58).
    spread = 1.4826 * middle * len(values) / (len(values) - 0.8)
    return spread if len(values) > _FEW else max(spread, float(values.std(ddof=1)))


def resolution(sd_ratio: float, *, pair_count: int) -> float:
    """Return the smallest relative gain that this many pairs show in 4 of 5 races.

    The constant was calibrated on independent normal pairs; heavier tails need more.

    >>> f"{resolution(0.02, pair_count=12):.3f} {resolution(0.10, pair_count=200):.3f}"
    '0.025 0.025'
    """
    return expm1(_POWER * sd_ratio / sqrt(max(pair_count, _FEWEST) - _FIXED))


def plan_pairs(noise: Noise, *, wanted_ratio: float, budget_s: float) -> int:
    """Return how many pairs a race may take: what the wanted gain needs, if the time allows it.

    Never fewer than 6: no interval of fewer pairs could say anything.
    """
    needed = _FIXED + ceil((_POWER * noise.sd_ratio / log1p(wanted_ratio)) ** 2)
    return max(_FEWEST, int(min(needed, budget_s / noise.pair_s)))


def confirming_pairs(
    noise: Noise, *, wanted_ratio: float, budget_s: float, least_s: float = 30.0
) -> int:
    """Return the fixed number of pairs of a confirmation: at least `least_s` seconds of them."""
    planned = plan_pairs(noise, wanted_ratio=wanted_ratio, budget_s=budget_s)
    return max(planned, ceil(least_s / noise.pair_s))
