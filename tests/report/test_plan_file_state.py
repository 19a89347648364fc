"""How far a plan can be relied on: it stands in its file, and a run says it."""

import datetime
import tomllib
from dataclasses import replace

import pytest

from hasten import lever
from hasten.errors import UsageError
from hasten.records import (
    CONTENDED,
    Diagnosis,
    Effect,
    Entry,
    Finding,
    Interval,
    LossEnvelope,
    Outcome,
    Plan,
    Proof,
    Reason,
    Torch,
    Traits,
)
from hasten.report import plan_file, plan_places, plan_writing
from hasten.report.plan_state import State, state_of

TODAY = datetime.date(2026, 1, 2)

EXACT = Proof(effect=Effect.EXACT)


@pytest.fixture(autouse=True)
def any_lever(monkeypatch):
    monkeypatch.setattr(lever, "check_plan", lambda plan: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hasten.toml"


def write(path, tuning):
    plan_writing.write_plan(path, tuning, snippets={}, today=TODAY)
    return plan_file.read_plan(path)


def failing(tuning):
    gates = (*tuning.proof.gates[:-1], replace(tuning.proof.gates[-1], passed=False))
    return replace(tuning, proof=replace(tuning.proof, gates=gates))


def stopped(tuning, *, proved=False):
    proof = tuning.proof if proved else Proof(effect=tuning.proof.effect)
    return replace(tuning, speedup=None, interrupted=True, proof=proof)


@pytest.mark.parametrize(
    ("change", "state", "message"),
    [
        (lambda t: t, State.CONFIRMED, None),
        (lambda t: stopped(t, proved=True), State.PROVED, "not confirmed its gain"),
        (stopped, State.UNPROVED, "is not proved"),
        (failing, State.FAILED, "A numerics gate failed"),
        (lambda t: replace(t, plan=Plan()), State.EMPTY, None),
        (lambda t: replace(stopped(t), plan=Plan()), State.UNPROVED, "is empty"),
    ],
)
def test_the_file_says_how_far_its_plan_goes(path, tuning, change, state, message):
    saved = write(path, change(tuning))
    assert tomllib.loads(path.read_text())["evidence"]["state"] == state
    assert saved.state is state
    found = plan_file.doubts(saved)
    assert len(found) == bool(message)
    for one in found:
        assert message in one.message
        assert one.refuses is (state is State.FAILED)


def beside(*shares) -> Diagnosis:
    """Return a diagnosis in which other processes take CPUs for these shares of a step."""
    ends = [Interval(low_ratio=share, mid_ratio=share, high_ratio=share) for share in shares]
    found = (Finding(name=CONTENDED, message="", remedy="", share=share) for share in ends)
    return Diagnosis(findings=tuple(found))


@pytest.mark.parametrize("change", [lambda t: t, stopped])
def test_a_plan_that_was_found_beside_other_processes_says_so_with_the_remedy(path, tuning, change):
    waits = Plan().with_lever("channels_last", True).with_lever("omp_wait_policy", "short")
    tuning = change(replace(tuning, plan=waits))
    usual = plan_file.doubts(write(path, replace(tuning, diagnosis=beside(0.05))))
    assert usual == plan_file.doubts(write(path, replace(tuning, diagnosis=Diagnosis())))
    *rest, told = plan_file.doubts(write(path, replace(tuning, diagnosis=beside(0.3))))
    assert tuple(rest) == usual
    assert told.message == (
        "Other processes kept CPUs busy when this plan was tuned: without them it may gain less, "
        "and omp_wait_policy=short may slow the script down. Run `hasten tune` again when they are "
        "gone."
    )
    assert not told.refuses
    alike = replace(tuning, plan=waits.without("omp_wait_policy"), diagnosis=beside(0.3))
    assert "may gain less. Run" in plan_file.doubts(write(path, alike))[-1].message
    assert not plan_file.doubts(write(path, replace(alike, plan=Plan(), interrupted=False)))


@pytest.mark.parametrize(
    ("evidence", "state"),
    [
        ("", None),
        ("[evidence]\nspeedup = 2", None),
        ('[evidence]\nstate = "splendid"', None),
        ("[evidence]\nstate = [1]", None),
        ('[evidence]\ngates = ["failed: G1 structure: other batches"]', State.FAILED),
        ('[evidence]\nstate = "proved"', State.PROVED),
    ],
)
def test_a_file_that_does_not_say_it_is_as_good_as_its_gates(path, evidence, state):
    path.write_text(f"schema = 1\n[plan]\n{evidence}\n")
    assert plan_file.read_plan(path).state is state


def test_a_plan_whose_numbers_no_gate_could_judge_says_so(path, tuning):
    others = [g for g in tuning.proof.gates if not g.name.startswith(("G0", "G1"))]
    assert others  # the tuning of these tests has a gate of numbers
    opened = tuple(
        replace(gate, passed=None) if gate in others else gate for gate in tuning.proof.gates
    )
    unjudged = replace(tuning, proof=replace(tuning.proof, gates=opened))
    (told,) = plan_file.doubts(write(path, unjudged))
    assert "No gate could judge" in told.message
    assert not told.refuses
    assert not plan_file.doubts(replace(plan_file.read_plan(path), plan=Plan()))


def test_a_failed_plan_without_levers_is_never_refused(path, tuning):
    saved = replace(write(path, failing(tuning)), plan=Plan())
    assert plan_file.doubts(saved) == ()


def test_what_is_better_proved_stays_where_it_is(path, tuning):
    aside = path.with_name("hasten-unconfirmed.toml")
    unproved, proved = stopped(tuning), stopped(tuning, proved=True)
    assert plan_places.place_for(path, unproved) == path
    for there, now, place in (
        (tuning, proved, aside),
        (tuning, unproved, aside),
        (replace(tuning, plan=Plan()), proved, aside),
        (proved, unproved, aside),
        (proved, proved, path),
        (unproved, proved, path),
        (tuning, tuning, path),
    ):
        write(path, there)
        assert plan_places.place_for(path, now) == place


def test_a_plan_of_another_script_that_has_come_since_is_written_over_by_force_alone(path, tuning):
    write(path, replace(tuning, workload=replace(tuning.workload, argv=("other.py",))))
    for now in (tuning, stopped(tuning)):
        assert plan_places.place_for(path, now) != path
        assert plan_places.place_for(path, now, force=True) == path


@pytest.mark.parametrize("reason", Reason)
def test_what_was_lost_for_want_of_evidence_does_not_replace_a_confirmed_plan(path, tuning, reason):
    lost = replace(tuning.levers[0], outcome=Outcome.DROPPED, reason=reason)
    nothing = replace(tuning, plan=Plan(), speedup=None, levers=(lost,))
    undecided = reason in ("hidden", "launches-differ", "not-raced-again", "unproved")
    untried = reason in ("no-time", "excluded")
    write(path, tuning)
    assert (plan_places.place_for(path, nothing) != path) is (undecided or untried)
    assert (state_of(nothing) is State.UNPROVED) is undecided
    assert plan_places.place_for(path, replace(tuning, levers=(lost,))) == path
    only_applied = replace(tuning, applied=tuning.plan, speedup=None, levers=(lost,))
    assert (plan_places.place_for(path, only_applied) != path) is (undecided or untried)


def test_a_plan_of_what_was_set_alone_with_nothing_to_prove_is_no_unproved_one(tuning) -> None:
    bare = replace(tuning, applied=tuning.plan, speedup=None, levers=(), proof=EXACT)
    assert state_of(bare) is State.EMPTY
    assert state_of(replace(bare, out_of_time=True)) is State.UNPROVED


@pytest.mark.parametrize("text", ["schema = 1\n[plan]\n", "schema = [", "[project]\n"])
def test_a_file_of_somebody_s_stays_where_it_is(path, tuning, text):
    path.write_text(text)
    assert plan_places.place_for(path, stopped(tuning)) != path
    assert plan_places.place_for(path, tuning) == path


def test_a_plan_by_hand_is_called_one_and_told_how_to_write_over_it(path, workload):
    path.write_text("schema = 1\n[plan]\nintra_op_threads = 2\n")
    with pytest.raises(UsageError, match="written or edited by hand") as caught:
        plan_places.guard_plan(path, workload)
    assert "--force" in caught.value.remedy


def test_the_torch_that_trained_is_written(path, tuning):
    seen = replace(tuning, traits=Traits(torch="2.9.0"))
    assert write(path, seen).machine["torch"] == "2.9.0"


@pytest.mark.parametrize(
    ("asked", "kept"),
    [(None, "2.9.0"), ("2.9.0", "2.9.0"), ("2.9.0+cpu", "2.9.0"), ("2.13.0", None)],
)
def test_a_program_s_torch_is_written_where_a_run_can_compare_it(path, tuning, asked, kept):
    machine = replace(tuning.machine, torch=asked and Torch(version=asked))
    workload = replace(tuning.workload, entry=Entry.COMMAND, argv=("bash", "train.sh"))
    seen = replace(tuning, machine=machine, workload=workload, traits=Traits(torch="2.9.0"))
    saved = write(path, seen)
    assert saved.machine.get("torch") == kept
    assert ("trained with torch 2.9.0" in path.read_text()) == (kept is None)
    assert "python" not in saved.machine
    assert plan_file.differences(saved, machine, workload) == ()


def test_a_name_that_is_no_utf8_is_the_same_name_in_a_run(path, tuning, machine):
    workload = replace(tuning.workload, argv=("caf\udce9.py", "--out", "\udcff"))
    saved = write(path, replace(tuning, workload=workload))
    assert plan_file.differences(saved, machine, workload) == ()
    saved = replace(saved, envelope=LossEnvelope(losses=(1.0,), spreads=(0.1,)))
    assert plan_file.fitting_envelope(saved, machine, workload) == saved.envelope
