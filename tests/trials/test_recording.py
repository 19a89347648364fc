"""Recorded runs that have to end before they are through."""

import sys
import time
from threading import Thread

import pytest

from hasten.errors import OutOfTime, ScriptFailed
from hasten.protocol import Recorded, RecordingSpec
from hasten.records import Entry, Plan, Workload
from hasten.trials import recording
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.deadline import NEVER, Deadline
from hasten.trials.isolation.scratch import make_scratch
from hasten.trials.process import Isolation
from hasten.trials.recording import Running, recorded

pytestmark = pytest.mark.child
PATIENCE_S = 600.0


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Record a script that only waits, in a thread; what it raises and makes is noted."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )
    failed, made = [], []

    def noted():
        made.append(make_scratch())
        return made[-1]

    monkeypatch.setattr(recording, "make_scratch", noted)

    def start(running):
        def run() -> None:
            take = RecordingSpec(step_count=1, forced_count=0)
            try:
                with CompiledCode() as code, recorded(
                    workload, Plan(), take, isolation=Isolation.NONE, patience_s=PATIENCE_S,
                    code=code, running=running,
                ):  # fmt: skip
                    pass
            except ScriptFailed as error:
                failed.append(error)

        thread = Thread(target=run, daemon=True)
        thread.start()
        return thread

    start.failed, start.made = failed, made
    return start


@pytest.fixture
def record(tmp_path):
    """Record two steps of a script, and return what was recorded."""

    def run(
        script: str, *, python: str = sys.executable, patience_s: float = 60.0,
        deadline: Deadline = NEVER,
    ) -> Recorded:  # fmt: skip
        (tmp_path / "train.py").write_text(script)
        workload = Workload(
            entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=python
        )
        take = RecordingSpec(step_count=2, forced_count=0)
        with CompiledCode() as code, recorded(
            workload, Plan(), take, isolation=Isolation.NONE, patience_s=patience_s, code=code,
            deadline=deadline,
        ) as (answer, _):  # fmt: skip
            return answer

    return run


def test_another_thread_ends_all_that_are_under_way(begin, trials) -> None:
    running = Running()
    threads = [begin(running) for _ in range(2)]
    assert trials.eventually(lambda: len(running._processes) == 2, 30.0)
    running.end()
    for thread in threads:
        thread.join(30.0)
    assert len(begin.failed) == 2
    assert not any(folder.exists() for folder in begin.made)
    assert not running._processes


def test_one_that_begins_too_late_ends_at_once(begin) -> None:
    running = Running()
    running.end()
    begin(running).join(30.0)
    assert len(begin.failed) == 1
    assert not any(folder.exists() for folder in begin.made)


EVALUATES = """
import time, torch
model = torch.nn.Linear(2, 2)
for step in range(4):
    model(torch.ones(1, 2)).sum().backward()
    until = time.monotonic() + 3.0
    while step == 0 and time.monotonic() < until:
        pass
"""


def test_one_that_evaluates_for_longer_than_a_run_may_take_is_waited_for(record) -> None:
    assert record(EVALUATES, patience_s=2.0).steps == 2


def test_one_that_rests_for_longer_is_not(record) -> None:
    with pytest.raises(ScriptFailed, match="ended or hung before its steps were recorded"):
        record("import time\ntime.sleep(600)\n", patience_s=1.0)


def test_one_that_computes_for_ever_is_waited_for_until_the_deadline(record) -> None:
    deadline = Deadline(time.monotonic() + 4.0)
    with pytest.raises(OutOfTime):
        record("while True: pass\n", patience_s=1.0, deadline=deadline)
    assert 0.0 <= time.monotonic() - deadline.end_s < 10.0


OBJECTS = """
import torch
class Batch:
    def __init__(self, items):
        self.items = torch.stack(items)
rows = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
def collate(rows):
    return Batch([row for row, in rows])
model = torch.nn.Linear(2, 2)
for batch in torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=collate):
    model(batch.items).sum().backward()
"""


def test_batches_that_are_objects_are_looked_into(record, child_python) -> None:
    first, again, second = (
        record(OBJECTS.replace("12.0)", end), python=child_python)
        for end in ("12.0)", "12.0)", "12.0).flip(0)")
    )
    assert first.batches == again.batches
    assert not set(first.batches) & set(second.batches)
    assert len(set(first.batches)) == 2
    assert [part[0] for part in first.outlines[0]] == ["torch.float32 (2, 2)"]
