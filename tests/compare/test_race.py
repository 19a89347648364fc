import random
from dataclasses import replace
from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.compare import (
    Rule,
    compare,
    confidence_sequence,
    confirm,
    grid,
    judge,
    measure_noise,
    plan_pairs,
    race,
    resolution,
    rule_for,
    settle,
)
from hasten.compare.race import means_ratio
from hasten.records import Interval, Noise, Pair, Plan, Verdict
from hasten.testing import FakeTrialRunner, drifting, periodic, spiky, steady

FAST = Plan().with_lever("turbo", True)


def runner(gain_ratio=1.0, *, noise=None, seed=0):
    return FakeTrialRunner(
        cost=lambda plan: 0.1 if plan == Plan() else 0.1 / gain_ratio,
        noise=noise or steady(0.02 / 2**0.5),
        seed=seed,
    )


def verdicts(gain_ratio, *, noise, runs, pair_count):
    rule = Rule(pair_count=pair_count, sd_ratio=0.02)
    return [
        runner(gain_ratio, noise=noise, seed=2 * seed).race(Plan(), FAST, rule=rule)
        for seed in range(runs)
    ]


@pytest.mark.parametrize("noise", [steady(), spiky(), drifting(), periodic()])
def test_the_baseline_against_itself_rarely_wins(noise) -> None:
    races = verdicts(1.0, noise=noise, runs=160, pair_count=28)
    wins = sum(race.verdict is Verdict.WIN for race in races) / len(races)
    assert wins <= 0.05


def test_a_five_percent_gain_wins_within_twelve_pairs() -> None:
    races = verdicts(1.05, noise=steady(0.02 / 2**0.5), runs=100, pair_count=12)
    assert sum(race.verdict is Verdict.WIN for race in races) >= 95


def test_a_five_percent_slowdown_is_dropped_within_twelve_pairs() -> None:
    races = verdicts(1 / 1.05, noise=steady(0.02 / 2**0.5), runs=100, pair_count=12)
    assert sum(race.verdict is Verdict.DROP for race in races) >= 95


def test_a_gain_is_found_through_spikes() -> None:
    races = verdicts(1.05, noise=spiky(), runs=60, pair_count=60)
    assert sum(race.verdict is Verdict.WIN for race in races) >= 57


def test_chunks_grow_and_stop_at_the_first_crossing() -> None:
    sizes, pairs = [], runner(1.0 + 1e-9).measure(Plan(), FAST)

    def measure(firsts):
        sizes.append(len(firsts))
        return pairs(firsts)

    rule = Rule(pair_count=100, drop_ratio=inf, win_ratio=inf)
    seen = race(measure, rule=rule, coin=random.Random(1))
    assert sizes == [4, 4, 8, 16, 32, 36]
    assert seen.verdict is Verdict.UNDECIDED
    assert len(seen.pairs) == 100


def test_what_follows_the_first_crossing_changes_nothing() -> None:
    win = [Pair(baseline_s=1.2, candidate_s=1.0, baseline_first=True)] * 6
    loss = [Pair(baseline_s=1.0, candidate_s=1.5, baseline_first=True)] * 40
    rule = Rule(pair_count=46)
    assert judge([*win, *loss], rule) is judge(win, rule) is Verdict.WIN
    assert judge(loss, rule) is Verdict.DROP


def test_a_race_ends_when_its_seconds_are_spent() -> None:
    machine = runner(1.01, noise=steady(0.2))
    rule = Rule(pair_count=10_000, budget_s=10.0, drop_ratio=inf, win_ratio=inf)
    seen = race(
        machine.measure(Plan(), FAST), rule=rule, coin=random.Random(2), clock=machine.clock
    )
    assert seen.verdict is Verdict.UNDECIDED
    assert 9.0 < seen.wall_s < 11.0


def test_a_race_ends_with_the_script() -> None:
    assert race(lambda firsts: (), rule=Rule(pair_count=9), coin=random.Random(1)).pairs == ()


def test_the_coin_is_fair_and_every_pair_is_told() -> None:
    told = []
    rule = Rule(pair_count=400, drop_ratio=inf, win_ratio=inf)
    race(runner().measure(Plan(), FAST), rule=rule, coin=random.Random(3), on_pairs=told.extend)
    assert len(told) == 400
    assert 160 < sum(pair.baseline_first for pair in told) < 240


def test_a_comparison_carries_all_that_was_seen() -> None:
    rule = Rule(pair_count=24)
    pairs = runner(1.1).measure(Plan(), FAST)([True, False] * 12)
    seen = compare(Plan(), FAST, pairs, rule, 5.0)
    assert seen.verdict is Verdict.WIN
    assert seen.speedup is not None
    assert seen.speedup.low_ratio < 1.1 < seen.speedup.high_ratio
    assert seen.means_ratio == pytest.approx(1.1, rel=0.02)
    assert compare(Plan(), FAST, (), rule, 0.0).verdict is Verdict.UNDECIDED


def test_a_confirmation_never_stops_early() -> None:
    seen = confirm(runner(1.5).measure(Plan(), FAST), pair_count=150, coin=random.Random(5))
    assert len(seen.pairs) == 150
    assert seen.verdict is Verdict.WIN
    assert seen.speedup.low_ratio < 1.5 < seen.speedup.high_ratio
    with pytest.raises(ValueError, match="at least one pair"):
        settle([])


def test_periodic_stalls_show_in_the_means_not_in_the_median() -> None:
    coin = random.Random(8)
    pairs = [
        Pair(
            baseline_s=0.1 * exp(coin.gauss(0, 0.01)),
            candidate_s=0.1 / 1.1 * exp(coin.gauss(0, 0.01)) + (0.3 if i % 10 == 0 else 0.0),
            baseline_first=coin.random() < 0.5,
        )
        for i in range(60)
    ]
    seen = settle(pairs)
    assert seen.speedup.mid_ratio > 1.08
    assert seen.means_ratio < 0.9


times = st.floats(0.01, 10.0)


@given(st.lists(st.tuples(times, times), min_size=6, max_size=20), st.integers(-20, 20))
def test_the_unit_of_time_changes_nothing(rows, power) -> None:
    def made(factor):
        return [
            Pair(baseline_s=a * factor, candidate_s=b * factor, baseline_first=True)
            for a, b in rows
        ]

    rule = Rule(pair_count=20)
    assert judge(made(1.0), rule) is judge(made(2.0**power), rule)
    assert settle(made(1.0)).speedup == settle(made(2.0**power)).speedup
    assert means_ratio(made(1.0)) == means_ratio(made(2.0**power))


def test_the_rule_asks_for_what_the_noise_needs() -> None:
    flat = Interval(low_ratio=0.99, mid_ratio=1.0, high_ratio=1.01)
    calm = Noise(sd_ratio=0.01, pair_s=0.1, resolution_ratio=0.01, bias=flat)
    loud = Noise(sd_ratio=0.10, pair_s=0.1, resolution_ratio=0.10, bias=flat)
    assert rule_for(calm, budget_s=30.0).pair_count < 20
    assert rule_for(calm, budget_s=30.0).least_ratio == 0.02
    assert rule_for(loud, budget_s=30.0).pair_count == 300
    assert rule_for(loud, budget_s=60.0).pair_count > 300
    assert 0.02 < rule_for(loud, budget_s=30.0).least_ratio < 0.03
    assert rule_for(loud, budget_s=0.0).pair_count == 6


def test_the_resolution_is_what_a_race_can_see() -> None:
    noisy = steady(0.05 / 2**0.5)
    pairs = runner(noise=noisy, seed=4).measure(Plan(), Plan())([True] * 200)
    noise = measure_noise(pairs, pair_s=0.2, budget_s=20.0)
    assert noise.sd_ratio == pytest.approx(0.05, rel=0.2)
    assert noise.bias.low_ratio < 1.0 < noise.bias.high_ratio
    wins = verdicts(1 + noise.resolution_ratio, noise=noisy, runs=100, pair_count=100)
    share = sum(race.verdict is Verdict.WIN for race in wins) / len(wins)
    assert 0.65 < share < 0.95


def losing(count, ratio=1.5):
    return [Pair(baseline_s=1.0, candidate_s=ratio, baseline_first=True)] * count


def winning(count, ratio=1.5):
    return [Pair(baseline_s=ratio, candidate_s=1.0, baseline_first=True)] * count


def test_nothing_is_dropped_before_six_pairs_however_slow_they_are() -> None:
    """They may all lie within one burst of somebody else's work."""
    rule = Rule(pair_count=40)
    assert judge(losing(5, 100.0), rule) is Verdict.UNDECIDED
    assert judge(losing(6, 100.0), rule) is Verdict.DROP
    assert judge([*losing(3), *winning(30)], rule) is Verdict.WIN


def test_what_took_long_to_start_is_dropped_early_only_by_the_odds_of_a_win() -> None:
    usual = Rule(pair_count=40, win_ratio=1000.0)
    patient = Rule(pair_count=40, win_ratio=1000.0, patient_count=9)
    assert judge(losing(8, 100.0), usual) is Verdict.DROP  # odds below 256
    assert judge(losing(8, 100.0), patient) is Verdict.UNDECIDED
    assert judge(losing(9, 100.0), patient) is Verdict.DROP
    dear = Rule(pair_count=40, win_ratio=20.0, patient_count=30)
    assert judge(losing(6, 100.0), dear) is Verdict.DROP  # by the odds of a win


def test_a_win_takes_odds_of_twenty_and_a_drop_of_five() -> None:
    assert judge(winning(4, 100.0), Rule(pair_count=40)) is Verdict.UNDECIDED
    assert judge(winning(5, 100.0), Rule(pair_count=40)) is Verdict.WIN
    assert judge(winning(5, 100.0), Rule(pair_count=40, win_ratio=30.0)) is Verdict.UNDECIDED
    assert judge(losing(6, 100.0), Rule(pair_count=40, drop_ratio=60.0)) is Verdict.UNDECIDED


def test_a_gain_that_is_too_small_to_be_worth_it_is_dropped() -> None:
    small = winning(400, 1.001)
    noisy = [replace(p, baseline_s=1.001 + 0.002 * (i % 3 - 1)) for i, p in enumerate(small)]
    rule = Rule(pair_count=400, sd_ratio=0.02)
    assert judge(noisy[:100], rule) is Verdict.DROP
    assert judge(noisy[:100], replace(rule, least_ratio=0.0)) is not Verdict.DROP


def test_the_first_of_two_crossings_counts() -> None:
    rule = Rule(pair_count=400)
    assert judge([*winning(8), *losing(100)], rule) is Verdict.WIN
    assert judge([*losing(8), *winning(100)], rule) is Verdict.DROP


def test_chunks_end_at_sixty_four_and_with_the_pairs() -> None:
    sizes, pairs = [], runner().measure(Plan(), FAST)

    def measure(firsts):
        sizes.append(len(firsts))
        return pairs(firsts)

    race(measure, rule=Rule(pair_count=300, drop_ratio=inf, win_ratio=inf), coin=random.Random(1))
    assert sizes == [4, 4, 8, 16, 32, 64, 64, 64, 44]


def test_a_chunk_is_cut_to_the_seconds_that_are_left() -> None:
    machine, sizes = runner(noise=steady(0.0)), []
    pairs = machine.measure(Plan(), FAST)

    def measure(firsts):
        sizes.append(len(firsts))
        return pairs(firsts)

    rule = Rule(pair_count=1000, budget_s=4.5, drop_ratio=inf, win_ratio=inf)
    seen = race(measure, rule=rule, coin=random.Random(1), clock=machine.clock)
    assert sizes == [4, 4, 8, 6]  # of 0.2 s each
    assert seen.wall_s == pytest.approx(4.4)


def test_a_race_that_is_decided_asks_for_no_more() -> None:
    seen = race(runner(2.0).measure(Plan(), FAST), rule=Rule(pair_count=100), coin=random.Random(1))
    assert (seen.verdict, len(seen.pairs)) == (Verdict.WIN, 8)


def test_a_rule_is_made_of_the_noise_and_the_time() -> None:
    flat = Interval(low_ratio=0.99, mid_ratio=1.0, high_ratio=1.01)
    calm = Noise(sd_ratio=0.01, pair_s=0.1, resolution_ratio=0.01, bias=flat)
    rule = rule_for(calm, budget_s=7.0)
    assert (rule.win_ratio, rule.drop_ratio, rule.budget_s, rule.sd_ratio) == (20.0, 5.0, 7.0, 0.01)
    assert rule.least_ratio == pytest.approx(0.02, rel=0.2)
    assert rule.pair_count == plan_pairs(calm, wanted_ratio=0.02, budget_s=7.0)
    rough = rule_for(replace(calm, sd_ratio=0.2), budget_s=7.0)
    assert rough.least_ratio == resolution(0.2, pair_count=rough.pair_count) > 0.05
    assert rule_for(calm, budget_s=7.0, least_ratio=0.3).least_ratio == 0.3
    assert rule.bets == grid(0.01) != Rule(pair_count=9).bets == grid(None)
    assert (Rule(pair_count=9).budget_s, Rule(pair_count=9).least_ratio) == (inf, 0.02)


def test_a_comparison_keeps_its_plans_pairs_and_time() -> None:
    seen = compare(Plan(), FAST, winning(8, 1.25), Rule(pair_count=8), 5.0)
    assert (seen.baseline, seen.candidate, seen.wall_s) == (Plan(), FAST, 5.0)
    assert (seen.means_ratio, len(seen.pairs)) == (1.25, 8)
    rule = Rule(pair_count=8, sd_ratio=0.01)
    logs = [pair.log_ratio for pair in winning(8, 1.25)]
    centred = compare(Plan(), FAST, winning(8, 1.25), rule, 5.0)
    assert centred.speedup == confidence_sequence(logs, bets=rule.bets)
    nothing = compare(Plan(), FAST, (), rule, 0.0)
    assert (nothing.speedup, nothing.means_ratio) == (None, None)


def test_the_clock_of_a_race_may_begin_anywhere() -> None:
    machine = runner(noise=steady(0.0))
    rule = Rule(pair_count=1000, budget_s=4.5, drop_ratio=inf, win_ratio=inf)
    seen = race(
        machine.measure(Plan(), FAST), rule=rule, coin=random.Random(1),
        clock=lambda: machine.spent_s + 1e6,
    )  # fmt: skip
    assert len(seen.pairs) == 22
    assert seen.wall_s == pytest.approx(4.4)


@pytest.mark.parametrize(("budget_s", "count"), [(1.65, 8), (1.75, 8), (1.85, 9), (2.05, 10)])
def test_a_last_pair_is_run_only_where_its_time_is_left(budget_s, count) -> None:
    machine = runner(noise=steady(0.0))
    rule = Rule(pair_count=1000, budget_s=budget_s, drop_ratio=inf, win_ratio=inf)
    seen = race(
        machine.measure(Plan(), FAST), rule=rule, coin=random.Random(1), clock=machine.clock
    )
    assert len(seen.pairs) == count


@pytest.mark.parametrize(("budget_s", "count"), [(0.55, 4), (0.65, 6), (0.95, 6)])
def test_a_race_gets_the_pairs_that_can_decide_it_at_twice_its_seconds_at_most(
    budget_s, count
) -> None:
    machine = runner(noise=steady(0.0))
    rule = Rule(pair_count=1000, budget_s=budget_s, drop_ratio=inf, win_ratio=inf)
    seen = race(
        machine.measure(Plan(), FAST), rule=rule, coin=random.Random(1), clock=machine.clock
    )
    assert len(seen.pairs) == count


def test_pairs_that_could_decide_a_race_are_not_run_past_the_seconds_there_are() -> None:
    machine = runner(noise=steady(0.0))
    rule = Rule(pair_count=1000, budget_s=0.65, most_s=0.9, drop_ratio=inf, win_ratio=inf)
    seen = race(
        machine.measure(Plan(), FAST), rule=rule, coin=random.Random(1), clock=machine.clock
    )
    assert len(seen.pairs) == 4


def test_who_looks_on_is_told_of_pairs_alone() -> None:
    told = []
    race(lambda firsts: (), rule=Rule(pair_count=9), coin=random.Random(1), on_pairs=told.append)
    assert told == []


def test_a_race_whose_time_is_over_asks_for_no_more() -> None:
    times = iter([0.0, 0.0, 100.0, 100.0])
    rule = Rule(pair_count=1000, budget_s=10.0, drop_ratio=inf, win_ratio=inf)
    seen = race(
        runner().measure(Plan(), FAST), rule=rule, coin=random.Random(1), clock=lambda: next(times)
    )
    assert len(seen.pairs) == 4


def test_a_drop_stays_one_whatever_comes_after_its_odds() -> None:
    """One wild pair of the other sign takes most of what was proved."""
    rule = Rule(pair_count=40, win_ratio=1000.0)
    assert judge(losing(6, 100.0), rule) is Verdict.DROP
    assert judge([*losing(6, 100.0), *winning(1, 100.0)], rule) is Verdict.DROP
