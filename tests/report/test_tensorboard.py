"""Scalars for TensorBoard, read back by its own reader."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hasten.errors import UsageError
from hasten.records import Comparison, Pair, Phase, Plan, Step, Verdict
from hasten.report.tensorboard import scalars, write_scalars

PAIRS = tuple(Pair(baseline_s=s, candidate_s=1.0, baseline_first=True) for s in (1.1, 1.2, 1.3))


@pytest.fixture
def examined(tuning, diagnosis):
    race = Comparison(
        baseline=Plan(), candidate=Plan().with_lever("intra_op_threads", 2), verdict=Verdict.WIN,
        speedup=tuning.speedup, pairs=PAIRS,
    )  # fmt: skip
    steps = (Step(phase_ns={Phase.DATA: 4_000_000, Phase.FORWARD: 1_000_000}, sample_count=8),) * 2
    return replace(tuning, diagnosis=replace(diagnosis, steps=steps), races=(race,), confirmed=race)


def test_steps_races_and_the_result_are_curves(examined):
    found = {}
    for tag, number, value in scalars(examined):
        found.setdefault(tag, []).append((number, value))
    assert found["step/seconds"] == [(0, pytest.approx(0.005)), (1, pytest.approx(0.005))]
    assert found["step/samples_per_s"][0] == (0, pytest.approx(1600.0))
    assert found["phase/data_s"][1] == (1, pytest.approx(0.004))
    race = found["race/01 intra_op_threads=2 against nothing"]
    assert race == [(0, 1.1), (1, 1.2), (2, 1.3)]
    assert found["confirmation/speed-up of a pair"] == race
    assert found["tuning/speedup_mid"] == [(0, 1.43)]
    assert found["tuning/after_samples_per_s"][0][1] > found["tuning/before_samples_per_s"][0][1]


def test_a_tuning_that_found_nothing_has_its_curves_too(nothing):
    tags = {point.tag for point in scalars(nothing)}
    assert tags == {"tuning/before_samples_per_s"}


@pytest.mark.filterwarnings("default")  # those of tensorboard's reader are its own
def test_tensorboard_reads_what_was_written(examined, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = write_scalars(tmp_path / "runs" / "hasten", examined)
    assert path.parent == tmp_path / "runs" / "hasten"
    seen = reader.EventAccumulator(str(path.parent))
    seen.Reload()
    expected = list(scalars(examined))
    assert set(seen.Tags()["scalars"]) == {point.tag for point in expected}
    points = [(e.step, e.value) for e in seen.Scalars("phase/data_s")]
    assert points == [(0, pytest.approx(0.004)), (1, pytest.approx(0.004))]


def test_without_tensorboard_the_remedy_is_said(examined, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UsageError) as caught:
        write_scalars(tmp_path / "runs", examined)
    assert caught.value.problem == "tensorboard is not installed here."
    assert caught.value.remedy == "Run: pip install tensorboard"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told(examined, tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write"):
        write_scalars(tmp_path / "file", examined)


def test_writing_imports_neither_torch_nor_tensorflow():
    pytest.importorskip("tensorboard")
    code = (
        "import sys\n"
        "from tensorboard.compat.proto.event_pb2 import Event\n"
        "from tensorboard.summary.writer.record_writer import RecordWriter\n"
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
