"""The examined steps as a Chrome trace."""

import itertools
import json
from dataclasses import replace

import pytest

from hasten.errors import UsageError
from hasten.records import Diagnosis, Phase, Step
from hasten.report.trace import write_trace

STEPS = (
    Step(phase_ns={Phase.DATA: 4_000_000, Phase.FORWARD: 1_500_000}, sample_count=8),
    Step(
        phase_ns={Phase.EVALUATION: 7_000_000, Phase.DATA: 1_000_000, Phase.BACKWARD: 2_000_123},
        sample_count=4,
    ),
)


@pytest.fixture
def trace(tmp_path, workload, diagnosis):
    path = tmp_path / "trace.json"
    write_trace(path, replace(diagnosis, steps=STEPS), workload)
    return json.loads(path.read_text())


def slices(trace, category):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def test_each_phase_of_each_step_is_a_slice_of_its_length(trace):
    seen = [(e["name"], e["dur"], e["args"]) for e in slices(trace, "phase")]
    assert seen == [
        ("data", 4000.0, {"step": 0, "samples": 8}),
        ("forward", 1500.0, {"step": 0, "samples": 8}),
        ("evaluation", 7000.0, {"step": 1, "samples": 4}),
        ("data", 1000.0, {"step": 1, "samples": 4}),
        ("backward", 2000.123, {"step": 1, "samples": 4}),
    ]


def test_slices_of_a_track_follow_one_another_and_lie_in_their_step(trace):
    phases, steps = slices(trace, "phase"), slices(trace, "step")
    for before, after in itertools.pairwise(phases):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    assert [(e["name"], e["ts"], e["dur"]) for e in steps] == [
        ("step 0", 0.0, 5500.0), ("step 1", 12_500.0, pytest.approx(3000.123)),
    ]  # fmt: skip
    assert [e["ts"] for e in trace["traceEvents"] if e["ph"] == "i"] == [0.0, 12_500.0]


def test_counts_and_findings_are_there_and_the_order_of_phases_is_explained(trace):
    rates = [e["args"]["rate"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert rates == [pytest.approx(8 / 0.0055), pytest.approx(4 / 0.003000123)]
    assert [f["id"] for f in trace["otherData"]["findings"]] == ["few-workers", "shm-too-small"]
    assert "usual order" in trace["otherData"]["note"]
    assert {e["pid"] for e in trace["traceEvents"]} == {1}


@pytest.mark.parametrize("diagnosis", [None, Diagnosis()], ids=["unknown", "empty"])
def test_without_steps_there_is_no_trace(tmp_path, workload, diagnosis):
    with pytest.raises(UsageError, match="There are no steps to trace"):
        write_trace(tmp_path / "t.json", diagnosis, workload)
    assert not list(tmp_path.glob("*.json"))
