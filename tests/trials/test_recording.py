"""Recorded runs that have to end before they are through."""

import sys
from threading import Thread

import pytest

from hasten.errors import ScriptFailed
from hasten.protocol import RecordingSpec
from hasten.records import Entry, Plan, Workload
from hasten.trials import recording
from hasten.trials.compiled_code import CompiledCode
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
