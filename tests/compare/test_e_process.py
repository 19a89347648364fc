from math import exp, isclose, log, tanh

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hasten.compare import confidence_sequence, grid, hodges_lehmann, log_e, log_e_path
from hasten.compare.e_process import GRID

logs = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=30)


@given(logs)
def test_evidence_is_finite_and_a_pair_at_most_doubles_it(values) -> None:
    path = log_e_path(values)
    assert np.isfinite(path).all()
    assert np.diff(path, prepend=0.0).max() <= log(2) + 1e-9


@given(logs, st.floats(-1.0, 1.0), st.floats(0.0, 1.0))
def test_more_is_harder_to_prove(values, theta, step) -> None:
    assert log_e(values, theta=theta + step) <= log_e(values, theta=theta) + 1e-9


def test_no_pairs_are_no_evidence() -> None:
    assert log_e([]) == 0.0


def test_a_fair_coin_gains_nothing_on_average() -> None:
    size = 0.3
    signs = np.array([[s >> bit & 1 for bit in range(8)] for s in range(256)]) * 2 - 1
    average = np.mean([exp(log_e(row * size, bets=grid(0.1))) for row in signs])
    assert abs(average - 1.0) < 1e-9


def test_the_end_of_a_path_is_the_evidence() -> None:
    values = [0.01, -0.02, 0.05]
    assert log_e_path(values)[-1] == log_e(values)
    assert log_e_path(values)[1] == log_e(values[:2])


@given(logs)
def test_swapping_the_arms_mirrors_the_sequence(values) -> None:
    there = confidence_sequence(values)
    back = confidence_sequence([-value for value in values])
    assert np.isclose(back.low_ratio, 1 / there.high_ratio, rtol=1e-9)
    assert np.isclose(back.high_ratio, 1 / there.low_ratio, rtol=1e-9)


def test_the_sequence_holds_the_truth_at_every_look() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(500):
        values = log(1.07) + 0.03 * rng.standard_normal(40)
        above = log_e_path(values, theta=log(1.07), bets=grid(0.03)).max()
        below = log_e_path(-values, theta=-log(1.07), bets=grid(0.03)).max()
        missed += max(above, below) >= log(40)
    assert missed / 500 <= 0.05


def test_the_sequence_is_what_its_evidence_says() -> None:
    values = np.random.default_rng(6).normal(0.05, 0.02, 12).tolist()
    interval = confidence_sequence(values)
    assert log_e(values, theta=log(interval.low_ratio)) >= log(40) - 1e-6
    assert log_e(values, theta=log(interval.low_ratio) + 1e-4) < log(40)


def test_five_pairs_exclude_nothing_and_six_do() -> None:
    assert confidence_sequence([0.1] * 5).low_ratio < 0.011
    assert confidence_sequence([0.1] * 6).low_ratio > 0.9


def test_noise_of_nothing_still_gives_bets() -> None:
    assert all(np.isfinite(grid(0.0)))


def test_the_bets_are_centred_on_the_noise_where_it_is_known() -> None:
    assert grid(None) == GRID
    assert (GRID[0], GRID[-1], len(GRID)) == (3.0, 1000.0, 8)
    assert grid(0.02)[0] == 0.1 / 0.02
    assert grid(0.02)[-1] == 3.0 / 0.02
    assert [2 * bet for bet in grid(0.02)] == list(grid(0.01))
    assert grid(0.0) == grid(1e-4) != grid(2e-4)


def test_the_evidence_is_the_mean_of_whole_and_half_bets() -> None:
    """By the definition of the module's text, for two pairs and one bet."""
    whole = (1 + tanh(2 * 0.3)) * (1 + tanh(2 * -0.1))
    part = (1 + tanh(2 * 0.3) / 2) * (1 + tanh(2 * -0.1) / 2)
    assert isclose(exp(log_e([0.3, -0.1], bets=(2.0,))), 0.75 * whole + 0.25 * part)
    both = [exp(log_e([0.3, -0.1], bets=(bet,))) for bet in (2.0, 5.0)]
    assert isclose(exp(log_e([0.3, -0.1], bets=(2.0, 5.0))), sum(both) / 2)
    assert isclose(log_e([0.3, -0.1], theta=0.1), log_e([0.2, -0.2]))


def test_the_level_of_a_sequence_decides_its_width() -> None:
    values = np.random.default_rng(6).normal(0.05, 0.02, 40).tolist()
    widths = []
    for level in (0.5, 0.9, 0.95, 0.99):
        interval = confidence_sequence(values, level=level)
        widths.append(interval.high_ratio / interval.low_ratio)
        edge = log(2 / (1 - level))
        assert isclose(log_e(values, theta=log(interval.low_ratio)), edge, abs_tol=1e-3)
        mirrored = [-value for value in values]
        assert isclose(log_e(mirrored, theta=-log(interval.high_ratio)), edge, abs_tol=1e-3)
    assert widths == sorted(widths)
    assert confidence_sequence(values) == confidence_sequence(values, level=0.95)
    assert isclose(log(confidence_sequence(values).mid_ratio), hodges_lehmann(values))


def test_the_bets_of_a_race_are_those_of_its_interval() -> None:
    values = np.random.default_rng(6).normal(0.05, 0.02, 12).tolist()
    assert confidence_sequence(values, bets=grid(0.02)) != confidence_sequence(values)
    assert log_e(values, bets=grid(0.02)) != log_e(values)
