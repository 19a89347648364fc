"""What the parts of a tuning take, counted by hand."""

from dataclasses import replace

import pytest

from hasten.errors import UsageError
from hasten.search.costs import (
    Costs,
    probe_count,
    refuse_too_short,
    refuse_too_slow,
    watch_count,
)

COSTS = Costs(
    step_s=0.125, launch_s=5.0, launches_s=7.0, pair_s=0.5, records_start_s=6.0,
    recorded_count=32, wave_count=3, busy_ratio=1.5,
)  # fmt: skip
QUICK = replace(COSTS, pair_s=0.1)


def test_the_noise_takes_two_children_and_eight_pairs_or_three_seconds() -> None:
    assert COSTS.noise_s == 7.0 + 8 * 0.5
    assert QUICK.noise_s == 7.0 + 3.0


def test_a_profile_takes_a_glance_a_probe_and_six_seconds_of_steps() -> None:
    assert COSTS.observe_s == (3 + 9 + 49) * 0.125
    assert replace(COSTS, step_s=1.0).observe_s == 3 + 9  # the probe of slow steps is left out
    assert replace(COSTS, step_s=1.0, cycle_count=4).observe_s == 3 + 9 + 9
    assert replace(COSTS, pass_count=300, step_s=1 / 128).observe_s == (3 + 9 + 601) / 128


def test_a_probe_ends_within_four_seconds_but_where_times_repeat() -> None:
    assert [probe_count(0.5), probe_count(0.51)] == [8, 0]
    assert [probe_count(0.51, cycle_count=2), probe_count(0.01, cycle_count=12)] == [8, 12]
    unseen = [probe_count(s, cycle_count=40, waits=False) for s in (0.01, 0.2, 0.5, 0.51)]
    assert unseen == [40, 20, 8, 0]
    assert [watch_count(2.0, cycle_count=12), watch_count(0.0)] == [12, 400]


def test_a_confirmation_takes_two_rounds_of_two_launches_and_ten_pairs() -> None:
    assert COSTS.confirm_pairs_s == 2 * 10 * 0.5
    assert QUICK.confirm_pairs_s == 2 * 3.0
    assert COSTS.confirm_s == 2 * 7.0 + COSTS.confirm_pairs_s


def test_a_proof_takes_waves_of_launches_and_of_steps_that_are_hashed() -> None:
    assert COSTS.proof_s == 3 * (6.0 + 32 * 0.125 * 1.25 * 1.5)
    assert COSTS.answer_s == pytest.approx(1.1 * (COSTS.proof_s + COSTS.confirm_s))


def test_a_budget_is_refused_where_it_holds_no_launch_and_no_noise() -> None:
    refuse_too_short(18.1, 10.0, COSTS)
    with pytest.raises(UsageError) as refused:
        refuse_too_short(18.0, 10.0, COSTS)
    before_s = 10.0 + COSTS.observe_s + 2.0 + 2 * COSTS.noise_s
    assert 120 < 1.1 * (before_s + COSTS.answer_s) < 130
    launches_s = 10.0 + 2.0 + 2 * QUICK.noise_s + replace(COSTS, step_s=0.0, pair_s=0.0).answer_s
    assert 80 < 1.1 * launches_s < 90
    assert refused.value.remedy == (
        "Give it --budget 130s or longer; 90s may do if later steps are quicker than the first."
    )
    with pytest.raises(UsageError) as refused:  # what has been spent is not counted twice
        refuse_too_short(18.0, 10.0, COSTS, is_watched=True)
    less_s = 1.1 * (COSTS.observe_s + 2.0)
    assert 110 < 1.1 * (before_s + COSTS.answer_s) - less_s <= 120
    assert refused.value.remedy == "Give it --budget 120s or longer."


def test_a_budget_is_refused_where_it_holds_no_look_at_the_pace_of_some_steps() -> None:
    refuse_too_slow(20.0 + COSTS.observe_s - 3 * 0.125 + 2.1, 20.0, COSTS)
    slow = replace(COSTS, step_s=5.0, pair_s=10.0)
    least_s = 20.0 + slow.observe_s - 3 * 5.0 + 8 * 5.0
    refuse_too_slow(least_s + 0.1, 20.0, slow)
    with pytest.raises(UsageError) as refused:
        refuse_too_slow(least_s, 20.0, slow)
    assert refused.value.remedy == "Give it --budget 28m or longer."
