"""Loops whose times repeat after some steps are raced in blocks of whole periods."""

import random
from math import inf, log

import pytest

from hasten import session
from hasten.lever import Lever
from hasten.records import Effect, Entry, Phase, Plan, Scope, Verdict, Workload
from hasten.search.proposal import Kind, propose_race
from hasten.session.observe import observe
from hasten.session.races import Races
from hasten.testing import FakeScript, RecordingWatcher, plant, steady
from hasten.trials.plan_statistics import period
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/nowhere", python="python")
FASTER = Plan().with_lever("brisk", True)


def rollouts(every, *, times=10.0, sd_ratio=0.03):
    """Return noise in which each so many steps one takes so many times as long."""
    return lambda rng: (
        rng.gauss(0.0, sd_ratio) + (log(times) if not i % every else 0.0) for i in range(10**6)
    )


@pytest.fixture
def raced(monkeypatch):
    """Measure the noise of a script, and race a lever that gains a tenth."""
    lever = Lever(
        name="brisk", phases=frozenset({Phase.FORWARD}), effect=Effect.EXACT, scope=Scope.STEP,
        settings=lambda context: (True,), gain_ratio=2.0, snippet=str, why_not=lambda context: "",
    )  # fmt: skip
    plant(monkeypatch, {"brisk": lever})

    def run(noise):
        script = FakeScript(
            cost=lambda plan: 0.01 / (1.1 if plan.settings else 1.0), start_s=2.0, noise=noise
        )
        with TrialRunner(
            WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial,
        ) as runner:  # fmt: skip
            observe(runner, Plan())
            races = Races(
                runner, session.Options(budget_s=120.0), RecordingWatcher(), clock=script.clock
            )
            sd_ratio = races.measure_noise().sd_ratio
            race = races.race(propose_race(Kind.TOGGLE, Plan(), FASTER, ()), 5.0, most_s=inf)
            return runner.rhythm.period_count, sd_ratio, race.verdict

    return run


@pytest.mark.parametrize("every", [2, 5, 16, 60])
def test_one_long_step_in_some_is_no_noise(raced, every) -> None:
    period_count, sd_ratio, verdict = raced(rollouts(every))
    assert period_count % every == 0
    assert sd_ratio < 0.1
    assert verdict is Verdict.WIN


@pytest.mark.parametrize(("every", "pass_count"), [(5, 37), (11, 68), (10, 100), (20, 100)])
def test_what_is_logged_every_few_steps_begins_anew_with_each_pass(every, pass_count) -> None:
    rng = random.Random(1)
    logged = [3.5 if index % pass_count % every == 0 else 1.0 for index in range(240)]
    assert period([0.02 * times * rng.lognormvariate(0.0, 0.2) for times in logged]) == every


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_long_steps_at_random_have_no_period(share) -> None:
    rng = random.Random(2)
    found = [
        period([0.02 * (4.0 if rng.random() < share else 1.0) for _ in range(160)])
        for _ in range(50)
    ]
    assert sum(count > 1 for count in found) <= 2


def test_steps_that_are_alike_are_raced_one_by_one(raced) -> None:
    assert raced(steady(0.05))[0] == 1


@pytest.mark.parametrize("count", [24, 60, 400])
def test_noise_has_no_period(count) -> None:
    rng = random.Random(count)
    found = [
        period([rng.lognormvariate(0.0, 0.3) for _ in range(count)]) for _ in range(200)
    ]  # fmt: skip
    assert sum(each > 1 for each in found) <= 2


def test_neither_a_drift_nor_two_pauses_nor_few_steps_are_a_period() -> None:
    assert period([1.0 + 0.01 * i for i in range(200)]) == 1
    assert period([9.0 if i in (50, 90) else 1.0 for i in range(200)]) == 1
    assert period([9.0, 1.0, 1.0] * 5) == 1
    assert period([1.0] * 100) == 1
