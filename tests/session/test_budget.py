"""A budget is kept: whole tunings of scripts of arithmetic, in simulated time."""

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from math import inf
from types import SimpleNamespace

import pytest

import hasten.lever
from hasten.cli.arguments import FIRST_ANSWER_S
from hasten.errors import ChildLost, OutOfTime, TooFewSteps, Unprovable, UsageError
from hasten.lever import Lever
from hasten.records import (
    CONTENDED,
    Diagnosis,
    Effect,
    Entry,
    Finding,
    Gate,
    Interval,
    LeverReport,
    Outcome,
    Phase,
    Plan,
    Pressure,
    Proof,
    Reason,
    Scope,
    Traits,
    Tuning,
    Workload,
)
from hasten.report.events import Events
from hasten.report.plan_state import State, state_of
from hasten.session import Options, settlement, setup, tuning_session, watching
from hasten.session.decisions import Decisions
from hasten.session.examine import examine
from hasten.session.measured_costs import costs_of
from hasten.session.observe import observe
from hasten.session.races import Races
from hasten.testing import LAPTOP, FakeScript, RecordingWatcher, plant, steady
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner
from hasten.units import parse_duration
from hasten.verify.proof_runs import recorded_count

WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/nowhere", python="python")
DOCTOR_S = 3.0


BUNDLED = {"first": True}
NOTHING = Plan()


def lever(name, switch, effect=Effect.EXACT, **details):
    return Lever(
        name=name, phases=frozenset({Phase.FORWARD}), effect=effect, scope=switch,
        settings=lambda context: (True,), gain_ratio=2.0, snippet=lambda setting: name,
        why_not=lambda context: "it cannot help", promising=lambda context: BUNDLED["first"],
        cures=frozenset({f"{name}-cost"}), **details,
    )  # fmt: skip


LEVERS = {
    item.name: item
    for item in (
        lever("amiss", Scope.STEP, settle_count=1),
        lever("brisk", Scope.STEP, Effect.ROUNDING),
        lever("crowd", Scope.PROCESS, Effect.DISTRIBUTION, settle_count=4),
        lever("dawdle", Scope.LAUNCH),
        lever("early", Scope.LAUNCH),
    )
}
FASTER = {"amiss": 0.9, "brisk": 1.15, "crowd": 1.2, "dawdle": 1.0, "early": 1.05}


UNPROVABLE = "cannot be recorded"


def make_prover(script, *, slower_ratio, rejected):
    """Return a prover whose runs take simulated time: two at once, in waves."""

    class FakeProver:
        envelope = None

        def __init__(self, workload, *, step_s, start_s, deadline, **rest) -> None:
            self.launch_count = 0
            self.deadline = deadline
            self.run_s = slower_ratio * (script.start_s + recorded_count(step_s) * step_s)
            self.waves = 2

        def __enter__(self):
            return self

        def __exit__(self, *raised) -> None: ...

        def prove(self, plan) -> Proof:
            if not plan.settings:
                return Proof(effect=Effect.EXACT)
            if rejected == UNPROVABLE:
                raise Unprovable("KeyError: 'b'")
            exact = {LEVERS[name].effect for name, _ in plan.settings} == {Effect.EXACT}
            waves, self.waves = self.waves + (0 if exact else 1), 1
            self.launch_count += 2 * waves
            script.spend(waves * self.run_s, self.deadline)
            bad = bool(rejected & dict(plan.settings).keys())
            gates = (Gate(name="G3 rounding", passed=not bad, message="it differs"),)
            return Proof(effect=Effect.ROUNDING, gates=gates)

    return FakeProver


@dataclass
class Tuned:
    """How a simulated tuning ended."""

    tuning: Tuning
    late_ratio: float
    said: list[str]
    tried: set[str]


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """Tune a simulated script."""
    plant(monkeypatch, LEVERS)
    monkeypatch.setattr("hasten.trials.process.best_isolation", lambda cwd: Isolation.NONE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hasten.lever.discover() == LEVERS

    def run(
        budget_s, *, step_s, start_s, slower_ratio=1.3, rejected=frozenset(), gains=FASTER,
        training_s=None, watcher=None, slow_from_s=inf, applied=NOTHING, findings=(), first_s=inf,
        spent_s=0.0, **details,
    ) -> Tuned:  # fmt: skip
        def cost(plan):
            seconds = step_s * (3.0 if script.spent_s > slow_from_s else 1.0)
            for name, setting in plan.settings:
                gain = gains[name]  # one for each setting, or one for all
                seconds /= gain[setting] if isinstance(gain, dict) else gain
            return seconds

        script = FakeScript(cost=cost, start_s=start_s, **({"noise": steady(0.02)} | details))
        run.script = script

        @contextmanager
        def survey(python, *, patience_s):
            script.spent_s += min(DOCTOR_S, patience_s)
            yield SimpleNamespace(machine=LAPTOP, complete=lambda: LAPTOP)

        @contextmanager
        def open_runner(workload, options, facts, code, *, deadline):
            run.code = code
            with TrialRunner(
                workload, isolation=Isolation.NONE, patience_s=60.0,
                make_trial=partial(script.trial, deadline=deadline),
            ) as runner:  # fmt: skip
                yield runner

        def found(runner, plan, seen, machine, *, seconds, assumed):
            runner.steps(plan, int(seconds / step_s))
            return Diagnosis(findings=findings)

        if findings:
            monkeypatch.setattr(watching, "examine", found)
        monkeypatch.setattr(setup, "MachineSurvey", survey)
        monkeypatch.setattr(setup, "open_runner", open_runner)
        prover = make_prover(script, slower_ratio=slower_ratio, rejected=rejected)
        monkeypatch.setattr(settlement, "open_prover", prover)
        view = RecordingWatcher()
        options = Options(
            budget_s=budget_s, spent_s=spent_s, first_s=first_s, training_s=training_s,
            applied=applied,
        )  # fmt: skip
        own = tuning_session.TuningSession(WORKLOAD, options, watcher or view, clock=script.clock)
        tuning = own.tune()
        tried = {row.lever for row in tuning.levers if row.outcome != "skipped"}
        late_ratio = script.spent_s / budget_s
        return Tuned(tuning, late_ratio, view.said, tried)

    return run


STEPS_S = (0.005, 0.1, 0.5, 2.0)
STARTS_S = (2.0, 20.0)
BUDGETS_S = (60.0, 300.0, 600.0)
ENDED = "The budget ended the search"


@pytest.fixture
def one_by_one(monkeypatch) -> None:
    """Levers that are not tried together first."""
    monkeypatch.setitem(BUNDLED, "first", False)


SAID = (
    "A proved and confirmed answer for this script needs about",
    "What is left of the budget is too short for a proof",
)


def tune_within(tuned, budget_s, **details) -> Tuned | None:
    """Tune, and see that the budget was the cap; None where it is too short for any race."""
    try:
        seen = tuned(budget_s, **details)
    except UsageError as refused:
        told = re.search(r"needs about (.+)\.", refused.problem)
        assert parse_duration(told.group(1)) > 1.5 * budget_s
        assert details["step_s"] + details["start_s"] > budget_s / 20
        return None
    assert seen.late_ratio <= 1.0
    return seen


def is_told(seen) -> bool:
    """Whether a plan without a figure was said to become one while there was time."""
    assert seen.said[0].startswith(SAID)
    assert seen.said[0] in seen.tuning.notes
    return state_of(seen.tuning) in (State.UNPROVED, State.PROVED)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_a_budget_is_a_cap_and_what_it_cannot_confirm_is_said_first(
    tuned, step_s, start_s, budget_s
) -> None:
    seen = tune_within(tuned, budget_s, step_s=step_s, start_s=start_s)
    if seen is not None:
        assert seen.tried == set(LEVERS) or (seen.tried and is_told(seen))
        assert seen.tuning.plan.settings
        assert seen.tuning.speedup is not None or is_told(seen)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("budget_s", BUDGETS_S)
@pytest.mark.usefixtures("one_by_one")
def test_a_budget_is_a_cap_with_workers_and_levers_tried_one_by_one(
    tuned, step_s, start_s, budget_s
) -> None:
    seen = tune_within(
        tuned, budget_s, step_s=step_s, start_s=start_s, worker_count=2, fetch_s=step_s / 4
    )
    if seen is not None:
        ended = any(ENDED in note for note in seen.tuning.notes)
        assert seen.tuning.speedup or ended or is_told(seen)


def test_a_script_that_ends_too_soon_is_told_how_many_steps_are_needed(tuned) -> None:
    with pytest.raises(TooFewSteps, match=r"after 4 training steps.* needs at least 14"):
        tuned(60.0, step_s=0.01, start_s=1.0, life_count=4)


@pytest.mark.parametrize(
    ("fetch_s", "is_late"), [(0.01, False), (10.0, True)], ids=["kept up", "bursts"]
)
def test_workers_that_keep_up_take_no_time_from_a_short_budget(tuned, fetch_s, is_late) -> None:
    """Ten of them have twenty batches in flight: fourteen seconds of steps."""
    details = {"step_s": 0.7, "start_s": 4.0, "worker_count": 10, "fetch_s": fetch_s}
    seen = tune_within(tuned, 75.0, **details)
    assert (seen is None) is is_late
    assert is_late or seen.tuning.races


@pytest.mark.parametrize(
    ("fetch_s", "worker_count", "probe_count", "watch_count", "look_count"),
    [(0.01, 10, 0, 20, 8), (2.0, 2, 8, 8, 8), (8.0, 10, 0, 20, 20)],
    ids=["kept up", "seen to wait", "bursts"],
)
def test_slow_steps_are_watched_for_a_cycle_and_probed_where_they_wait(
    fetch_s, worker_count, probe_count, watch_count, look_count
) -> None:
    script = FakeScript(cost=lambda plan: 0.7, fetch_s=fetch_s, worker_count=worker_count)
    with TrialRunner(
        WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial
    ) as runner:
        child = runner.children.trial(NOTHING)
        before = child.step_count
        seen = observe(runner, NOTHING)
        assert seen.step_count == watch_count
        assert child.step_count - before == 3 + (probe_count and 1 + probe_count) + 1 + watch_count
        before = child.step_count
        examine(runner, NOTHING, seen, LAPTOP, seconds=2.0)
        assert child.step_count - before == look_count
        costs = costs_of(runner, seen, LAPTOP, baseline=NOTHING, candidate=NOTHING)
        assert costs.cycle_count == (1 if fetch_s < 1 else 2 * worker_count)


def test_how_long_a_step_takes_is_that_of_the_script_as_it_is(monkeypatch) -> None:
    plant(monkeypatch, LEVERS)
    script = FakeScript(cost=lambda plan: 0.1 if plan.settings else 0.3)
    with TrialRunner(
        WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial
    ) as runner:
        seen = observe(runner, NOTHING)
        assert observe(runner, BRISK).step_s < seen.step_s / 2
        assert runner.pace.step_s == pytest.approx(seen.step_s, rel=0.2)


def hangs_from(tuned, moment_s):
    return lambda plan: inf if tuned.script.spent_s > moment_s else 0.0


@pytest.mark.parametrize("hangs_at_s", [20.0, 40.0, 80.0, 200.0])
def test_a_child_that_hangs_later_is_ended_with_the_budget(tuned, hangs_at_s) -> None:
    seen = tuned(300.0, step_s=0.1, start_s=15.0, later_s=hangs_from(tuned, hangs_at_s))
    assert seen.tuning.out_of_time
    assert state_of(seen.tuning) in (State.UNPROVED, State.PROVED)
    assert tuned.script.spent_s == 299.0  # the rest is for the end


@pytest.mark.parametrize("training_s", [None, 1e6])
def test_what_compiles_stays_only_where_it_is_known_to_be_repaid(
    tuned, monkeypatch, training_s
) -> None:
    compiled = replace(LEVERS["brisk"], start_ratio=0.1)
    plant(monkeypatch, {**LEVERS, "brisk": compiled})
    seen = tuned(
        300.0, step_s=0.1, start_s=15.0, later_s=hangs_from(tuned, 80.0), training_s=training_s
    )
    (row,) = (row for row in seen.tuning.levers if row.lever == "brisk")
    assert seen.tuning.plan.settings
    assert ("brisk" in dict(seen.tuning.plan.settings)) is (training_s is not None)
    assert (row.outcome, row.reason) == (
        (Outcome.KEPT, None) if training_s else (Outcome.DROPPED, Reason.NOT_RACED_AGAIN)
    )


def others(ratio) -> Finding:
    """Return the finding that other processes take CPUs from the loop for a share of a step."""
    share = Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio)
    return Finding(name=CONTENDED, share=share, message="Others compute.", remedy="End them.")


def test_what_takes_cpus_and_won_no_race_stays_only_where_it_is_confirmed(
    tuned, monkeypatch
) -> None:
    plant(monkeypatch, {**LEVERS, "brisk": replace(LEVERS["brisk"], shares_cpus=lambda _: True)})
    monkeypatch.setattr(Decisions, "unshown", lambda self, plan: plan)
    details = {"step_s": 0.1, "start_s": 15.0}
    stopped = tuned(300.0, later_s=hangs_from(tuned, 80.0), **details).tuning
    (row,) = (row for row in stopped.levers if row.lever == "brisk")
    assert stopped.plan.settings
    assert "brisk" not in dict(stopped.plan.settings)
    assert "its race did not settle that" in row.why
    assert "brisk" in dict(tuned(600.0, **details).tuning.plan.settings)


def test_what_won_no_race_is_not_in_a_plan_that_nothing_confirmed(tuned) -> None:
    gains = dict.fromkeys(FASTER, 1.0) | {"brisk": 1.06}
    seen = tuned(90.0, step_s=0.1, start_s=5.0, gains=gains, noise=steady(0.1)).tuning
    (race,) = (one for one in seen.races if one.candidate.levers == {"brisk"})
    assert 1.0 < race.speedup.mid_ratio < 1.1
    assert not race.speedup.is_gain
    assert not seen.plan.settings
    (row,) = (row for row in seen.levers if row.lever == "brisk")
    assert (row.outcome, row.reason) == (Outcome.DROPPED, Reason.NOT_RACED_AGAIN)
    assert "its race did not settle that" in row.why


@pytest.mark.parametrize(("low_ratio", "is_shown"), [(0.96, False), (1.02, True)])
def test_a_lever_whose_interval_holds_no_gain_is_not_shown_to_gain(low_ratio, is_shown) -> None:
    plan = Plan().with_lever("brisk", True).with_lever("early", True)
    speedup = Interval(low_ratio=low_ratio, mid_ratio=1.13, high_ratio=1.3)
    row = LeverReport(
        lever="brisk", setting=True, outcome=Outcome.KEPT, why="", effect=Effect.EXACT,
        speedup=speedup,
    )  # fmt: skip
    decisions = Decisions(rows=[row])
    assert bool(decisions.unshown(plan).settings) is not is_shown


@pytest.mark.parametrize("beside", [True, False])
def test_what_wins_by_leaving_cpus_to_others_stays_only_where_it_is_confirmed(
    tuned, monkeypatch, beside
) -> None:
    shares = {"shares_cpus": lambda setting: True, "eases_contention": lambda setting: True}
    plant(monkeypatch, {**LEVERS, "brisk": replace(LEVERS["brisk"], **shares)})
    details = {"step_s": 0.1, "start_s": 15.0, "findings": (others(0.3 if beside else 0.05),)}
    stopped = tuned(300.0, later_s=hangs_from(tuned, 80.0), **details).tuning
    (row,) = (row for row in stopped.levers if row.lever == "brisk")
    assert stopped.plan.settings
    assert ("brisk" in dict(stopped.plan.settings)) is not beside
    assert ("only beside other processes" in row.why) is beside
    assert "brisk" in dict(tuned(600.0, **details).tuning.plan.settings)
    short = tuned(60.0, **details)
    assert short.said[0].startswith(SAID)
    raced = {name for race in short.tuning.races for name, _ in race.candidate.settings}
    assert ("brisk" in raced) is not beside


@pytest.mark.parametrize(("compiles", "kept"), [("crowd", True), ("amiss", False)])
def test_code_is_kept_for_a_plan_that_compiles(tuned, monkeypatch, compiles, kept) -> None:
    plant(monkeypatch, {**LEVERS, compiles: replace(LEVERS[compiles], patience_s=600.0)})
    seen = tuned(300.0, step_s=0.1, start_s=15.0)
    assert (compiles in dict(seen.tuning.plan.settings)) is kept
    assert tuned.code.kept == (setup.kept_code(WORKLOAD) if kept else None)


@pytest.mark.parametrize("spent_s", [0.0, 7.0])
def test_a_first_child_that_hangs_is_ended_with_the_budget(tuned, spent_s) -> None:
    with pytest.raises(UsageError, match="budget of 5m 00s holds no answer for this script"):
        tuned(300.0, step_s=0.1, start_s=15.0, later_s=hangs_from(tuned, 1.0), spent_s=spent_s)
    assert tuned.script.spent_s == 299.0 - spent_s


def test_a_budget_below_one_race_is_refused_after_the_first_step(tuned) -> None:
    with pytest.raises(UsageError, match="budget of 10 s holds no answer") as refused:
        tuned(10.0, step_s=0.1, start_s=6.0)
    assert tuned.script.spent_s < 10.0
    longer = re.search(r"--budget (\w+) or longer", refused.value.remedy).group(1)
    seen = tuned(parse_duration(longer), step_s=0.1, start_s=6.0)
    assert seen.tuning.speedup.is_gain


def test_where_the_first_race_does_not_fit_a_cheaper_one_is_run(tuned) -> None:
    seen = tuned(60.0, step_s=0.1, start_s=20.0)
    launched = {name for name, one in LEVERS.items() if one.scope is not Scope.STEP}
    assert seen.tried
    assert not seen.tried & launched
    assert is_told(seen)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_the_budget_that_was_called_for_is_enough(tuned, step_s) -> None:
    try:
        (said,) = tuned(60.0, step_s=step_s, start_s=7.0).said
    except UsageError as refused:
        said = refused.problem
    told = re.search(r"needs about (.+?)(,|\.$)", said)
    enough = tuned(1.02 * parse_duration(told.group(1)), step_s=step_s, start_s=7.0)
    assert not enough.said
    assert enough.late_ratio <= 1.0
    assert enough.tuning.speedup.is_gain


@pytest.mark.parametrize("step_s", [0.1, 1.0])
@pytest.mark.usefixtures("one_by_one")
def test_with_time_enough_every_lever_is_tried(tuned, step_s) -> None:
    seen = tuned(900.0, step_s=step_s, start_s=5.0)
    assert seen.tried == set(LEVERS)
    assert not any(ENDED in note for note in seen.tuning.notes)


@pytest.mark.usefixtures("one_by_one")
def test_a_budget_that_ended_the_search_says_which_one_goes_further(tuned) -> None:
    first = tuned(300.0, step_s=1.0, start_s=5.0)
    note = next(note for note in first.tuning.notes if ENDED in note)
    longer_s = parse_duration(re.search(r"--budget (\w+) or longer", note).group(1))
    assert longer_s > 300.0
    assert tuned(longer_s, step_s=1.0, start_s=5.0).tried - first.tried


@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("step_s", [0.1, 0.5])
def test_where_a_lever_is_rejected_the_rest_is_proved_in_time(tuned, step_s, start_s) -> None:
    seen = tuned(600.0, step_s=step_s, start_s=start_s, rejected={"brisk"})
    assert seen.late_ratio <= 1.0
    assert state_of(seen.tuning) in (State.CONFIRMED, State.PROVED)
    assert "brisk" not in dict(seen.tuning.plan.settings)


@pytest.mark.parametrize("blamed", ["brisk", "crowd", "early"])
def test_only_the_lever_to_blame_is_rejected(tuned, blamed) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, rejected={blamed}).tuning
    rejected = {row.lever for row in seen.levers if row.outcome == "rejected"}
    assert rejected == {blamed}
    assert {"brisk", "crowd", "early"} - set(dict(seen.plan.settings)) == {blamed}


def test_a_command_that_trains_in_several_processes_is_refused(tuned, monkeypatch) -> None:
    stock = TrialRunner.facts
    two = Traits(rank_count=2)
    monkeypatch.setattr(TrialRunner, "facts", lambda *args: replace(stock(*args), traits=two))
    with pytest.raises(UsageError, match="trains in 2 processes"):
        tuned(600.0, step_s=0.1, start_s=2.0)


def test_where_nothing_can_be_proved_that_is_said_once_and_nothing_is_changed(tuned) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, rejected=UNPROVABLE)
    assert not seen.tuning.plan.settings
    (why,) = [note for note in seen.tuning.notes if "nothing can be proved here" in note]
    assert "KeyError: 'b'" in why
    assert not any(row.outcome == "rejected" for row in seen.tuning.levers)


def test_what_a_gate_has_rejected_does_not_come_back_after_an_interrupt(tuned, monkeypatch) -> None:
    def interrupt(*args, **details):
        raise KeyboardInterrupt

    monkeypatch.setattr(Races, "confirm", interrupt)
    seen = tuned(600.0, step_s=0.1, start_s=2.0, rejected={"brisk"}).tuning
    assert seen.interrupted
    assert "early" in dict(seen.plan.settings)
    assert "brisk" not in dict(seen.plan.settings)


def test_an_interrupt_of_a_second_chance_leaves_what_is_proved(tuned) -> None:
    class Stops(RecordingWatcher):
        def stage(self, name, detail="") -> None:
            if name == "proof" and "crowd" in detail and "brisk" not in detail:
                raise KeyboardInterrupt  # the lever to blame is out, and this one may come back

    seen = tuned(600.0, step_s=0.1, start_s=2.0, rejected={"brisk"}, watcher=Stops()).tuning
    assert seen.interrupted
    assert "early" in dict(seen.plan.settings)
    assert not {"brisk", "crowd"} & dict(seen.plan.settings).keys()
    assert state_of(seen) is State.PROVED


def crash(*args, **details):
    raise ChildLost("The script was killed.", remedy="Look at its memory.")


def test_a_crash_in_the_confirmation_leaves_an_answer(tuned, monkeypatch) -> None:
    monkeypatch.setattr(Races, "confirm", crash)
    seen = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert not seen.plan.settings
    assert any("was not raced: The script was killed." in note for note in seen.notes)
    assert not any(row.outcome == "kept" for row in seen.levers)


def test_a_crash_after_the_confirmation_leaves_what_was_confirmed(tuned, monkeypatch) -> None:
    stock = settlement.observe

    def observe(runner, plan):
        return stock(runner, plan) if not plan.settings else crash()

    monkeypatch.setattr(settlement, "observe", observe)
    seen = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert seen.speedup.is_gain
    assert seen.tuned is None


@pytest.mark.parametrize(("round_number", "gain", "is_confirmed"), [
    (2, 1.3, False), (3, 1.3, True), (3, 1.0, False),
])  # fmt: skip
def test_an_interrupt_in_a_confirmation_keeps_the_rounds_that_are_enough(
    tuned, round_number, gain, is_confirmed
) -> None:
    gains = {**dict.fromkeys(LEVERS, 1.0), "early": 1.3}

    class Stops(RecordingWatcher):
        round_count, is_confirming = 0, False

        def stage(self, name, detail="") -> None:
            self.is_confirming = name == "confirmation"
            if self.is_confirming:
                gains["early"] = gain

        def race_begins(self, baseline, candidate) -> None:
            self.round_count += self.is_confirming
            if self.round_count == round_number:
                raise KeyboardInterrupt

    seen = tuned(600.0, step_s=0.1, start_s=2.0, gains=gains, watcher=Stops()).tuning
    assert (state_of(seen) is State.CONFIRMED) == is_confirmed
    assert seen.interrupted != is_confirmed
    assert "early" in dict(seen.plan.settings)


BRISK = Plan().with_lever("brisk", True)


def test_what_was_applied_by_hand_is_proved_though_nothing_else_helps(tuned) -> None:
    gains = dict.fromkeys(LEVERS, 0.97)
    seen = tuned(600.0, step_s=0.1, start_s=2.0, gains=gains, applied=BRISK).tuning
    assert seen.plan == BRISK
    assert seen.proof.gates
    assert seen.proof.effect is Effect.ROUNDING


@pytest.mark.parametrize(("applied", "beyond"), [(BRISK, " beyond what you set"), (NOTHING, "")])
def test_a_search_that_ends_with_nothing_does_not_deny_what_was_applied(
    tuned, applied, beyond
) -> None:
    class Stops(RecordingWatcher):
        def stage(self, name, detail="") -> None:
            if name == "search":
                raise KeyboardInterrupt

    gains = dict.fromkeys(LEVERS, 0.97)
    seen = tuned(
        600.0, step_s=0.1, start_s=2.0, gains=gains, applied=applied, watcher=Stops()
    ).tuning
    assert seen.plan == applied
    assert f"Interrupted: nothing{beyond} is kept." in " ".join(seen.notes)


def test_the_time_of_a_proof_counts_what_was_applied_by_hand(tuned, monkeypatch, tmp_path) -> None:
    """A lever that only rounds takes one more wave of runs than one that claims its bits."""
    needed_s = []
    for effect in (Effect.EXACT, Effect.ROUNDING):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / effect))  # no race is known
        applied = replace(LEVERS["brisk"], effect=effect)
        plant(monkeypatch, {"brisk": applied, "early": LEVERS["early"]})
        (said,) = tuned(60.0, step_s=0.1, start_s=7.0, applied=BRISK).said
        told = re.search(r"needs about (.+?),", said)
        needed_s.append(parse_duration(told.group(1)))
    exact_s, rounding_s = needed_s
    assert rounding_s > exact_s + 7.0


def test_where_what_was_applied_fails_no_other_lever_is_blamed(tuned) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, applied=BRISK, rejected={"brisk"}).tuning
    assert not seen.proof.holds
    assert seen.plan == BRISK
    whys = {row.why for row in seen.levers if row.outcome == "dropped"}
    assert f"{BRISK} fails alone" in whys
    assert not any(row.outcome == "rejected" for row in seen.levers)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_search_that_finds_nothing_keeps_the_budget_too(tuned, step_s) -> None:
    seen = tuned(300.0, step_s=step_s, start_s=2.0, gains=dict.fromkeys(LEVERS, 0.97))
    assert not seen.tuning.plan.settings
    assert seen.late_ratio <= 1.0


def test_a_script_that_ends_early_keeps_the_budget_too(tuned) -> None:
    seen = tuned(300.0, step_s=0.05, start_s=4.0, life_count=120)
    assert seen.late_ratio <= 1.0
    assert seen.tuning.speedup.is_gain


@pytest.mark.parametrize("step_s", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("first", [True, False])
def test_where_nothing_helps_it_is_told_within_a_minute(tuned, monkeypatch, step_s, first) -> None:
    monkeypatch.setitem(BUNDLED, "first", first)
    seen = tuned(300.0, step_s=step_s, start_s=3.0, gains=dict.fromkeys(LEVERS, 1.0))
    assert not seen.tuning.plan.settings
    assert seen.tuning.cost.wall_s < 60.0
    assert all("x" in row.why for row in seen.tuning.levers)


def test_where_no_trial_is_worth_its_time_the_script_is_not_even_raced(tuned) -> None:
    seen = tuned(300.0, step_s=1.0, start_s=20.0, training_s=60.0)
    assert not seen.tried
    assert seen.tuning.noise is None
    assert all("to cost" in row.why for row in seen.tuning.levers)
    assert any("cost more than it saves in 1m 00s" in note for note in seen.tuning.notes)


def test_before_and_after_are_of_the_same_moment(tuned) -> None:
    seen = tuned(300.0, step_s=0.1, start_s=2.0, slow_from_s=20.0).tuning
    assert seen.tuned.samples_per_s / seen.baseline.samples_per_s == pytest.approx(
        seen.means_ratio, rel=0.01
    )
    assert seen.baseline.step_s == pytest.approx(0.3, rel=0.05)


def late_start(plan) -> float:
    return 40.0 if "brisk" in dict(plan.settings) else 0.0


def test_a_plan_that_starts_late_says_when_that_is_paid_back(tuned) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, later_s=late_start, training_s=8 * 3600.0)
    assert "brisk" in dict(seen.tuning.plan.settings)
    (note,) = [note for note in seen.tuning.notes if "paid back after" in note]
    assert "40 s later" in note


@pytest.mark.parametrize(
    ("known", "length"), [({"training_s": 100.0}, "1m 40s"), ({"life_count": 60}, "6 s")]
)
def test_a_plan_whose_start_costs_more_than_it_saves_is_not_taken(tuned, known, length) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, later_s=late_start, **known)
    assert "brisk" not in dict(seen.tuning.plan.settings)
    row = next(row for row in seen.tuning.levers if row.lever == "brisk")
    assert row.outcome == "dropped"
    assert re.search(rf"starts 40 s later and saves .* in {length} of training", row.why)


@pytest.mark.usefixtures("one_by_one")
def test_each_lever_that_the_budget_left_out_says_what_its_race_needs(tuned) -> None:
    seen = tuned(300.0, step_s=1.0, start_s=5.0)
    left_out = [row for row in seen.tuning.levers if row.lever not in seen.tried]
    assert left_out
    for row in left_out:
        assert re.fullmatch(
            r"not tried: (its race needs about .+, and .+ were left of the budget|"
            r"what is left of the budget is kept for the proof and the confirmation); "
            r"it could give at most 2\.00x",
            row.why,
        )


def test_who_looks_on_hears_the_whole_story_in_order(tuned) -> None:
    stream = BytesIO()
    stream.close = lambda: None
    with Events(stream) as events:
        seen = tuned(300.0, step_s=0.02, start_s=2.0, watcher=events)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    races = [line for line in lines if "race" in line]
    for number in range(1, races[-1]["race"] + 1):
        own = [line for line in races if line["race"] == number]
        kinds = [line["event"] for line in own]
        assert (kinds[0], kinds[-1]) == ("race_begins", "race_ends")
        assert kinds.count("pair") == own[-1]["pairs"]
    begun = [line["stage"] for line in races if line["event"] == "race_begins"]
    assert begun == sorted(begun, key=["noise", "search", "confirmation"].index)
    assert (begun[0], begun[-1]) == ("noise", "confirmation")
    leaders = [line["plan"] for line in lines if line["event"] == "incumbent"]
    assert leaders[-1] == dict(seen.tuning.plan.settings)
    names = [line["event"] for line in lines]
    assert names.index("profile") < names.index("race_begins")


def names(lever, ratio) -> Finding:
    """Return a finding that says what share of a step a lever can take away."""
    share = Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio)
    return Finding(name=f"{lever}-cost", message="It costs time.", remedy="Mend it.", share=share)


def order(seen) -> list[str]:
    """Return what the races of a tuning turned, in order."""
    races = [race.baseline.differing(race.candidate) for race in seen.tuning.races]
    return ["+".join(sorted(race)) for race in races]


SMALL = {"amiss": 1.04, "brisk": 1.0, "crowd": 1.0, "dawdle": 1.0, "early": 1.0}


@pytest.mark.parametrize("named", ["brisk", "crowd", "dawdle", "early"])
@pytest.mark.parametrize("start_s", [2.0, 4.0, 6.0])
@pytest.mark.usefixtures("one_by_one")
def test_what_a_finding_names_is_found_within_75_seconds(tuned, named, start_s) -> None:
    details = {"step_s": 0.02, "start_s": start_s, "gains": SMALL | {named: 1.7}}
    seen = tuned(75.0, findings=(names("amiss", 0.04), names(named, 0.43)), **details)
    assert seen.late_ratio <= 1.0
    assert named in order(seen)[0]
    assert named in dict(seen.tuning.plan.settings)
    assert seen.tuning.speedup is None or seen.tuning.speedup.is_gain


@pytest.mark.usefixtures("one_by_one")
def test_a_short_search_does_not_end_on_a_small_gain_while_a_larger_one_is_named(tuned) -> None:
    findings = (names("amiss", 0.5), names("brisk", 0.45))
    gains = SMALL | {"brisk": 1.7}
    seen = tuned(40.0, step_s=0.02, start_s=4.0, gains=gains, findings=findings)
    assert seen.said[0].startswith(SAID)
    assert order(seen)[:2] == ["amiss", "brisk"]
    assert "brisk" in dict(seen.tuning.plan.settings)
    assert seen.late_ratio <= 1.0


BURSTS = {"worker_count": 10, "fetch_s": 10.0}


@pytest.mark.parametrize("is_late", [False, True], ids=["after the look", "by the first race"])
def test_a_budget_that_is_refused_late_does_not_hide_what_was_found(
    tuned, monkeypatch, is_late
) -> None:
    if is_late:
        monkeypatch.setattr(watching, "refuse_too_short", lambda *args, **details: None)
    few = replace(names("brisk", 0.43), lever="brisk")
    other, last = names("early", 0.04), replace(names("amiss", 0.01), share=None)
    busy = others(0.2)
    for findings in ((few, busy, other, last), (few,)):
        with pytest.raises(UsageError, match="holds no answer") as refused:
            tuned(100.0, step_s=0.7, start_s=4.0, findings=findings, **BURSTS)
        first, *lines = refused.value.remedy.splitlines()
        assert first.startswith("Give it --budget ")
        told = ["brisk-cost costs 43%: It costs time. The lever brisk is a cure."]
        if busy in findings:
            told.append("contended-machine costs 20%: Others compute.")
            told.append("early-cost costs 4%: It costs time.")
            assert "Other processes keep the CPUs busy" in lines.pop(0)
        assert lines == told


def test_a_budget_that_ends_with_the_look_at_the_script_says_what_was_found(tuned) -> None:
    with pytest.raises(UsageError, match="holds no answer") as refused:
        tuned(70.0, step_s=2.0, start_s=20.0, findings=(names("brisk", 0.43), others(0.3)))
    _, busy, *lines = refused.value.remedy.splitlines()
    assert "`hasten findings contended-machine`" in busy
    assert lines[0] == "brisk-cost costs 43%: It costs time."
    assert tuned.script.spent_s < 60.0


def test_a_budget_that_holds_no_look_at_the_script_is_refused_by_its_first_steps(tuned) -> None:
    with pytest.raises(UsageError, match="holds no answer"):
        tuned(75.0, step_s=5.0, start_s=8.0)
    assert tuned.script.spent_s < 60.0


@pytest.mark.parametrize(
    ("pressure", "is_told"),
    [
        (Pressure(), False),
        (Pressure(cpu_some_ratio=0.2, load_ratio=0.9), False),
        (Pressure(cpu_some_ratio=0.3), True),
        (Pressure(load_ratio=2.0), True),
    ],
)
def test_a_refusal_without_a_look_says_that_the_machine_was_busy(pressure, is_told) -> None:
    refused = UsageError("Too short.", remedy="Give it more.")
    machine = replace(LAPTOP, pressure=pressure)
    told = watching.with_findings(refused, Diagnosis(), machine).remedy
    assert ("Other processes keep the CPUs busy" in told) is is_told
    seen = watching.with_findings(refused, Diagnosis(findings=(names("brisk", 0.4),)), machine)
    assert "Other processes" not in seen.remedy  # the look saw none


class Raced(RecordingWatcher):
    """Keeps what is raced, with the children that have been started by then."""

    def __init__(self, run) -> None:
        super().__init__()
        self.run, self.looked_count, self.begun = run, 0, []

    def found(self, diagnosis) -> None:
        self.looked_count = self.run.script.launch_count

    def race_grows(self, pairs, interval) -> None:
        self.begun.append(self.run.script.launch_count)

    def race_begins(self, baseline, candidate) -> None:
        self.begun.append((baseline, candidate))


def test_the_child_of_the_closer_look_is_not_raced(tuned) -> None:
    """A look leaves marks, such as what glibc keeps: its child may be faster than any run."""
    races = Raced(tuned)
    tuned(300.0, step_s=0.02, start_s=2.0, watcher=races)
    assert races.looked_count == 1
    assert races.begun[:2] == [(NOTHING, NOTHING), 3]


@pytest.mark.parametrize(("budget_s", "is_raced"), [(90.0, True), (72.0, False)])
def test_where_time_is_short_the_script_is_not_raced_against_itself(
    tuned, budget_s, is_raced
) -> None:
    races = Raced(tuned)
    seen = tuned(budget_s, step_s=0.02, start_s=4.0, watcher=races)
    assert ((NOTHING, NOTHING) in races.begun) is is_raced
    assert not races.said
    assert seen.tuning.speedup.is_gain
    assert seen.late_ratio <= 1.0


class Hears(RecordingWatcher):
    """Keeps what is known, with the moment."""

    def __init__(self, run) -> None:
        super().__init__()
        self.known_at = []
        self.run = run

    def known(self, text) -> None:
        self.known_at.append((self.run.script.spent_s, text))

    def said_first(self) -> list[float]:
        return [at for at, text in self.known_at if text.startswith("first answer")]


DEFAULT = {"budget_s": 300.0, "first_s": FIRST_ANSWER_S}


@pytest.mark.parametrize("step_s", [0.005, 0.03, 0.09])
@pytest.mark.parametrize("start_s", [2.0, 3.0])
def test_a_first_answer_is_there_within_90_seconds_and_is_said(tuned, step_s, start_s) -> None:
    hears = Hears(tuned)
    seen = tuned(step_s=step_s, start_s=start_s, watcher=hears, **DEFAULT)
    assert seen.tuning.speedup.is_gain
    assert [*hears.said_first(), tuned.script.spent_s][0] <= 90.0
    assert tuned.script.spent_s <= 300.0


MANY = {"first_s": 70.0, "budget_s": 300.0, "step_s": 0.05, "start_s": 3.0}


@pytest.mark.usefixtures("one_by_one")
def test_after_a_first_answer_the_search_goes_on_while_that_pays(tuned) -> None:
    hears = Hears(tuned)
    seen = tuned(watcher=hears, training_s=24 * 3600.0, **MANY)
    (first,) = [text for _, text in hears.known_at if text.startswith("first answer")]
    assert "Ctrl-C keeps this answer" in first
    assert seen.tuning.speedup.is_gain
    assert {"brisk", "crowd", "early"} == set(dict(seen.tuning.plan.settings))


@pytest.mark.usefixtures("one_by_one")
def test_after_a_first_answer_a_short_training_is_not_searched_for(tuned) -> None:
    seen = tuned(training_s=400.0, **MANY)
    assert seen.tuning.speedup.is_gain
    assert tuned.script.spent_s <= 80.0
    assert not any(ENDED in note for note in seen.tuning.notes)  # 220 seconds of it are left
    assert any("cost more than it saves in 6m 40s" in note for note in seen.tuning.notes)


@pytest.mark.usefixtures("one_by_one")
def test_what_the_second_part_found_out_is_told_beside_the_first_answer(tuned) -> None:
    gains = {**dict.fromkeys(LEVERS, 1.0), "brisk": 1.3}
    hears = Hears(tuned)
    seen = tuned(watcher=hears, gains=gains, training_s=24 * 3600.0, **MANY).tuning
    assert hears.said_first()
    assert seen.plan == BRISK
    raced = {name for race in seen.races for name in race.baseline.differing(race.candidate)}
    rows = {row.lever: row for row in seen.levers}
    assert len(raced) > 1
    assert all(rows[name].outcome != "skipped" for name in raced)
    assert not any(ENDED in note for note in seen.notes)


@pytest.mark.usefixtures("one_by_one")
def test_a_second_answer_that_is_hardly_faster_does_not_replace_the_first(
    tuned, monkeypatch
) -> None:
    stock, confirmed = Races.confirm, []

    def confirm(self, plan, *, until_s):
        seen = stock(self, plan, until_s=until_s)
        confirmed.append((plan, seen))
        if len(confirmed) == 1:
            return seen
        first = confirmed[0][1]
        low, mid, high = (1.01 * ratio for ratio in (
            first.speedup.low_ratio, first.speedup.mid_ratio, first.speedup.high_ratio,
        ))  # fmt: skip
        speedup = Interval(low_ratio=low, mid_ratio=mid, high_ratio=high)
        return replace(seen, speedup=speedup)

    monkeypatch.setattr(Races, "confirm", confirm)
    seen = tuned(training_s=24 * 3600.0, **MANY).tuning
    (first, _), (second, _) = confirmed
    assert seen.plan == first != second
    for row in seen.levers:
        if row.lever in first.differing(second):
            assert row.outcome == "dropped"
            assert "no plan with it was confirmed to be faster" in row.why


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("ends", [KeyboardInterrupt, OutOfTime])
def test_whatever_ends_the_second_part_the_first_answer_is_kept(tuned, ends) -> None:
    class Ends(Hears):
        def race_begins(self, baseline, candidate) -> None:
            if self.said_first():
                raise ends

    hears = Ends(tuned)
    seen = tuned(watcher=hears, training_s=24 * 3600.0, **MANY).tuning
    assert hears.said_first()
    assert state_of(seen) is State.CONFIRMED
    assert not seen.unfinished


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("budget_s", [75.0, 90.0])
def test_a_race_that_starts_late_leaves_time_to_confirm_what_is_known(tuned, budget_s) -> None:
    """As where a compiler takes far longer than the start of the script suggests."""

    def late(plan):
        return 50.0 if "early" in dict(plan.settings) else 0.0

    hears = Hears(tuned)
    gains = {**dict.fromkeys(LEVERS, 1.0), "brisk": 1.5, "early": 2.0}
    seen = tuned(
        budget_s, step_s=0.05, start_s=2.0, gains=gains, later_s=late, watcher=hears,
        training_s=24 * 3600.0, slower_ratio=1.0,
    )  # fmt: skip
    assert any("early=True: stopped" in text for _, text in hears.known_at)
    assert state_of(seen.tuning) is State.CONFIRMED
    assert seen.tuning.plan == BRISK
    (row,) = [row for row in seen.tuning.levers if row.lever == "early"]
    assert row.outcome == "skipped"
    assert seen.late_ratio <= 1.0


@pytest.mark.usefixtures("one_by_one")
def test_after_a_gate_has_rejected_a_lever_the_others_are_tried(tuned) -> None:
    hears = Hears(tuned)
    gains = {**FASTER, "brisk": 1.3}
    seen = tuned(
        watcher=hears, training_s=24 * 3600.0, rejected={"brisk"}, gains=gains, **MANY
    ).tuning
    assert hears.said_first() or any("no gain is confirmed" in text for _, text in hears.known_at)
    assert {"crowd", "early"} <= dict(seen.plan.settings).keys()
    (row,) = [row for row in seen.levers if row.lever == "brisk"]
    assert row.outcome == "rejected"


@pytest.fixture
def refuted(monkeypatch) -> list[Plan]:
    """Return the first plan that is confirmed: its launches differ by as much as it gives."""
    stock, lost = Races.confirm, []

    def confirm(self, plan, *, until_s):
        seen = stock(self, plan, until_s=until_s)
        lost.append(plan)
        if plan != lost[0]:
            return seen
        ratios = Interval(low_ratio=0.99, mid_ratio=1.05, high_ratio=1.11)
        return replace(seen, speedup=ratios, means_ratio=1.05, usual_means_ratio=1.05)

    monkeypatch.setattr(Races, "confirm", confirm)
    return lost


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("ends", [KeyboardInterrupt, OutOfTime])
@pytest.mark.parametrize("ended", ["search", "proof", "confirmation"])
def test_what_ends_the_second_part_leaves_what_it_found_where_nothing_is_confirmed(
    tuned, tmp_path, refuted, ended, ends
) -> None:
    class Ends(Hears):
        def leads(self, plan) -> None:
            if refuted and ended == "search":
                raise ends

        def stage(self, name, detail="") -> None:
            if self.goes_on() and name == ended != "search":
                raise ends

        def goes_on(self) -> bool:
            return any(text.startswith("no gain is confirmed") for _, text in self.known_at)

    seen = tuned(watcher=Ends(tuned), training_s=24 * 3600.0, **MANY).tuning
    found = dict(seen.plan.settings)
    assert found
    assert not found.keys() & dict(refuted[0].settings).keys()
    assert state_of(seen) is (State.PROVED if ended == "confirmation" else State.UNPROVED)
    assert (seen.interrupted, seen.out_of_time) == (ends is KeyboardInterrupt, ends is OutOfTime)
    rows = {row.lever: row.outcome for row in seen.levers}
    assert {lever for lever, outcome in rows.items() if outcome == "kept"} == found.keys()
    raced = {lever for race in seen.races for lever, _ in race.candidate.settings}
    assert not raced & {lever for lever, outcome in rows.items() if outcome == "skipped"}
    assert "The same command goes on from here." in seen.notes[-1]
    assert list(tmp_path.rglob("*.jsonl"))


@pytest.mark.usefixtures("one_by_one")
def test_where_launches_refute_a_first_answer_the_others_are_tried(tuned, refuted) -> None:
    hears = Hears(tuned)
    seen = tuned(watcher=hears, training_s=24 * 3600.0, **MANY).tuning
    assert any("no gain is confirmed" in text for _, text in hears.known_at)
    assert state_of(seen) is State.CONFIRMED
    assert not dict(refuted[0].settings).keys() & dict(seen.plan.settings).keys()


@pytest.mark.usefixtures("one_by_one")
def test_what_launches_leave_open_in_little_time_is_confirmed_in_more(tuned, monkeypatch) -> None:
    stock, confirmed = Races.confirm, []

    def confirm(self, plan, *, until_s):
        confirmed.append((plan, until_s))
        seen = stock(self, plan, until_s=until_s)
        if len(confirmed) > 1:
            return seen
        ratios = Interval(low_ratio=0.99, mid_ratio=1.05, high_ratio=1.11)
        return replace(seen, speedup=ratios, means_ratio=1.05, usual_means_ratio=1.05)

    monkeypatch.setattr(Races, "confirm", confirm)
    seen = tuned(training_s=24 * 3600.0, **MANY).tuning
    assert state_of(seen) is State.CONFIRMED
    (first, first_s), (second, second_s), *_ = confirmed
    assert first == second
    assert first_s < MANY["first_s"] < second_s <= MANY["budget_s"]


@pytest.mark.usefixtures("one_by_one")
def test_an_interrupt_of_the_last_look_ends_the_tuning_with_what_is_confirmed(
    tuned, monkeypatch
) -> None:
    stock = settlement.observe

    def observe(runner, plan):
        if plan.settings:
            raise KeyboardInterrupt
        return stock(runner, plan)

    monkeypatch.setattr(settlement, "observe", observe)
    hears = Hears(tuned)
    seen = tuned(watcher=hears, training_s=24 * 3600.0, **MANY).tuning
    assert not hears.said_first()
    assert state_of(seen) is State.CONFIRMED
    assert tuned.script.spent_s <= 90.0


def test_a_search_that_goes_on_in_too_short_a_budget_measures_its_noise(tuned) -> None:
    class Stops(RecordingWatcher):
        race_count = 0

        def race_begins(self, baseline, candidate) -> None:
            self.race_count += bool(candidate.settings)
            if self.race_count == 2:
                raise KeyboardInterrupt

    details = {"step_s": 0.1, "start_s": 2.0, "gains": dict.fromkeys(LEVERS, 1.0)}
    assert len(tuned(300.0, watcher=Stops(), **details).tuning.races) == 1
    seen = tuned(30.0, **details).tuning
    assert not seen.plan.settings
    assert seen.noise is not None or len(seen.races) == 1


def test_without_a_gain_the_default_ends_or_says_that_it_goes_on(tuned) -> None:
    hears = Hears(tuned)
    gains = dict.fromkeys(LEVERS, 1.0)
    tuned(step_s=0.02, start_s=3.0, gains=gains, watcher=hears, **DEFAULT)
    assert tuned.script.spent_s <= 90.0 or any("no gain in" in text for _, text in hears.known_at)
