"""What happens where the memory of a device ends, where others hold it, and where it is lost."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hasten.errors import NoRoom, ScriptFailed
from hasten.loader.device.device import Accelerator
from hasten.records import Entry, Plan, Workload
from hasten.session.observe import observe
from hasten.session.recordings import open_prover
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

HERE = Path(__file__).parent
MIB, GIB = 1 << 20, 1 << 30
MORE = Plan().with_lever("malloc_retention", True)


@pytest.fixture(scope="module")
def told(ran):
    """Run a script; return its exit code, what it printed, and what it said besides."""

    def run(*words, **env):
        done = ran(*words, cwd=HERE, **env)
        return done.returncode, done.stdout, done.stderr

    return run


# ---- device_placement


PLACE = ("run", "--set", "device_placement=laggard")


@pytest.fixture(scope="module")
def plain(told):
    return told("placed.py", "heavy")[1].splitlines()


@pytest.mark.parametrize(
    ("memory_bytes", "why"),
    [
        (3 * MIB // 2, "out of memory"),  # holds a part of the model
        (2_200_000, "out of memory"),  # the model
        (
            5 * MIB // 2,
            "OutOfMemoryError: a step may take 10.1 MiB of memory",
        ),  # what a forward pass leaves
        (5 * MIB, "a step may take"),  # gradients
        (9 * MIB, "a step may take"),  # the state of the optimizer
    ],
)
def test_a_step_that_does_not_fit_goes_on_on_the_cpu_as_if_never_tried(
    told, plain, memory_bytes, why
) -> None:
    code, printed, said = told(*PLACE, "placed.py", "heavy", LAGGARD_MEMORY_BYTES=str(memory_bytes))
    assert code == 0, said
    assert printed.splitlines() == plain
    (line,) = said.splitlines()
    assert line.startswith("hasten: left out device_placement=laggard: ")
    assert why in line


def test_a_step_that_fits_is_made_on_the_device(told, plain) -> None:
    code, printed, said = told(*PLACE, "placed.py", "heavy", LAGGARD_MEMORY_BYTES=str(14 * MIB))
    assert (code, said, printed.splitlines()[-1], plain[-1]) == (0, "", "laggard", "cpu")


def test_weights_on_a_lost_device_are_told(told) -> None:
    code, _, said = told(*PLACE, "placed.py", "heavy", LAGGARD_LIFE_COUNT="3")
    assert code == 1
    assert said.splitlines()[-1] == (
        "RuntimeError: laggard is lost, and the weights there: "
        "laggard error: unspecified launch failure"
    )


# ---- device_copies


def test_copies_leave_the_script_the_memory_that_is_free(monkeypatch) -> None:
    import laggard

    device, batch = Accelerator(torch.device("laggard:1"), str), torch.ones(MIB // 4)
    laggard.configure(memory_bytes=5 * batch.nbytes)
    held = torch.empty(2 * batch.nbytes, dtype=torch.uint8, device="laggard:1")
    with pytest.raises(RuntimeError, match="too little memory"):
        device.copy(batch)
    del held
    assert device.copy(batch).cpu().equal(batch)


# ---- trials


def workload(*words):
    return Workload(
        entry=Entry.SCRIPT, argv=("full_training.py", *words), cwd=str(HERE), python=sys.executable
    )


@pytest.fixture
def shared(monkeypatch):
    """4 GiB that all processes share."""
    monkeypatch.setenv("LAGGARD_SHARED", str(os.getpid()))
    monkeypatch.setenv("LAGGARD_MEMORY_BYTES", str(4 * GIB))


@pytest.fixture
def neighbour(shared):
    """Another process, which holds a half of it."""
    held = "import time, torch; x = torch.empty(2**31, dtype=torch.uint8, device='laggard')"
    code = f"{held}; print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield
        process.kill()


@contextmanager
def opened(*words):
    found = TrialRunner(workload(*words), isolation=Isolation.NONE, patience_s=60.0)
    with found as runner:
        observe(runner, Plan(), step_count=8)
        yield runner


def test_others_on_the_device_are_told(neighbour) -> None:
    doctor = [sys.executable, "-m", "hasten", "doctor"]
    done = subprocess.run(doctor, capture_output=True, text=True, check=False)
    assert "Other processes hold 2.0 GiB of the 4.0 GiB" in " ".join(done.stdout.split())
    with opened("1", "0", "100000") as runner:
        seen = observe(runner, Plan(), step_count=8)
        assert seen.others_device_ratio == pytest.approx(0.5, 0.1)
        assert seen.device_count == 1, "of two"


def test_what_fits_only_alone_is_raced_alone(shared) -> None:
    with opened("1200", "1700", "100000") as runner:
        assert not runner.pace.single_process
        assert len(runner.pairs(Plan(), MORE, [True])) == 1
        assert runner.pace.single_process


@pytest.mark.slow
def test_a_model_that_is_moved_by_both_trials_is_raced_alone(shared, monkeypatch) -> None:
    monkeypatch.setenv("LAGGARD_MEMORY_BYTES", str(8 * MIB))
    placed = Plan().with_lever("device_placement", "laggard")
    other = placed.with_lever("malloc_retention", True)
    words = workload("0", "0", "100000", "cpu")
    with TrialRunner(words, isolation=Isolation.NONE, patience_s=60.0) as runner:
        assert len(runner.pairs(placed, other, [True])) == 1
        assert runner.pace.single_process


@pytest.mark.slow
def test_what_does_not_fit_alone_is_a_failure_and_others_go_on_in_twos(shared) -> None:
    with opened("1200", "3700", "100000") as runner:
        with pytest.raises(NoRoom, match="ran out of the accelerator's memory"):
            runner.prepare(Plan(), MORE)
        assert not runner.pace.single_process
        assert len(runner.pairs(Plan(), Plan(), [True])) == 1


@pytest.mark.slow
def test_runs_for_a_proof_that_do_not_fit_together_are_made_one_by_one(shared) -> None:
    with open_prover(
        workload("1200", "1700", "100000"), isolation=Isolation.NONE, step_s=0.01, start_s=5.0,
        patience_s=120.0, parameter_count=512 * 513, code=CompiledCode(),
    ) as prover:  # fmt: skip
        proof = prover.prove(MORE)
    assert [gate.passed for gate in proof.gates] == [True] * len(proof.gates)
    assert prover.launch_count == 4


def test_a_device_that_is_lost_in_a_trial_is_told_in_the_words_of_the_script(
    told, monkeypatch
) -> None:
    code, _, said = told("full_training.py", "1", "0", "1000", LAGGARD_LIFE_COUNT="200")
    assert code == 1
    monkeypatch.setenv("LAGGARD_LIFE_COUNT", "200")
    with pytest.raises(ScriptFailed) as failed, opened("1", "0", "1000"):
        pass
    assert failed.value.last_words.endswith(said.splitlines()[-1])
    assert "During handling" not in failed.value.output
