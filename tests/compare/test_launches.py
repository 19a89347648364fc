"""The interval over launches, beside simulations in which the truth is known."""

from math import sqrt
from random import Random
from statistics import fmean

import pytest

from hasten.compare import launches_margin
from hasten.compare.launches import PRIOR_COUNT, PRIOR_SD


def a_spread(random: Random) -> float:
    """Draw how launches of one script differ from the law that the prior states."""
    chi_squared = sum(random.gauss(0, 1) ** 2 for _ in range(PRIOR_COUNT))
    return PRIOR_SD * sqrt(PRIOR_COUNT / chi_squared)


@pytest.mark.parametrize("round_count", [1, 2, 4])
@pytest.mark.parametrize("null_count", [0, 1])
def test_nineteen_of_twenty_intervals_hold_the_truth(round_count, null_count) -> None:
    random, held_count, count = Random(5), 0, 4000
    for _ in range(count):
        spread = a_spread(random)
        seen = [random.gauss(0.1, spread) for _ in range(round_count)]
        nulls = [random.gauss(0, spread) for _ in range(null_count)]
        held_count += abs(fmean(seen) - 0.1) <= launches_margin(seen, nulls=nulls)
    assert held_count / count == pytest.approx(0.95, abs=0.012)


def test_more_launches_and_calmer_ones_tell_more() -> None:
    margins = [launches_margin([0.2] * count) for count in range(1, 12)]
    assert margins == sorted(margins, reverse=True)
    assert launches_margin([0.2, 0.21]) < launches_margin([0.2, 0.3])
    assert launches_margin([0.2, 0.2], nulls=[0.01]) < launches_margin([0.2, 0.2], nulls=[-0.1])
