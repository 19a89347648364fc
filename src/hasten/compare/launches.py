"""How much two launches of one program differ, and what that means for a published figure.

Pairs within one launch share its memory layout, its page placement and the minute it ran in, so
their interval says nothing about the next launch: Kalibera and Jones, ISMM 2013,
https://doi.org/10.1145/2464157.2464160. Two or three launches say little about it by themselves, so
they are combined with what is known of launches of other scripts: a variance with a scaled inverse
chi-squared prior, for which the mean of n launches is t-distributed around the truth (Gelman et
al., "Bayesian data analysis", 3rd edition, section 3.3).
"""

from __future__ import annotations

from math import sqrt
from statistics import fmean, variance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PRIOR_SD, PRIOR_COUNT = 0.021, 4
"""What launches of other scripts show: the standard deviation of the log ratio between two, which
`make bench-launches` measures, and how many launches that knowledge is worth. Those scripts were
alike in it, but ran under no plan, and a script with loader workers may differ more: so it is
worth only a few."""
_LEAST_LAUNCHES = 3
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def launches_margin(log_ratios: Sequence[float], *, nulls: Sequence[float] = ()) -> float:
    """Return the half-width of the 95% interval of a mean over launches, as a log ratio.

    Args:
        log_ratios: the log ratio that each round of launches showed; at least one.
        nulls: those of launches of one plan against itself, whose true value is 0.

    Example:
        >>> [round(launches_margin([0.2] * count), 3) for count in (1, 2, 3, 4)]
        [0.058, 0.034, 0.024, 0.019]
        >>> round(launches_margin([0.15, 0.25]), 3)
        0.067
        >>> round(launches_margin([0.2, 0.2], nulls=[0.05]), 3)
        0.046
    """
    middle, count = fmean(log_ratios), len(log_ratios)
    freedom = PRIOR_COUNT + count - 1 + len(nulls)
    squares = PRIOR_COUNT * PRIOR_SD**2
    squares += sum((value - middle) ** 2 for value in log_ratios)
    squares += sum(value**2 for value in nulls)
    return _quantile(freedom) * sqrt(squares / freedom / count)


def states_margin(states: Iterable[Sequence[float]], *, round_count: int) -> float:
    """Return the same half-width due to page faults alone; 0 where too little is known.

    In some launches the allocator returns memory to the kernel, and each step faults it in again.

    Args:
        states: for each plan, the log ratios by which page faults lengthen its launches' steps.
        round_count: rounds of launches that were raced.

    Example:
        >>> round(states_margin([[0.1, 0.12, 0.4, 0.11], [0.0, 0.0]], round_count=2), 2)
        0.16
        >>> states_margin([[0.1, 0.4]], round_count=2)
        0.0
    """
    known = [logs for logs in states if len(logs) >= _LEAST_LAUNCHES]
    if not known:
        return 0.0
    count = max(map(len, known)) - 1
    freedom = PRIOR_COUNT + count
    squares = PRIOR_COUNT * PRIOR_SD**2 + count * sum(map(variance, known))
    return _quantile(freedom) * sqrt(squares / freedom / round_count)


def _quantile(freedom: int) -> float:
    return _T_975[min(freedom, len(_T_975)) - 1]
