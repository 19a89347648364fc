"""What the user granted reaches every process that hasten starts."""

import json
import os
from contextlib import contextmanager

import pytest

from hasten.lever import Lever
from hasten.records import Effect, Entry, Phase, Plan, Proof, Scope, Workload
from hasten.session import Options, run, settlement, setup, tuning_session
from hasten.session.recordings import open_prover
from hasten.session.setup import open_runner
from hasten.testing import LAPTOP, FakeScript, RecordingWatcher, plant, steady
from hasten.trials import recording, trial_process
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

GRANTED = frozenset({"dataset-unchanged"})
PLAN = Plan().with_lever("intra_op_threads", 1)


class Started(Exception):
    pass


@pytest.fixture
def workload(tmp_path):
    return Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python="python")


def starts(monkeypatch, module):
    def environment(plan, **told):
        raise Started(told["assumed"])

    monkeypatch.setattr(module, "environment", environment)
    return pytest.raises(Started, match="dataset-unchanged")


def test_trials_and_profiles_are_started_under_it(workload, monkeypatch):
    with (
        starts(monkeypatch, trial_process),
        open_runner(workload, Options(assumed=GRANTED), LAPTOP) as runner,
    ):
        runner.children.trial(PLAN)


def test_recorded_runs_are_started_under_it(workload, monkeypatch):
    with (
        starts(monkeypatch, recording),
        CompiledCode() as code,
        open_prover(
            workload, isolation=Isolation.NONE, step_s=0.01, start_s=0.1, patience_s=1.0,
            parameter_count=1, code=code, assumed=GRANTED,
        ) as prover,
    ):  # fmt: skip
        prover.prove(PLAN)


def test_a_real_run_is_started_under_it(workload, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda name, command, env: started.append(env))
    run(workload, PLAN, assumed=GRANTED)
    assert json.loads(started[0]["HASTEN_CHILD"])["assumed"] == ["dataset-unchanged"]


@pytest.mark.parametrize("granted", [GRANTED, frozenset()])
def test_a_tuning_offers_it_to_levers_and_to_the_proof(workload, monkeypatch, tmp_path, granted):
    proved_under = []

    class Prover:
        envelope, launch_count = None, 0

        def __init__(self, workload, *, assumed, **rest) -> None:
            proved_under.append(assumed)

        def __enter__(self):
            return self

        def __exit__(self, *raised) -> None: ...

        def prove(self, plan) -> Proof:
            return Proof(effect=Effect.EXACT)

    @contextmanager
    def opened(workload, options, facts, code, deadline):
        with TrialRunner(
            workload, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial,
        ) as runner:  # fmt: skip
            yield runner

    daring = Lever(
        name="daring", phases=frozenset({Phase.FORWARD}), effect=Effect.EXACT, scope=Scope.STEP,
        settings=lambda context: (True,) if context.assumed else (), gain_ratio=2.0,
        why_not=lambda context: "nothing is granted", snippet=lambda setting: "",
    )  # fmt: skip
    plant(monkeypatch, {"daring": daring})
    script = FakeScript(
        cost=lambda plan: 0.05 if plan.settings else 0.1, start_s=1.0, noise=steady(0.02)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hasten.trials.process.best_isolation", lambda cwd: Isolation.NONE)
    monkeypatch.setattr(setup, "doctor", lambda python, patience_s: LAPTOP)
    monkeypatch.setattr(setup, "open_runner", opened)
    monkeypatch.setattr(settlement, "open_prover", Prover)
    options = Options(budget_s=300.0, assumed=granted)
    tuning = tuning_session.TuningSession(
        workload, options, RecordingWatcher(), clock=script.clock
    ).tune()
    assert tuning.assumed == tuple(granted)
    assert dict(tuning.plan.settings) == ({"daring": True} if granted else {})
    assert proved_under == [granted] * bool(granted)
