"""The published figure: fixed pairs, and an interval that spans every round of launches."""

import random
from dataclasses import replace
from itertools import count
from math import exp, hypot, log

import pytest

from hasten import compare
from hasten.records import Interval, Pair, Verdict


def a_round(log_gain, count=40, seed=1):
    noise = random.Random(seed)
    pairs = [
        Pair(baseline_s=exp(log_gain + noise.gauss(0, 0.01)), candidate_s=1.0, baseline_first=True)
        for _ in range(count)
    ]
    return compare.settle(pairs)


def test_a_gain_that_only_one_launch_shows_is_not_confirmed() -> None:
    lucky, plain = a_round(0.10), a_round(-0.01)
    assert lucky.speedup.is_gain
    assert not compare.span([lucky, plain]).speedup.is_gain


def test_the_interval_is_that_of_the_pairs_and_of_other_launches_together() -> None:
    rounds = [a_round(0.10, seed=1), a_round(0.20, seed=2)]
    joined, pairs = compare.span(rounds), compare.settle(rounds[0].pairs + rounds[1].pairs)
    margin = compare.launches_margin([log(each.speedup.mid_ratio) for each in rounds])
    middle, own = joined.speedup.mid_ratio, pairs.speedup.mid_ratio
    assert middle == pytest.approx(own, rel=1e-4)
    low, high = log(own / pairs.speedup.low_ratio), log(pairs.speedup.high_ratio / own)
    assert log(middle / joined.speedup.low_ratio) == pytest.approx(hypot(low, margin))
    assert log(joined.speedup.high_ratio / middle) == pytest.approx(hypot(high, margin))
    assert rounds[0].speedup.mid_ratio < middle < rounds[1].speedup.mid_ratio
    assert len(joined.pairs) == 80


def test_launches_count_alike_however_many_pairs_each_had() -> None:
    for long, short in (200, 10), (10, 200):
        seen = compare.span([a_round(0.5, count=long), a_round(0.0, count=short, seed=2)])
        assert log(seen.speedup.mid_ratio) == pytest.approx(0.25, abs=0.01)
        assert seen.verdict is Verdict.UNDECIDED


def test_what_launches_of_one_plan_differ_by_widens_the_interval() -> None:
    rounds = [a_round(0.10, seed=seed) for seed in (1, 2)]
    assert compare.span(rounds).verdict is Verdict.WIN
    assert compare.span(rounds, nulls=[0.01]).verdict is Verdict.WIN
    assert compare.span(rounds, nulls=[0.15]).verdict is Verdict.UNDECIDED
    assert compare.span(rounds, nulls=[-0.15]).verdict is Verdict.UNDECIDED


def a_stalling_round(every, seed=1):
    """Steps gain a fifth, and one in so many takes five times as long."""
    pairs = a_round(0.2, seed=seed).pairs
    late = [replace(p, candidate_s=5.0) if i % every == 1 else p for i, p in enumerate(pairs)]
    return compare.settle(late)


def test_steps_that_stall_may_cost_more_than_the_others_gain() -> None:
    for every, stalls in ((10, True), (60, False)):
        seen = compare.span([a_stalling_round(every, seed=seed) for seed in (1, 2)])
        assert seen.speedup.is_gain
        assert (seen.means_ratio < 1.0) is stalls
        assert seen.stalls is stalls


def test_steps_that_are_long_now_and_then_count_as_long_as_they_take() -> None:
    def a_loop(seed):
        """Every tenth step takes ten more on both sides; the others gain a half."""
        pairs = a_round(0.4, seed=seed, count=60).pairs
        return compare.settle([
            replace(p, baseline_s=p.baseline_s + 10.0, candidate_s=p.candidate_s + 10.0)
            if i % 10 == 1 else p
            for i, p in enumerate(pairs)
        ])  # fmt: skip

    seen = compare.span([a_loop(1), a_loop(2)])
    assert seen.verdict is Verdict.WIN
    assert seen.speedup.mid_ratio == pytest.approx((exp(0.4) + 1.0) / 2.0, rel=0.01)
    assert seen.speedup.low_ratio <= seen.means_ratio
    assert seen.speedup.low_ratio < seen.speedup.mid_ratio / 1.03  # two launches tell no more
    assert not seen.stalls


def test_a_burst_in_one_round_is_no_stall() -> None:
    seen = compare.span([a_stalling_round(8), a_round(0.2)])
    assert seen.speedup.is_gain
    assert seen.means_ratio < 1.0
    assert not seen.stalls


def test_one_round_of_launches_tells_little() -> None:
    alone = compare.span([a_round(0.05)])
    assert alone.speedup.mid_ratio == a_round(0.05).speedup.mid_ratio
    assert alone.verdict is Verdict.UNDECIDED


def test_no_round_says_nothing() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        compare.span([])


def test_exactly_the_planned_pairs_are_run() -> None:
    asked = []

    def measure(coins):
        asked.append(len(coins))
        return [Pair(baseline_s=2.0, candidate_s=1.0, baseline_first=coin) for coin in coins]

    seen = compare.confirm(measure, pair_count=37, coin=random.Random(1))
    assert sum(asked) == len(seen.pairs) == 37
    assert seen.speedup.mid_ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.001, 1.2, Verdict.WIN),
        (1.0, 1.2, Verdict.UNDECIDED),
        (0.9, 1.1, Verdict.UNDECIDED),
        (0.8, 1.0, Verdict.UNDECIDED),
        (0.8, 0.999, Verdict.DROP),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, verdict) -> None:
    speedup = Interval(low_ratio=low, mid_ratio=(low + high) / 2, high_ratio=high)
    assert replace(a_round(0.1), speedup=speedup).verdict is verdict


def test_only_a_gain_can_be_lost_to_stalls() -> None:
    gain, none = a_round(0.1), a_round(-0.1)
    assert replace(gain, usual_means_ratio=0.99).stalls
    assert not replace(gain, usual_means_ratio=1.0).stalls
    assert not replace(none, usual_means_ratio=0.9).stalls


@pytest.mark.parametrize(("stalling_count", "stalls"), [(1, False), (2, False), (4, True)])
def test_stalls_in_most_rounds_are_no_gain(stalling_count, stalls) -> None:
    calm, stalling = a_round(0.1), replace(a_round(0.1), means_ratio=0.8)
    rounds = [stalling] * stalling_count + [calm] * (5 - stalling_count)
    assert compare.span(rounds).stalls is stalls


@pytest.mark.parametrize("pair_count", [1, 10, 16, 17, 48])
def test_not_one_pair_more_than_planned_is_run_and_each_is_told(pair_count) -> None:
    clock, asked, told = count(5.0, 2.0), [], []

    def measure(coins):
        asked.extend(coins)
        return [Pair(baseline_s=2.0, candidate_s=1.0, baseline_first=coin) for coin in coins]

    seen = compare.confirm(
        measure, pair_count=pair_count, coin=random.Random(1), clock=lambda: next(clock),
        on_pairs=told.extend,
    )  # fmt: skip
    assert len(asked) == len(seen.pairs) == pair_count
    assert list(seen.pairs) == told
    assert seen.wall_s == 2.0
    assert [pair.baseline_first for pair in told] == asked


def test_a_script_that_ends_is_judged_by_what_there_is() -> None:
    answers = iter([7, 0])

    def measure(coins):
        return [Pair(baseline_s=2.0, candidate_s=1.0, baseline_first=True)] * next(answers)

    assert len(compare.confirm(measure, pair_count=50, coin=random.Random(1)).pairs) == 7


def test_rounds_add_their_time_and_keep_the_better_mean() -> None:
    rounds = [replace(a_round(g, seed=s), wall_s=w) for g, s, w in ((0.1, 1, 5.0), (0.3, 2, 7.0))]
    joined = compare.span(rounds)
    assert joined.wall_s == 12.0
    assert joined.usual_means_ratio == rounds[1].means_ratio > joined.means_ratio
    assert compare.settle(rounds[0].pairs).wall_s == 0.0
    assert rounds[0].means_ratio == pytest.approx(exp(0.1), rel=0.01)


@pytest.mark.parametrize(
    ("gain", "round_count", "verdict"),
    [
        (1.015, 400, Verdict.UNDECIDED),
        (1.025, 400, Verdict.WIN),
        (1.03, 2, Verdict.UNDECIDED),
        (1.03, 4, Verdict.WIN),
    ],
)
def test_a_gain_of_less_than_two_percent_or_of_few_launches_is_not_published(
    gain, round_count, verdict
) -> None:
    seen = compare.span([a_round(log(gain), seed=seed) for seed in range(round_count)])
    assert seen.verdict is verdict
