from dataclasses import replace

import pytest

from hasten.records import Comparison, Interval, Pair, Passes, Plan, Traits, Verdict
from hasten.search.payback import (
    Payback,
    blamed,
    of_all,
    passes_of,
    payback_of,
    savings,
    too_late,
    unpaid,
)
from hasten.testing import fed


def seen(*levers, later_s):
    candidate = Plan()
    for lever in levers:
        candidate = candidate.with_lever(lever, True)
    return Comparison(
        baseline=Plan(), candidate=candidate, verdict=Verdict.WIN, later_s=later_s,
        speedup=Interval(low_ratio=1.1, mid_ratio=1.2, high_ratio=1.3),
        pairs=(Pair(baseline_s=1.2, candidate_s=1.0, baseline_first=True),),
    )  # fmt: skip


@pytest.mark.parametrize("ratio", [1.05, 1.5, 3.0])
def test_at_the_break_even_both_have_taken_the_same_time(ratio) -> None:
    payback = Payback(later_s=30.0, step_s=0.2, speedup_ratio=ratio)
    plain_s = payback.step_count * 0.2
    assert payback.wall_s + 30.0 == pytest.approx(plain_s, abs=0.2)
    assert not payback.is_repaid(0.99 * plain_s)
    assert payback.is_repaid(1.01 * plain_s)


def test_the_lever_whose_own_race_saw_the_late_start_is_blamed() -> None:
    plan = Plan().with_lever("a", True).with_lever("b", True)
    history = (seen("a", later_s=0.5), seen("b", later_s=28.0), seen("a", "b", later_s=30.0))
    assert blamed(plan, history, later_s=30.0) == {"b"}


def test_where_no_race_saw_it_the_whole_plan_is_blamed() -> None:
    plan = Plan().with_lever("a", True).with_lever("b", True)
    assert blamed(plan, (seen("a", later_s=None),), later_s=30.0) == {"a", "b"}


def test_a_lever_that_is_not_in_the_plan_is_not_blamed() -> None:
    plan = Plan().with_lever("a", True).with_lever("b", True)
    other = seen("c", later_s=28.0)
    assert blamed(plan, (other, seen("b", later_s=28.0)), later_s=30.0) == {"b"}
    assert blamed(plan, (other,), later_s=30.0) == {"a", "b"}


def payback(**details):
    return Payback(**{"later_s": 30.0, "step_s": 0.1, "speedup_ratio": 2.0, **details})


def test_a_step_that_is_begun_counts_whole() -> None:
    assert payback(later_s=30.01).step_count == 601
    assert payback(later_s=30.01).wall_s == pytest.approx(30.05)


def test_what_is_paid_back_at_the_very_end_is_not_repaid() -> None:
    assert not payback().is_repaid(60.0)
    assert payback().is_repaid(60.1)


@pytest.mark.parametrize(
    ("first_pass_s", "start", "first_pass"),
    [
        (0.0, "30 s later", None),
        (2.9, "27.1 s later", None),
        (3.0, "27 s later", "3 s longer"),
        (15.0, "15 s later", "15 s longer"),
        (27.0, "3 s later", "27 s longer"),
        (27.1, None, "27.1 s longer"),
        (30.0, None, "30 s longer"),
    ],
)
def test_what_is_late_is_told_where_it_is_a_tenth(first_pass_s, start, first_pass) -> None:
    message = payback(first_pass_s=first_pass_s).message
    assert ("the first step comes" in message) is (start is not None)
    assert ("the first pass over the data takes" in message) is (first_pass is not None)
    for words in filter(None, (start, first_pass)):
        assert words in message
    assert message.endswith("paid back after 600 steps (30 s).")


@pytest.mark.parametrize(("later_s", "blamed_too"), [(14.9, False), (15.0, True), (16.0, True)])
def test_half_of_the_delay_is_enough_for_blame(later_s, blamed_too) -> None:
    plan = Plan().with_lever("a", True).with_lever("b", True)
    history = (seen("a", later_s=later_s), seen("b", later_s=28.0))
    assert blamed(plan, history, later_s=30.0) == ({"a", "b"} if blamed_too else {"b"})


@pytest.mark.parametrize(("later_s", "is_told"), [(None, False), (2.9, False), (3.0, True)])
def test_a_late_start_is_told_from_three_seconds_on(later_s, is_told) -> None:
    found = payback_of(later_s, first_pass_s=1.0, step_s=0.1, speedup_ratio=2.0)
    assert (found is not None) is is_told
    if found:
        assert found == Payback(later_s=3.0, first_pass_s=1.0, step_s=0.1, speedup_ratio=2.0)


def test_a_start_is_late_by_nothing_else_where_no_first_pass_is_longer() -> None:
    assert payback().message.startswith("Under the plan the first step comes 30 s later: paid")


def test_a_plan_is_too_late_only_where_the_training_is_known_to_be_too_short() -> None:
    assert too_late(payback(), None) == too_late(None, 1.0) == ""
    assert too_late(payback(), 61.0) == ""
    assert "starts 30 s later and saves 29" in too_late(payback(), 59.0)


def test_what_is_saved_is_weighed_against_the_start() -> None:
    assert savings(None, 2.0, None) == []
    assert savings(payback(), 2.0, None) == [payback().message]
    (weighed,) = savings(None, 1.25, 500.0)
    assert "In 8m 20s of training the plan saves about 1m 40s." in weighed
    *_, weighed = savings(payback(), 1.25, 500.0)
    assert "saves about 1m 10s" in weighed


def test_a_start_is_weighed_against_what_all_of_the_training_gains() -> None:
    late = payback(later_s=50.0, first_pass_s=20.0)
    whole = Interval(low_ratio=1.04, mid_ratio=1.05, high_ratio=1.06)
    seen = Passes(
        step_count=100, longer_s=20.0, outside_s=0.0, outside_under_s=0.0, pass_count=10,
        is_assumed=False, first_ratio=0.9, whole=whole,
    )  # fmt: skip
    over_all = of_all(late, seen)
    assert (over_all.later_s, over_all.speedup_ratio) == (30.0, 1.05)  # the pass is in the gain
    assert too_late(late, 500.0) == ""
    assert "saves 23.8 s in 8m 20s" in too_late(over_all, 500.0)
    assert of_all(late, replace(seen, longer_s=0.0)).later_s == 50.0
    assert of_all(late, None) is late
    assert of_all(None, seen) is None
    *_, weighed = savings(late, 1.05, 1000.0, passes=seen)
    assert "saves about 17.6 s" in weighed


TRAITS = fed(pass_batch_count=100, step_batch_count=2)


def passes(traits=TRAITS, **details):
    later = Interval(low_ratio=4.0, mid_ratio=5.0, high_ratio=6.0)
    given = {"step_s": 0.1, "longer_s": 8.0, "training_s": None, **details}
    return passes_of(traits, later, **given)


@pytest.mark.parametrize(("per_step", "step_count"), [(None, 100), (0, 100), (1, 100), (3, 33)])
def test_a_pass_has_as_many_steps_as_its_batches_make(per_step, step_count) -> None:
    told = {} if per_step is None else {"step_batch_count": per_step}
    assert passes(fed(pass_batch_count=100, **told)).step_count == step_count


def test_where_the_length_of_a_pass_is_unknown_none_is_told() -> None:
    assert passes(Traits()) is None
    assert passes(fed(pass_batch_count=1, step_batch_count=2)) is None


def test_a_first_pass_that_is_shorter_is_not_told() -> None:
    short = fed(pass_batch_count=2)
    assert passes(short, longer_s=0.9).longer_s == 0.9
    assert passes(short, longer_s=-0.5, training_s=0.2) is None
    assert passes(short, longer_s=-12.0, training_s=0.2) is None


def test_a_first_pass_that_keeps_samples_counts_in_the_gain_of_all() -> None:
    found = passes()
    assert (found.step_count, found.pass_count, found.is_assumed) == (50, 10, True)
    assert found.first_ratio == pytest.approx(5.0 / (1.0 + 8.0))
    assert found.whole.mid_ratio == pytest.approx(50.0 / (10.0 + 8.0))
    assert found.whole.low_ratio < found.whole.mid_ratio < found.whole.high_ratio


def test_a_training_whose_length_is_known_is_as_long_as_that() -> None:
    assert passes(training_s=15.2).pass_count == 3
    assert passes(training_s=1.0).pass_count == 1
    assert not passes(training_s=15.2).is_assumed


def test_a_training_that_a_trial_has_seen_end_is_as_long_as_that() -> None:
    found = passes(life_count=151)
    assert (found.pass_count, found.is_assumed) == (3, False)
    assert passes(life_count=10).pass_count == 1
    assert passes(life_count=151, training_s=25.0).pass_count == 5  # the user knows better


def test_passes_that_do_not_make_up_for_the_first_are_no_gain() -> None:
    assert unpaid(None) == unpaid(passes()) == ""
    assert "takes 8 s longer, and one pass is too few" in unpaid(passes(life_count=50))
    assert "and 2 passes are too few" in unpaid(passes(life_count=100))
    assert unpaid(passes(life_count=150)) == ""  # 15 s against 3.75 s + 8 s at worst


def test_a_first_pass_that_costs_next_to_nothing_is_not_told() -> None:
    assert passes(longer_s=0.1) is None
    assert passes(longer_s=0.0) is None
    assert passes(training_s=1e6) is None


def test_what_is_no_step_is_no_faster() -> None:
    found = passes(Traits(), longer_s=0.0, outside_s=0.1)
    assert (found.step_count, found.longer_s) == (0, 0.0)
    assert found.whole.mid_ratio == found.first_ratio == pytest.approx(0.2 / (0.02 + 0.1))
    both = passes(outside_s=0.1, life_count=500)
    assert both.pass_count == 10
    assert both.whole.mid_ratio == pytest.approx(100.0 / (10.0 + 50.0 + 8.0))
    assert passes(Traits(), longer_s=0.0, outside_s=1e-5) is None


def test_what_is_no_step_and_was_seen_a_few_times_widens_the_interval() -> None:
    known, vague = (
        passes(Traits(), longer_s=0.0, outside_s=0.1, outside_off_s=off_s).whole
        for off_s in (0.0, 0.05)
    )
    assert vague.mid_ratio == known.mid_ratio
    assert vague.low_ratio == pytest.approx(0.25 / (0.025 + 0.15))
    assert vague.high_ratio == pytest.approx(0.15 / (0.1 / 6 + 0.05))


@pytest.mark.parametrize(("under_s", "counted_s"), [(0.105, 0.1), (0.15, 0.15), (0.05, 0.05)])
def test_an_evaluation_that_a_plan_changes_counts_as_it_is_then(under_s, counted_s) -> None:
    found = passes(Traits(), longer_s=0.0, outside_s=0.1, outside_under_s=under_s)
    assert found.outside_under_s == counted_s
    assert found.whole.mid_ratio == pytest.approx(0.2 / (0.02 + counted_s))
    assert unpaid(found) == ""
    slow = passes(Traits(), longer_s=0.0, outside_s=0.1, outside_under_s=0.3)
    assert "evaluation and the like took 3.00 times as long" in unpaid(slow)
