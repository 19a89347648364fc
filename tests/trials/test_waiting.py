"""A trial that is silent is waited for while it computes, until the deadline."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hasten.trials import waiting
from hasten.trials.deadline import NEVER, Deadline
from hasten.trials.process_tree import cpu_s, is_running
from hasten.trials.waiting import awaited

TIMEOUT_S = 0.05


@pytest.fixture
def silent(monkeypatch):
    """Make a trial that says nothing for some waits, and uses so much of a core meanwhile."""

    def make(used_ratio: float, *, silent_count: int = 3, exit_=None):
        began_s, waits = time.monotonic(), []

        def look(wait_s: float) -> str | None:
            waits.append(wait_s)
            time.sleep(wait_s)
            return "an answer" if len(waits) > silent_count else None

        monkeypatch.setattr(waiting, "is_running", lambda pid: False)
        monkeypatch.setattr(waiting, "cpu_s", lambda pid: used_ratio * (time.monotonic() - began_s))
        return look, SimpleNamespace(keeper=1, exit=exit_), waits

    return make


@pytest.mark.parametrize("used_ratio", [0.3, 1.0, 8.0])
def test_one_that_computes_is_waited_for_again_and_again(silent, used_ratio) -> None:
    look, process, waits = silent(used_ratio)
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=NEVER) == "an answer"
    assert waits == [TIMEOUT_S] * 4


@pytest.mark.parametrize("used_ratio", [0.0, 0.2])
def test_one_that_rests_is_waited_for_once(silent, used_ratio) -> None:
    look, process, waits = silent(used_ratio)
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=NEVER) is None
    assert waits == [TIMEOUT_S]


def test_one_that_waits_for_a_core_is_waited_for(silent, monkeypatch) -> None:
    look, process, waits = silent(0.05)
    monkeypatch.setattr(waiting, "is_running", lambda pid: len(waits) < 3)
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=NEVER) is None
    assert len(waits) == 3


def test_one_that_comes_to_rest_after_it_has_computed_is_given_up(silent, monkeypatch) -> None:
    look, process, waits = silent(1.0)
    spent_s = iter([0.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr(waiting, "cpu_s", lambda pid: next(spent_s))
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=NEVER) is None
    assert waits == [TIMEOUT_S] * 2


def test_nobody_waits_beyond_the_deadline(silent) -> None:
    look, process, waits = silent(1.0, silent_count=1000)
    deadline = Deadline(time.monotonic() + 3.5 * TIMEOUT_S)
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=deadline) is None
    assert not deadline.left_s
    assert sum(waits) <= 3.6 * TIMEOUT_S
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=deadline) is None


def test_one_that_has_ended_is_not_waited_for(silent) -> None:
    look, process, waits = silent(1.0, exit_="ended")
    assert awaited(look, process, timeout_s=TIMEOUT_S, deadline=NEVER) is None
    assert len(waits) == 1


@pytest.mark.child
@pytest.mark.parametrize("program", ["import time; time.sleep(60)", "while True: pass"])
def test_a_process_that_computes_is_running(program) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", program]) as process:
        try:
            seen = []
            for _ in range(20):
                time.sleep(0.05)
                seen.append(is_running(process.pid))
            assert seen[-1] is (program == "while True: pass")
        finally:
            process.kill()


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
BURNS_IN_A_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
REST = "print(flush=True)\nimport sys; sys.stdin.read()\n"


@pytest.mark.child
@pytest.mark.parametrize("burn", [BURN, BURNS_IN_A_CHILD], ids=["itself", "a child that has ended"])
def test_the_time_of_a_process_is_that_of_all_that_it_started(burn) -> None:
    command = [sys.executable, "-S", "-c", burn + REST]
    pipe = subprocess.PIPE
    before_s = cpu_s(os.getpid())
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        assert 0.25 <= cpu_s(process.pid) < 10.0
        assert cpu_s(os.getpid()) - before_s >= 0.25  # while it lives
        process.stdin.close()
        process.wait()
        assert cpu_s(process.pid) == 0.0
    assert cpu_s(os.getpid()) - before_s >= 0.25
