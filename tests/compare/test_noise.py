"""What can be told apart here, and how many pairs a gain needs."""

from math import exp, expm1, log1p, sqrt

import numpy as np
import pytest

from hasten.compare import confirming_pairs, measure_noise, plan_pairs, resolution, spread
from hasten.records import Interval, Noise, Pair


def paired(log_ratios):
    return [Pair(baseline_s=exp(x), candidate_s=1.0, baseline_first=True) for x in log_ratios]


def noise(sd_ratio, pair_s=0.5):
    flat = Interval(low_ratio=0.99, mid_ratio=1.0, high_ratio=1.01)
    return Noise(sd_ratio=sd_ratio, pair_s=pair_s, resolution_ratio=0.01, bias=flat)


def test_the_spread_is_that_of_the_middle_half() -> None:
    assert spread(paired([0.0, 0.1, 0.2, 0.3, 9.0])) == pytest.approx(1.4826 * 0.1 * 5 / 4.2)
    assert spread(paired([0.1, 0.1])) == pytest.approx(0.0)
    assert spread(paired([0.0, 0.2])) == pytest.approx(1.4826 * 0.1 * 2 / 1.2)


@pytest.mark.parametrize("count", [12, 60])
def test_the_spread_of_normal_noise_is_its_standard_deviation(count) -> None:
    rng = np.random.default_rng(count)
    found = [spread(paired(0.05 * rng.standard_normal(count))) for _ in range(400)]
    assert np.mean(found) == pytest.approx(0.05, rel=0.05)


def test_an_a_a_run_tells_noise_resolution_and_bias() -> None:
    seen = measure_noise(paired([-0.02, 0.0, 0.01, 0.02] * 6), pair_s=0.5, budget_s=10.0)
    assert seen.sd_ratio == spread(paired([-0.02, 0.0, 0.01, 0.02] * 6))
    assert seen.pair_s == 0.5
    assert seen.resolution_ratio == resolution(seen.sd_ratio, pair_count=20)
    assert seen.bias.low_ratio < 1.0 < seen.bias.high_ratio


def test_more_pairs_resolve_finer_and_fewer_than_six_are_six() -> None:
    assert resolution(0.02, pair_count=104) == pytest.approx(expm1(3.5 * 0.02 / 10))
    assert resolution(0.02, pair_count=1) == resolution(0.02, pair_count=6)
    assert resolution(0.02, pair_count=6) == pytest.approx(expm1(3.5 * 0.02 / sqrt(2)))
    assert resolution(0.02, pair_count=7) < resolution(0.02, pair_count=6)


def test_a_race_has_the_pairs_that_its_gain_needs_where_there_is_time() -> None:
    needed = 4 + (3.5 * 0.05 / log1p(0.02)) ** 2
    assert plan_pairs(noise(0.05), wanted_ratio=0.02, budget_s=1e6) == int(np.ceil(needed))
    assert plan_pairs(noise(0.05), wanted_ratio=0.02, budget_s=10.0) == 20
    assert plan_pairs(noise(0.05), wanted_ratio=0.02, budget_s=1.0) == 6
    assert plan_pairs(noise(1e-6), wanted_ratio=0.02, budget_s=1e6) == 6


def test_a_confirmation_lasts_for_its_least_time() -> None:
    assert confirming_pairs(noise(1e-6), wanted_ratio=0.02, budget_s=1e6) == 60
    assert confirming_pairs(noise(1e-6), wanted_ratio=0.02, budget_s=1e6, least_s=10.1) == 21
    planned = plan_pairs(noise(0.05), wanted_ratio=0.02, budget_s=1e6)
    assert confirming_pairs(noise(0.05), wanted_ratio=0.02, budget_s=1e6) == planned > 60


@pytest.mark.parametrize("count", [0, 1])
def test_one_pair_has_no_spread(count) -> None:
    with pytest.raises(ValueError, match=f"at least 2 pairs, got {count}"):
        spread(paired([0.1] * count))
