"""A budget is kept: whole tunings of scripts of arithmetic, in simulated time."""

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import inf

import pytest

import upshift.lever
from upshift import session
from upshift.errors import ChildLost, UsageError
from upshift.launch.bench import Bench
from upshift.launch.process import Isolation
from upshift.lever import Lever
from upshift.records import Effect, Entry, Gate, Phase, Plan, Proof, Switch, Tuning, Workload
from upshift.report.events import Events
from upshift.session import Options, tuner
from upshift.session.costs import recorded_count
from upshift.session.proof import Unprovable
from upshift.session.races import Races
from upshift.testing import LAPTOP, FakeScript, Listener, plant, steady
from upshift.units import parse_duration

LATE_RATIO = 1.15
WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/nowhere", python="python")
DOCTOR_S = 3.0


BUNDLED = {"first": True}
NOTHING = Plan()


def lever(name, switch, effect=Effect.EXACT, **details):
    return Lever(
        name=name, phases=frozenset({Phase.FORWARD}), effect=effect, switch=switch,
        settings=lambda scene: (True,), gain_ratio=2.0, lines=lambda setting: name,
        why_not=lambda scene: "it cannot help", promising=lambda scene: BUNDLED["first"], **details,
    )  # fmt: skip


LEVERS = {
    item.name: item
    for item in (
        lever("amiss", Switch.STEP, settle_count=1),
        lever("brisk", Switch.STEP, Effect.ROUNDING),
        lever("crowd", Switch.CHILD, Effect.REDRAW, settle_count=4),
        lever("dawdle", Switch.LAUNCH),
        lever("early", Switch.LAUNCH),
    )
}
FASTER = {"amiss": 0.9, "brisk": 1.15, "crowd": 1.2, "dawdle": 1.0, "early": 1.05}


UNPROVABLE = "cannot be recorded"


def make_prover(script, *, slower_ratio, rejected):
    """Return a prover whose runs take simulated time: two at once, in waves."""

    class FakeProver:
        band = None

        def __init__(self, workload, *, step_s, start_s, **rest) -> None:
            self.launch_count = 0
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
            script.spent_s += waves * self.run_s
            bad = bool(rejected & dict(plan.settings).keys())
            gates = (Gate(name="G3 rounding", passed=not bad, says="it differs"),)
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
    monkeypatch.setattr("upshift.launch.process.best_isolation", lambda cwd: Isolation.NONE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert upshift.lever.discover() == LEVERS

    def run(
        budget_s, *, step_s, start_s, slower_ratio=1.3, rejected=frozenset(), gains=FASTER,
        training_s=None, watcher=None, slow_from_s=inf, pulled=NOTHING,
        **details,
    ) -> Tuned:  # fmt: skip
        def cost(plan):
            seconds = step_s * (3.0 if script.spent_s > slow_from_s else 1.0)
            for name, _ in plan.settings:
                seconds /= gains[name]
            return seconds

        script = FakeScript(cost=cost, start_s=start_s, noise=steady(0.02), **details)

        def doctor(python):
            script.spent_s += DOCTOR_S
            return LAPTOP

        @contextmanager
        def open_bench(workload, options, facts, code):
            with Bench(
                workload, isolation=Isolation.NONE, patience_s=60.0, make_arm=script.arm,
                clock=script.clock,
            ) as bench:  # fmt: skip
                yield bench

        monkeypatch.setattr(session, "doctor", doctor)
        monkeypatch.setattr(session, "open_bench", open_bench)
        prover = make_prover(script, slower_ratio=slower_ratio, rejected=rejected)
        monkeypatch.setattr(tuner, "Prover", prover)
        view = Listener()
        options = Options(budget_s=budget_s, training_s=training_s, pulled=pulled)
        own = tuner.Tuner(WORKLOAD, options, watcher or view, clock=script.clock)
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


def kept(seen) -> bool:
    """Whether the budget was kept, or it was said at once that it cannot be."""
    return "needs about" in seen.said[0] if seen.said else seen.late_ratio <= LATE_RATIO


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_a_budget_is_kept_and_holds_a_proved_answer(tuned, step_s, start_s, budget_s) -> None:
    seen = tuned(budget_s, step_s=step_s, start_s=start_s)
    assert kept(seen)
    assert seen.tried == set(LEVERS)
    assert seen.tuning.speedup.is_gain


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("budget_s", BUDGETS_S)
@pytest.mark.usefixtures("one_by_one")
def test_a_budget_is_kept_with_workers_and_levers_tried_one_by_one(
    tuned, step_s, start_s, budget_s
) -> None:
    seen = tuned(budget_s, step_s=step_s, start_s=start_s, worker_count=2, fetch_s=step_s / 4)
    assert kept(seen)
    assert seen.tuning.speedup or any(ENDED in note for note in seen.tuning.notes)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_the_budget_that_was_called_for_is_enough(tuned, step_s) -> None:
    short = tuned(30.0, step_s=step_s, start_s=7.0)
    told = re.search(r"needs about (.+), more than", short.said[0])
    assert short.said[0] in short.tuning.notes
    needed_s = parse_duration(told.group(1))
    enough = tuned(1.02 * needed_s, step_s=step_s, start_s=7.0)
    assert not enough.said
    assert enough.late_ratio <= LATE_RATIO
    assert enough.tuning.speedup.is_gain
    assert short.late_ratio * 30.0 <= LATE_RATIO * needed_s


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
    assert len(tuned(longer_s, step_s=1.0, start_s=5.0).tried) > len(first.tried)


@pytest.mark.parametrize("start_s", STARTS_S)
@pytest.mark.parametrize("step_s", [0.1, 0.5])
def test_where_a_lever_is_rejected_the_rest_is_proved_in_time(tuned, step_s, start_s) -> None:
    seen = tuned(600.0, step_s=step_s, start_s=start_s, rejected={"brisk"})
    assert kept(seen)
    assert "brisk" not in dict(seen.tuning.plan.settings)


@pytest.mark.parametrize("blamed", ["brisk", "crowd", "early"])
def test_only_the_lever_to_blame_is_rejected(tuned, blamed) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, rejected={blamed}).tuning
    rejected = {row.lever for row in seen.levers if row.outcome == "rejected"}
    assert rejected == {blamed}
    assert {"brisk", "crowd", "early"} - set(dict(seen.plan.settings)) == {blamed}


def test_a_command_that_trains_in_several_processes_is_refused(tuned, monkeypatch) -> None:
    stock = Bench.facts
    two = {"ranks.count": 2}
    monkeypatch.setattr(Bench, "facts", lambda *args: stock(*args) | {"traits": two})
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


def crash(*args, **details):
    raise ChildLost("The script was killed.", remedy="Look at its memory.")


def test_a_crash_in_the_confirmation_leaves_an_answer(tuned, monkeypatch) -> None:
    monkeypatch.setattr(Races, "confirm", crash)
    seen = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert not seen.plan.settings
    assert any("was not raced: The script was killed." in note for note in seen.notes)
    assert not any(row.outcome == "kept" for row in seen.levers)


def test_a_crash_after_the_confirmation_leaves_what_was_confirmed(tuned, monkeypatch) -> None:
    stock = tuner.observe

    def observe(bench, plan):
        return stock(bench, plan) if not plan.settings else crash()

    monkeypatch.setattr(tuner, "observe", observe)
    seen = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert seen.speedup.is_gain
    assert seen.tuned is None


BRISK = Plan().pull("brisk", True)


def test_what_was_pulled_by_hand_is_proved_though_nothing_else_helps(tuned) -> None:
    gains = dict.fromkeys(LEVERS, 0.97)
    seen = tuned(600.0, step_s=0.1, start_s=2.0, gains=gains, pulled=BRISK).tuning
    assert seen.plan == BRISK
    assert seen.proof.gates
    assert seen.proof.effect is Effect.ROUNDING


def test_where_what_was_pulled_fails_no_other_lever_is_blamed(tuned) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, pulled=BRISK, rejected={"brisk"}).tuning
    assert not seen.proof.holds
    assert seen.plan == BRISK
    whys = {row.why for row in seen.levers if row.outcome == "dropped"}
    assert f"{BRISK} fails alone" in whys
    assert not any(row.outcome == "rejected" for row in seen.levers)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_search_that_finds_nothing_keeps_the_budget_too(tuned, step_s) -> None:
    seen = tuned(300.0, step_s=step_s, start_s=2.0, gains=dict.fromkeys(LEVERS, 0.97))
    assert not seen.tuning.plan.settings
    assert seen.late_ratio <= LATE_RATIO


def test_a_script_that_ends_early_keeps_the_budget_too(tuned) -> None:
    seen = tuned(300.0, step_s=0.05, start_s=4.0, life_count=120)
    assert kept(seen)
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
    assert any("cost more than it saves of 1 m 00 s" in note for note in seen.tuning.notes)


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


def test_a_plan_whose_start_costs_more_than_it_saves_is_not_taken(tuned) -> None:
    seen = tuned(600.0, step_s=0.1, start_s=2.0, later_s=late_start, training_s=100.0)
    assert "brisk" not in dict(seen.tuning.plan.settings)
    row = next(row for row in seen.tuning.levers if row.lever == "brisk")
    assert row.outcome == "dropped"
    assert re.search(r"starts 40 s later and saves .* of 1 m 40 s of training", row.why)


@pytest.mark.usefixtures("one_by_one")
def test_each_lever_that_the_budget_left_out_says_what_its_race_needs(tuned) -> None:
    seen = tuned(300.0, step_s=1.0, start_s=5.0)
    left_out = [row for row in seen.tuning.levers if row.lever not in seen.tried]
    assert left_out
    for row in left_out:
        assert re.fullmatch(
            r"not tried: its race needs about .+, and "
            r"(.+ were left of the budget|what is left of the budget is kept for proofs); "
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
