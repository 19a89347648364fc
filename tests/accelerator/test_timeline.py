"""Steps on an accelerator take as long as the accelerator takes, however far ahead the host is."""

import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.records import Entry, Phase, Plan, Workload
from hasten.session.observe import observe
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

pytestmark = pytest.mark.measures
SCRIPT = str(Path(__file__).with_name("late_training.py"))
COPIES = Plan().with_lever("device_copies", "call")


@pytest.fixture(autouse=True)
def late(monkeypatch):
    """Kernels of two milliseconds."""
    monkeypatch.setenv("LAGGARD_KERNEL_US", "2000")


def opened(mode):
    workload = Workload(
        entry=Entry.SCRIPT, argv=(SCRIPT, mode, "1000000"), cwd=os.getcwd(), python=sys.executable
    )
    return TrialRunner(workload, isolation=Isolation.NONE, patience_s=60.0)


@pytest.fixture
def runner(request):
    with opened(request.param) as made:
        made.facts(Plan())
        yield made


def real_step_s(mode, *program):
    """Seconds of a step in a real run, by the script's own clock up to a synchronize."""
    command = [sys.executable, *program, SCRIPT, mode, "80"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("runner", ["resident"], indirect=True)
def test_a_step_takes_what_its_kernels_take(runner) -> None:
    steps, _ = runner.steps(Plan(), 12)
    step_s = statistics.median(step.wall_s for step in steps)
    assert step_s == pytest.approx(real_step_s("resident"), rel=0.2)
    phase_s = {
        phase: statistics.median(step.phase_ns.get(phase, 0) for step in steps) * 1e-9
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.DATA)
    }
    assert min(phase_s[phase] for phase in (Phase.FORWARD, Phase.BACKWARD)) > 0.002
    assert phase_s[Phase.BACKWARD] > phase_s[Phase.FORWARD] > phase_s[Phase.DATA]


@pytest.mark.parametrize("runner", ["reading"], indirect=True)
def test_a_race_gives_what_real_runs_give(runner) -> None:
    """The host runs far ahead under this lever, which says nothing of the device."""
    runner.prepare(Plan(), COPIES)
    pairs = runner.pairs(Plan(), COPIES, [True, False] * 8)
    gain_ratio = math.exp(statistics.median(pair.log_ratio for pair in pairs))
    own_s = real_step_s("reading")
    ours_s = real_step_s("reading", "-m", "hasten", "run", "-q", "--set", "device_copies=call")
    assert gain_ratio == pytest.approx(own_s / ours_s, rel=0.2)


@pytest.mark.parametrize("runner", ["resident"], indirect=True)
def test_who_waits_for_its_turn_has_nothing_left_to_do(runner) -> None:
    runner.prepare(Plan(), Plan(), apart=True)
    pairs = runner.pairs(Plan(), Plan(), [True, False] * 3, apart=True)
    step_s = statistics.median(pair.baseline_s for pair in pairs)
    assert step_s * 16 == pytest.approx(real_step_s("resident"), rel=0.2)


@pytest.mark.parametrize(("memory_bytes", "alone"), [(1 << 29, True), (1 << 32, False)])
def test_children_live_one_by_one_where_the_device_holds_one(
    monkeypatch, memory_bytes, alone
) -> None:
    monkeypatch.setenv("LAGGARD_MEMORY_BYTES", str(memory_bytes))
    with opened("resident") as made:
        observe(made, Plan(), step_count=8)
        assert made.pace.single_process is alone
