import random
from math import exp, inf, isclose, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.compare import hodges_lehmann, inverse, signed_rank_interval
from hasten.compare.interval import _critical_rank, _walsh, around

logs = st.floats(-2.0, 2.0, allow_subnormal=False)


def ends(interval):
    return interval.low_ratio, interval.mid_ratio, interval.high_ratio


def test_twelve_pairs_use_the_14th_walsh_average_as_the_tables_say() -> None:
    tables = {5: 0, 6: 1, 8: 4, 10: 9, 12: 14, 16: 30, 20: 53, 25: 90}
    assert {count: _critical_rank(count, 0.025) for count in tables} == tables


def test_the_normal_law_takes_over_without_a_step() -> None:
    def by_normal(count):
        mean, sd = count * (count + 1) / 4, (count * (count + 1) * (2 * count + 1) / 24) ** 0.5
        return mean + 0.5 - 1.959964 * sd

    assert abs(_critical_rank(60, 0.025) - by_normal(60)) < 3
    assert _critical_rank(61, 0.025) == int(by_normal(61))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_five_pairs_exclude_nothing(count) -> None:
    interval = signed_rank_interval([0.1] * count)
    assert (interval.low_ratio, interval.high_ratio) == pytest.approx((0.01, 100.0))
    assert isclose(interval.mid_ratio, exp(0.1))


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        hodges_lehmann([])


def test_equal_pairs_give_a_point() -> None:
    assert ends(signed_rank_interval([0.25] * 9)) == (exp(0.25),) * 3


@given(st.lists(logs, min_size=1, max_size=40))
def test_swapping_the_arms_mirrors_the_interval(values) -> None:
    low, middle, high = ends(signed_rank_interval(values))
    mirrored = ends(signed_rank_interval([-value for value in values]))
    assert np.allclose(mirrored, (1 / high, 1 / middle, 1 / low), rtol=1e-9)


@given(st.lists(logs, min_size=1, max_size=40), st.floats(-1.0, 1.0))
def test_a_common_factor_moves_the_whole_interval(values, shift) -> None:
    if len(values) < 6:
        return
    moved = ends(signed_rank_interval([value + shift for value in values]))
    kept = ends(signed_rank_interval(values))
    assert np.allclose(moved, [exp(shift) * end for end in kept], rtol=1e-9)


@given(st.lists(logs, min_size=2, max_size=60), st.data())
def test_counting_finds_the_same_walsh_average_as_the_table(values, data) -> None:
    rank = data.draw(st.integers(1, len(values) * (len(values) + 1) // 2))
    ordered = np.sort(np.asarray(values))
    # the same sample, often enough that it is too large for the table
    many = np.repeat(ordered, 401 // len(values) + 1)
    table = np.sort([(a + b) / 2 for i, a in enumerate(many[::7]) for b in many[::7][i:]])
    thin = many[::7]
    assert isclose(_walsh(thin, min(rank, len(table))), table[min(rank, len(table)) - 1])
    assert many[0] - 1e-9 <= _walsh(many, rank) <= many[-1] + 1e-9


def test_thousands_of_pairs_need_no_table() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0.05, 0.1, 2000)
    row, column = np.triu_indices(2000)
    assert isclose(
        hodges_lehmann(values), float(np.median((values[row] + values[column]) / 2)), abs_tol=1e-9
    )


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    for name, count in (("normal", 12), ("spiky", 12), ("normal", 80)):
        rng = np.random.default_rng(11)
        held = 0
        for _ in range(300):
            blocks = 0.02 * rng.standard_normal((2, count))
            if name == "spiky":
                blocks += (rng.random((2, count)) < 0.15) * rng.exponential(0.5, (2, count))
            interval = signed_rank_interval((log(1.05) + blocks[0] - blocks[1]).tolist())
            held += interval.low_ratio <= 1.05 <= interval.high_ratio
        assert held / 300 >= 0.95 - 0.02, f"{name} {count}: {held / 300}"


def test_one_wild_pair_hardly_moves_the_estimate() -> None:
    coin = random.Random(1)
    calm = [coin.gauss(0.05, 0.01) for _ in range(20)]
    assert abs(hodges_lehmann([*calm, 5.0]) - hodges_lehmann(calm)) < 0.005
    assert signed_rank_interval([*calm, 5.0]).high_ratio < inf


@pytest.mark.parametrize("count", [12, 60, 61, 200])
def test_an_interval_is_no_wider_than_its_level_needs(count) -> None:
    """On normal noise it is about that of the mean, by its efficiency of 3 / pi."""
    rng = np.random.default_rng(count)
    sd, widths, held = 0.05, [], 0
    for _ in range(200):
        low, _, high = ends(signed_rank_interval((0.2 + sd * rng.standard_normal(count)).tolist()))
        widths.append(log(high) - log(low))
        held += low <= exp(0.2) <= high
    usual = 2 * 1.96 * sd * (np.pi / 3 / count) ** 0.5
    assert 0.9 < np.mean(widths) / usual < 1.25
    assert 0.92 <= held / 200 <= 0.995


@pytest.mark.parametrize("level", [0.8, 0.9, 0.99])
def test_a_level_is_the_share_of_intervals_that_hold_the_truth(level) -> None:
    for count in (20, 80):
        rng = np.random.default_rng(count)
        found = [signed_rank_interval(rng.normal(size=count).tolist(), level=level)
                 for _ in range(500)]  # fmt: skip
        held = sum(one.low_ratio <= 1.0 <= one.high_ratio for one in found)
        assert abs(held / 500 - level) < 0.04


def test_the_large_sample_s_walsh_average_is_exact() -> None:
    rng = np.random.default_rng(5)
    values = np.sort(rng.normal(0.0, 1.0, 450))
    row, column = np.triu_indices(450)
    table = np.sort((values[row] + values[column]) / 2)
    for rank in (1, 2, 1000, 50_000, len(table) - 1, len(table)):
        assert isclose(_walsh(values, rank), table[rank - 1], abs_tol=1e-9)


def test_an_interval_never_lies_beside_its_own_middle() -> None:
    assert ends(around(0.5, low=0.6, high=0.7)) == pytest.approx((exp(0.5), exp(0.5), exp(0.7)))
    assert ends(around(0.5, low=0.2, high=0.3)) == pytest.approx((exp(0.2), exp(0.5), exp(0.5)))


def test_the_other_way_round_low_becomes_high() -> None:
    there = signed_rank_interval([0.1, 0.2, 0.15, 0.3, 0.12, 0.11, 0.18])
    back = inverse(there)
    assert ends(back) == pytest.approx(
        (1 / there.high_ratio, 1 / there.mid_ratio, 1 / there.low_ratio)
    )


def test_the_bounds_are_the_walsh_averages_of_the_tables() -> None:
    """The interval of 6 pairs holds all 21 averages, that of 8 begins at the fourth."""
    values = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28]
    for count, rank in ((6, 1), (8, 4)):
        some = values[:count]
        table = sorted((a + b) / 2 for i, a in enumerate(some) for b in some[i:])
        low, middle, high = map(log, ends(signed_rank_interval(some)))
        assert isclose(low, table[rank - 1])
        assert isclose(high, table[-rank])
        assert isclose(middle, float(np.median(table)))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_the_estimate_is_the_median_of_all_walsh_averages(count) -> None:
    values = [2.0**i for i in range(count)]
    table = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    assert isclose(hodges_lehmann(values), float(np.median(table)))
