"""What all shares of a step have in common: an interval, and when one is worth reporting."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, TypeGuard

from hasten.records import LEAST_RATIO, Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

NORMAL_95 = 1.96


def is_worth_telling(share: Interval | None) -> TypeGuard[Interval]:
    """Return whether a share is known, large enough, and not just chance."""
    return share is not None and share.mid_ratio >= LEAST_RATIO and share.low_ratio > 0


def ratio_of(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """Return what share one sum is of another, with its normal 95% interval.

    For a single pair that has no width. The interval is that of the ratio estimator (Cochran,
    Sampling Techniques, 1977, section 6.4).
    """
    ratio = min(1.0, sum(parts) / sum(wholes))
    if len(wholes) < 2:
        return Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio)
    rests = [part - ratio * whole for part, whole in zip(parts, wholes, strict=True)]
    error = NORMAL_95 * stdev(rests) / sqrt(len(wholes)) / fmean(wholes)
    low, high = max(0.0, ratio - error), min(1.0, ratio + error)
    return Interval(low_ratio=min(low, ratio), mid_ratio=ratio, high_ratio=max(high, ratio))


def sampled_share(count: float, total_count: float) -> Interval | None:
    """Return `count` as a share of all samples, with its 95% interval (Wilson, 1927).

    >>> share = sampled_share(50, 100)
    >>> round(share.low_ratio, 3), share.mid_ratio, round(share.high_ratio, 3)
    (0.404, 0.5, 0.596)
    """
    if total_count <= 0:
        return None
    ratio, doubt = min(1.0, count / total_count), NORMAL_95**2 / total_count
    centre = (ratio + doubt / 2) / (1 + doubt)
    error = sqrt(doubt * (ratio * (1 - ratio) + doubt / 4)) / (1 + doubt)
    return Interval(
        low_ratio=max(0.0, min(ratio, centre - error)),
        mid_ratio=ratio,
        high_ratio=min(1.0, max(ratio, centre + error)),
    )
