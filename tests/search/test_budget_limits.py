"""What is not tried is said, with the figure."""

from dataclasses import replace

import pytest

from hasten.records import Comparison, Effect, Interval, Pair, Phase, Plan, Scope, Verdict
from hasten.search import (
    AcceptanceCriteria,
    BudgetLimits,
    Candidate,
    Price,
    Prior,
    RefusalReason,
    bounds,
    incumbent,
    propose,
    read_priors,
    refusals,
    rows,
)
from hasten.testing import sample_profile


def candidate(lever, *settings, scope=Scope.STEP, **details):
    return Candidate(
        lever=lever, phases=frozenset({Phase.FORWARD}), settings=settings or (True,),
        scope=scope, effect=Effect.EXACT,
        **{"gain_ratio": 1.3, "bundled": False, **details},
    )  # fmt: skip


def seen(baseline, candidate, ratio, *, verdict=None, **details):
    speedup = Interval(low_ratio=ratio - 0.01, mid_ratio=ratio, high_ratio=ratio + 0.01)
    judged = verdict or (Verdict.WIN if ratio > 1.01 else Verdict.DROP)
    pair = Pair(baseline_s=ratio, candidate_s=1.0, baseline_first=True)
    return Comparison(
        baseline=baseline, candidate=candidate, verdict=judged, speedup=speedup, pairs=(pair,) * 9,
        **details,
    )  # fmt: skip


def costing(wall_s, *, left_s=1e9, **details):
    return BudgetLimits(
        price=lambda asked: Price(wall_s=wall_s), left_s=lambda asked: left_s, **details
    )


A = Plan().with_lever("a", True)


def test_a_race_for_which_no_time_is_left_says_both_times_and_the_bound() -> None:
    limits = costing(20.0, left_s=5.0)
    assert propose([candidate("a")], [], limits=limits) is None
    (row,) = rows([candidate("a")], [], limits=limits)
    assert row.outcome == "skipped"
    assert row.why == (
        "not tried: its race needs about 20 s, and 5 s were left of the budget; "
        "it could give at most 1.30x"
    )


def test_a_trial_that_costs_more_than_it_may_save_is_not_run_and_says_so() -> None:
    shy = candidate("a", gain_ratio=1.04)
    limits = costing(60.0, weighed_s=8 * 3600.0)
    assert propose([shy], [], limits=costing(60.0, weighed_s=1e6)) is not None
    assert propose([shy], [], limits=costing(100.0, weighed_s=8 * 3600.0)) is None
    (row,) = rows([shy], [], limits=costing(100.0, weighed_s=8 * 3600.0))
    assert row.why == (
        "not tried: expected to save 1m 08s of 8h 00m and to cost 1m 40s; "
        "it could give at most 1.04x"
    )
    assert propose([shy], [], limits=limits) is not None


def test_a_race_without_a_launch_left_says_so_and_cheaper_ones_go_on() -> None:
    candidates = [candidate("a", scope=Scope.LAUNCH), candidate("b")]
    limits = BudgetLimits(launches_left=0)
    asked = propose(candidates, [], limits=limits)
    assert asked.lever == "b"
    history = [seen(Plan(), asked.candidate, 1.2)]
    assert propose(candidates, history, limits=limits) is None
    row = rows(candidates, history, limits=limits)[0]
    assert row.why == (
        "not tried: it needs a fresh launch, and 0 are left; it could give at most 1.30x"
    )


def test_a_stopped_search_says_so_for_what_it_had_not_tried() -> None:
    (row,) = rows([candidate("a")], [])
    assert row.why == ("not tried: the search was stopped before it; it could give at most 1.30x")


@pytest.mark.parametrize(("other_s", "waits"), [(0.001, True), (0.01, False)])
def test_what_can_touch_too_little_waits_for_a_ledger_in_which_it_is_more(other_s, waits) -> None:
    load = replace(candidate("load"), phases=frozenset({Phase.DATA}), gain_ratio=50.0)
    more = replace(load, lever="more", phases=frozenset({Phase.OTHER}))
    candidates, _ = bounds([load, more], sample_profile(), least_ratio=0.02)
    assert propose(candidates, []).lever == "load"
    ledger = {Phase.OTHER: other_s, Phase.FORWARD: 0.1 - other_s}
    history = [seen(Plan(), Plan().with_lever("load", True), 1.9, phase_s=ledger)]
    asked = propose(candidates, history)
    assert (asked is None) is waits
    if waits:
        row = rows(candidates, history, limits=BudgetLimits())[1]
        assert row.why == "not tried: can only touch other, 1% of the step: at most 1.01x"
    else:
        assert asked.lever == "more"


def test_the_ledger_of_the_plan_decides_what_comes_next() -> None:
    load = replace(candidate("load", gain_ratio=50.0), phases=frozenset({Phase.DATA}))
    math = candidate("math", gain_ratio=2.0)
    step = replace(candidate("update", gain_ratio=2.0), phases=frozenset({Phase.OPTIMIZER}))
    candidates, _ = bounds([load, math, step], sample_profile(), least_ratio=0.02)
    for forward_s, update_s, after in ((0.05, 0.04, "math"), (0.04, 0.05, "update")):
        ledger = {Phase.DATA: 0.0, Phase.FORWARD: forward_s, Phase.OPTIMIZER: update_s}
        history = [seen(Plan(), Plan().with_lever("load", True), 1.9, phase_s=ledger)]
        assert propose(candidates, history).lever == after


@pytest.mark.parametrize(("training_s", "taken"), [(None, True), (3600.0, True), (60.0, False)])
def test_a_start_that_costs_more_than_it_saves_is_not_taken(training_s, taken) -> None:
    criteria = (
        AcceptanceCriteria() if training_s is None else AcceptanceCriteria(training_s=training_s)
    )
    history = [seen(Plan(), A, 1.5, later_s=30.0)]
    assert bool(incumbent([candidate("a")], history, criteria=criteria).settings) is taken
    (row,) = rows([candidate("a")], history, criteria=criteria)
    assert row.outcome == ("kept" if taken else "dropped")
    if not taken:
        assert "starts 30 s later and saves 20 s in 1m 00s of training" in row.why


def test_each_refusal_names_its_reason() -> None:
    def reasons(limits):
        return [one.reason for one in refusals([candidate("a")], [], limits=limits)]

    assert set(reasons(costing(2.0, left_s=1.0))) == {RefusalReason.TIME}
    assert set(reasons(costing(9.0, weighed_s=10.0))) == {RefusalReason.WORTH}
    assert set(reasons(BudgetLimits(ended=True))) == {RefusalReason.ENDED}
    assert reasons(BudgetLimits()) == []


def test_a_record_orders_levers_of_the_same_bound() -> None:
    helped = Prior(script_count=6, helped_count=6, log_gain=0.2)
    seldom = Prior(script_count=6, helped_count=0)
    candidates = [
        candidate("never", prior=seldom),
        candidate("new"),
        candidate("often", prior=helped),
    ]
    placed, _ = bounds(candidates, sample_profile({Phase.FORWARD: 1.0}), least_ratio=0.02)
    assert [one.lever for one in placed] == ["often", "new", "never"]


def test_a_lever_without_a_record_that_needs_a_launch_comes_late() -> None:
    candidates = [
        candidate("launched", scope=Scope.LAUNCH, gain_ratio=1.5),
        candidate("b", gain_ratio=1.3),
    ]
    assert propose(candidates, []).lever == "b"


def test_a_forecast_goes_before_a_record() -> None:
    sure = candidate("a", 2, 4, gain_ratio=8.0, forecasts={2: 1.5, 4: 1.0})
    assert sure.expected_log(2) > candidate("b", gain_ratio=2.0).expected_log(True)
    assert sure.expected_log(4) == 0.0


def test_the_committed_record_of_each_lever_is_usable() -> None:
    priors = read_priors()
    assert priors
    for prior in priors.values():
        assert 0 <= prior.helped_count <= prior.script_count
        assert (prior.helped_count > 0) == (prior.gain_log(0.5) != 0.0)
