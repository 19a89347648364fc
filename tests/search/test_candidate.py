from dataclasses import replace

import pytest

from hasten.records import Effect, Phase, Scope
from hasten.search import Candidate, bounds
from hasten.search.gain_estimator import GainEstimator
from hasten.testing import sample_profile

PROFILE = sample_profile({Phase.DATA: 0.003, Phase.FORWARD: 0.057, Phase.BACKWARD: 0.040})


def candidate(lever, *phases, gain_ratio=2.0, scope=Scope.LAUNCH):
    return Candidate(
        lever=lever,
        phases=frozenset(phases),
        settings=(True,),
        gain_ratio=gain_ratio,
        scope=scope,
        effect=Effect.DISTRIBUTION,
    )


def test_a_lever_that_can_only_touch_little_is_skipped_with_its_figure() -> None:
    kept, (row,) = bounds(
        [candidate("workers", Phase.DATA, gain_ratio=3.0)], PROFILE, least_ratio=0.05
    )
    assert kept == ()
    assert row.why == "can only touch data, 3% of the step: at most 1.02x"
    assert (row.outcome, row.setting, row.effect) == ("skipped", None, Effect.DISTRIBUTION)


def test_the_most_promising_comes_first_and_the_cheapest_among_equals() -> None:
    candidates = [
        candidate("late", Phase.BACKWARD, gain_ratio=1.2),
        candidate("dear", Phase.FORWARD),
        candidate("cheap", Phase.FORWARD, scope=Scope.STEP),
        candidate("wide", Phase.FORWARD, Phase.BACKWARD),
    ]
    kept, skipped = bounds(candidates, PROFILE, least_ratio=0.02)
    assert [one.lever for one in kept] == ["wide", "cheap", "dear", "late"]
    assert skipped == ()


def test_a_lever_without_limit_can_remove_its_phase() -> None:
    kept, _ = bounds(
        [candidate("all", *PROFILE.phase_s, gain_ratio=1e12)], PROFILE, least_ratio=9.0
    )
    assert len(kept) == 1


def test_what_a_finding_has_measured_can_be_more_than_the_phases_of_its_cure() -> None:
    named = replace(candidate("workers", Phase.DATA), named_ratio=0.4)
    (one,), _ = bounds([named], PROFILE, least_ratio=0.05)
    assert one.share_ratio == 0.4
    search = GainEstimator(least_ratio=0.05)
    assert search.share_ratio(one) == 0.4
    search.step_s = {Phase.DATA: 0.0015, Phase.FORWARD: 0.0985}  # half of the wait is gone
    assert search.share_ratio(one) == pytest.approx(0.2)
    search.step_s = {Phase.DATA: 0.05, Phase.FORWARD: 0.05}
    assert search.share_ratio(one) == 1.0


def test_a_candidate_needs_a_setting() -> None:
    with pytest.raises(ValueError, match="empty has no setting"):
        Candidate(
            lever="empty",
            phases=frozenset(),
            settings=(),
            gain_ratio=1.0,
            scope=Scope.STEP,
            effect=Effect.EXACT,
        )
