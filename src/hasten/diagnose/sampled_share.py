"""Shares of a step from samples of the loop's stack, or from the steps we did not slow down."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from hasten.diagnose.shares import NORMAL_95
from hasten.records import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.diagnose.case import Case


def sampled_share(count: float, total_count: float) -> Interval | None:
    """Return `count` as a share of all samples, with its 95% interval (Wilson, 1927).

    Returns:
        None without samples.

    Example:
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


def quiet_share(case: Case, seconds: Sequence[float]) -> Interval | None:
    """Return the same as `case.share`, leaving out the steps whose operations were timed."""
    quiet = [at for at in case.quiet if at < len(seconds)]
    steps = tuple(case.steps[at] for at in quiet)
    return replace(case, steps=steps).share([seconds[at] for at in quiet])
