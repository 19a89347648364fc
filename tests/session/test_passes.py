"""What is published is the gain of the training: its first pass, its pauses and its length."""

import importlib.util
from dataclasses import replace
from itertools import count
from math import log
from pathlib import Path

import pytest

from hasten.lever import Lever
from hasten.records import Effect, Phase, Plan, Scope
from hasten.session.races import Races
from hasten.testing import fed, plant

# The simulated tunings of test_budget.py.
_spec = importlib.util.spec_from_file_location(
    "budget", Path(__file__).with_name("test_budget.py")
)  # fmt: skip
budget = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(budget)
tuned = budget.tuned

KEEPS = Lever(
    name="keeps", phases=frozenset({Phase.FORWARD}), effect=Effect.EXACT, scope=Scope.PROCESS,
    settings=lambda context: (True,), gain_ratio=9.0, snippet=str, why_not=lambda context: "",
    warms_cache=True,
)  # fmt: skip


@pytest.fixture
def kept(tuned, monkeypatch):
    """Tune a script of passes of 50 steps of 20 ms, under a lever that keeps samples."""

    def run(*, longer_s, late=None, **details):
        levers = {"brisk": budget.LEVERS["brisk"], "keeps": KEEPS}
        levers |= {} if late is None else {late.name: late}
        plant(monkeypatch, levers)
        monkeypatch.setattr(budget, "LEVERS", levers)
        return tuned(
            300.0, step_s=0.02, start_s=2.0, gains={"brisk": 1.15, "keeps": 2.0, "early": 1.1},
            traits=fed(pass_batch_count=50),
            first_pass_s=lambda plan: longer_s if dict(plan.settings).get("keeps") else 0.0,
            **details,
        ).tuning  # fmt: skip

    return run


def test_the_headline_counts_as_many_passes_as_a_trial_has_seen(kept) -> None:
    seen = kept(longer_s=0.3, life_count=250).passes
    assert (seen.pass_count, seen.is_assumed) == (5, False)
    seen = kept(longer_s=0.3).passes
    assert (seen.pass_count, seen.is_assumed) == (10, True)


@pytest.mark.parametrize(("life_count", "is_kept"), [(200, False), (2000, True)])
def test_what_they_do_not_repay_is_not_left_unconfirmed_either(
    kept, monkeypatch, life_count, is_kept
) -> None:
    def interrupt(*args, **details):
        raise KeyboardInterrupt

    monkeypatch.setattr(Races, "confirm", interrupt)
    seen = kept(longer_s=2.6, life_count=life_count)
    assert seen.interrupted
    assert dict(seen.plan.settings).keys() == {"brisk", *(["keeps"] if is_kept else [])}


def test_what_came_in_later_does_not_hide_what_kept_samples_give(kept, monkeypatch) -> None:
    """Its race shows a tenth on top of them, which alone would not repay the first pass."""

    def interrupt(*args, **details):
        raise KeyboardInterrupt

    monkeypatch.setattr(Races, "confirm", interrupt)
    late = replace(
        budget.LEVERS["early"], phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
        promising=lambda context: False,
    )  # fmt: skip
    seen = kept(longer_s=2.6, life_count=2000, late=late)
    last = seen.races[-1]
    assert last.baseline.differing(last.candidate) == {"early"}
    assert "keeps" in last.baseline.levers
    assert seen.plan.levers == {"brisk", "early", "keeps"}


@pytest.mark.parametrize(("life_count", "is_kept"), [(200, False), (2000, True)])
def test_what_the_passes_of_a_training_do_not_repay_is_left_out(kept, life_count, is_kept) -> None:
    """Kept samples save half a second in each pass of one."""
    seen = kept(longer_s=2.6, life_count=life_count)
    assert ("keeps" in dict(seen.plan.settings)) is is_kept
    assert "brisk" in dict(seen.plan.settings)
    assert seen.speedup.is_gain
    if is_kept:
        assert seen.passes.whole.is_gain
    else:
        (row,) = [row for row in seen.levers if row.lever == "keeps"]
        assert row.outcome == "dropped"
        assert "its first pass takes longer: 0.81x for the whole training" in row.why


@pytest.mark.parametrize("is_first", [False, True])
def test_what_kept_samples_displaced_comes_back_where_they_do_not_pay(
    tuned, monkeypatch, is_first
) -> None:
    """A lever that does nothing beside kept samples leaves the plan when they come in."""
    keeps = replace(
        KEEPS,
        provides=lambda setting, traits: traits.with_workers(7),
        promising=lambda context: is_first,
    )
    beside = replace(
        keeps, name="beside", warms_cache=False, scope=Scope.STEP,
        provides=lambda setting, traits: traits,
        redundant_with=lambda setting, traits: "kept" * (traits.loader.worker_count == 7),
    )  # fmt: skip
    levers = {"beside": beside, "keeps": keeps}
    plant(monkeypatch, levers)
    monkeypatch.setattr(budget, "LEVERS", levers)
    seen = tuned(
        300.0, step_s=0.02, start_s=2.0, gains={"beside": 1.4, "keeps": 3.0},
        traits=fed(pass_batch_count=50), life_count=200,
        first_pass_s=lambda plan: 9.0 if dict(plan.settings).get("keeps") else 0.0,
    ).tuning  # fmt: skip
    assert dict(seen.plan.settings) == {"beside": True}
    assert seen.speedup.is_gain
    told = {row.lever: row.outcome for row in seen.levers}
    assert told == {"beside": "kept", "keeps": "dropped"}


STAYS = Lever(
    name="stays", phases=frozenset({Phase.DATA}), effect=Effect.EXACT, scope=Scope.PROCESS,
    settings=lambda context: (True,), gain_ratio=50.0, snippet=str, why_not=lambda context: "",
    cures=frozenset({"stays-cost"}),
)  # fmt: skip


@pytest.fixture
def paused(tuned, monkeypatch):
    """Tune a script that waits at the head of each pass, under a lever that takes that away."""

    def run(*, budget_s, pass_count, pause_s, step_s, **details):
        levers = {"brisk": budget.LEVERS["brisk"], "stays": STAYS}
        plant(monkeypatch, levers)
        monkeypatch.setattr(budget, "LEVERS", levers)
        return tuned(
            budget_s, step_s=step_s, start_s=3.0, gains={"brisk": 1.0, "stays": 1.0},
            traits=fed(pass_batch_count=pass_count), pass_count=pass_count,
            pause_s=lambda plan: 0.0 if dict(plan.settings).get("stays") else pause_s,
            findings=(budget.names("stays", 0.4),), **details,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("budget_s", "pass_count", "pause_s", "step_s", "gain"),
    [(75.0, 10, 0.1, 0.005, 3.0), (75.0, 40, 0.15, 0.005, 1.75), (120.0, 250, 0.4, 0.002, 1.8)],
)
def test_what_a_pause_between_short_passes_costs_is_found(
    paused, *, budget_s, pass_count, pause_s, step_s, gain
) -> None:
    """In blocks of some steps most hold no pause, and a median hides those that do."""
    seen = paused(budget_s=budget_s, pass_count=pass_count, pause_s=pause_s, step_s=step_s)
    assert seen.late_ratio <= 1.0
    assert seen.tuning.plan == Plan().with_lever("stays", True)
    assert seen.tuning.races[0].speedup.mid_ratio == pytest.approx(gain, rel=0.05)
    assert seen.tuning.speedup.mid_ratio == pytest.approx(gain, rel=0.05)


def test_passes_that_a_budget_does_not_hold_are_no_blocks(paused) -> None:
    seen = paused(budget_s=75.0, pass_count=250, pause_s=0.4, step_s=0.02)
    assert seen.late_ratio <= 1.0
    assert not seen.tuning.plan.settings


@pytest.mark.parametrize(("ratio", "whole_ratio"), [(1.0, 1.13), (1.2, 1.02), (1.6, None)])
def test_an_evaluation_that_a_plan_makes_slower_counts(
    tuned, monkeypatch, ratio, whole_ratio
) -> None:
    """After each step of 20 ms the script evaluates for 20 ms."""
    levers = {"brisk": budget.LEVERS["brisk"]}
    plant(monkeypatch, levers)
    monkeypatch.setattr(budget, "LEVERS", levers)

    def phases(plan):
        faster, slower = (1.3, ratio) if plan.settings else (1.0, 1.0)
        return {Phase.FORWARD: 0.02 / faster, Phase.EVALUATION: 0.02 * slower}

    seen = tuned(
        300.0, step_s=0.02, start_s=2.0, gains={"brisk": 1.3}, phases=phases,
        traits=fed(pass_batch_count=1),
    ).tuning  # fmt: skip
    if whole_ratio is not None:
        assert seen.passes.whole.mid_ratio == pytest.approx(whole_ratio, rel=0.02)
        assert dict(seen.plan.settings) == {"brisk": True}
        return
    assert not seen.plan.settings
    (row,) = seen.levers
    assert row.reason == "evaluation"
    assert "took 1.60 times as long" in row.why


def test_rare_long_steps_lessen_the_gain_of_the_whole_training(tuned, monkeypatch) -> None:
    """Each three hundredth step of 20 ms takes two seconds, and no block holds as many."""
    levers = {"brisk": budget.LEVERS["brisk"]}
    plant(monkeypatch, levers)
    monkeypatch.setattr(budget, "LEVERS", levers)
    seen = tuned(
        300.0, step_s=0.02, start_s=2.0, gains={"brisk": 1.3},
        noise=lambda rng: (log(100) if not i % 300 else rng.gauss(0, 0.02) for i in count()),
    ).tuning  # fmt: skip
    assert seen.speedup.mid_ratio == pytest.approx(1.3, rel=0.03)
    whole, steps = seen.passes.whole, seen.speedup
    assert 1.15 < whole.mid_ratio < 1.25
    # A few were seen: how often they come is known less well than what a step gains.
    assert whole.high_ratio / whole.low_ratio > 1.02 * steps.high_ratio / steps.low_ratio


@pytest.mark.parametrize(("life_count", "is_kept"), [(200, False), (2000, True)])
def test_what_a_stop_leaves_is_judged_though_a_setting_beside_the_samples_has_changed(
    tuned, monkeypatch, life_count, is_kept
) -> None:
    """The race that brought them in had another setting of the lever beside them."""
    races, race = [], Races.race

    def stopped(self, *args, **details):
        if len(races) == 4:
            raise KeyboardInterrupt
        races.append(race(self, *args, **details))
        return races[-1]

    speedups = {2: 1.2, 4: 1.4, 8: 1.4}
    workers = replace(
        KEEPS, name="workers", settings=lambda context: tuple(speedups), warms_cache=False,
        promising=lambda context: True,
    )  # fmt: skip
    levers = {"keeps": replace(KEEPS, promising=lambda context: True), "workers": workers}
    monkeypatch.setattr(Races, "race", stopped)
    plant(monkeypatch, levers)
    monkeypatch.setattr(budget, "LEVERS", levers)
    seen = tuned(
        300.0, step_s=0.02, start_s=2.0, gains={"keeps": 2.0, "workers": speedups},
        traits=fed(pass_batch_count=50), life_count=life_count,
        first_pass_s=lambda plan: 2.6 if dict(plan.settings).get("keeps") else 0.0,
    ).tuning  # fmt: skip
    assert ("keeps" in seen.plan.levers) == is_kept
    assert dict(seen.plan.settings)["workers"] == (4 if is_kept else 2)
