"""How a trial that never trains is told: by its own words, or by what keeps hasten out."""

import os
import signal
import sys
import time
from threading import Timer

import pytest

from hasten.errors import IsolationFailed, NeverTrains, OutOfTime, ScriptFailed
from hasten.protocol import Turn
from hasten.records import Entry, Plan, Workload
from hasten.trials.deadline import NEVER, Deadline
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

pytestmark = pytest.mark.child

WARNS = """
import sys
print("mkdir -p failed for path /.config/matplotlib: [Errno 13] Permission denied",
      file=sys.stderr)
"""


@pytest.fixture
def trial(tmp_path):
    """Start a script or a command as a trial with redirected writes, and end it afterwards.

    What runs in a `python` that has started before has no isolation.
    """
    begun = []

    def start(
        script: str = "", *, command: tuple[str, ...] = (), deadline: Deadline = NEVER,
        python: str | None = None,
    ) -> TrialProcess:  # fmt: skip
        (tmp_path / "train.py").write_text(script)
        workload = Workload(
            entry=Entry.COMMAND if command else Entry.SCRIPT, argv=command or ("train.py",),
            cwd=str(tmp_path), python=python or sys.executable,
        )  # fmt: skip
        isolation = Isolation.NONE if python else Isolation.REDIRECT
        begun.append(
            TrialProcess(workload, Plan(), isolation=isolation, patience_s=60.0, deadline=deadline)
        )
        return begun[-1]

    yield start
    for each in begun:
        each.close()


def test_a_warning_about_a_permission_does_not_hide_why_the_script_failed(trial) -> None:
    with pytest.raises(ScriptFailed) as failed:
        trial(WARNS + "len(3)\n").begin()
    assert "The script failed (exit code 1)" in failed.value.problem
    assert "TypeError: object of type 'int' has no len()" in failed.value.last_words


def test_a_script_that_only_warns_and_never_trains_is_told_so(trial) -> None:
    with pytest.raises(NeverTrains, match="ended without an optimizer step"):
        trial(WARNS).begin()


FORKS = """
import multiprocessing, torch
def train():
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
rank = multiprocessing.get_context("fork").Process(target=train)
rank.start()
rank.join()
"""


def test_a_script_that_trains_in_a_process_that_it_forks_is_told_so(trial, child_python) -> None:
    with pytest.raises(NeverTrains, match="trains in processes that it forks") as ended:
        trial(FORKS, python=child_python).begin()
    assert "`mp.spawn`" in ended.value.remedy


def test_a_write_that_was_really_refused_is_told_with_the_script_s_words(trial, tmp_path) -> None:
    with pytest.raises(IsolationFailed) as failed:
        trial("import io\nio.FileIO('log.csv', 'w')\n").begin()
    assert f"The script writes to {tmp_path}/log.csv, which" in failed.value.problem
    assert "PermissionError" in failed.value.output


def test_a_shell_script_that_sets_pythonpath_anew_is_told_what_to_write(trial) -> None:
    line = f"PYTHONPATH=. exec {sys.executable} -c pass"
    with pytest.raises(NeverTrains) as failed:
        trial(command=("sh", "-c", line)).begin()
    assert "`PYTHONPATH=. python train.py`" in failed.value.problem
    assert "a Python before 3.11" in failed.value.problem
    assert "`PYTHONPATH=.:$PYTHONPATH`" in failed.value.remedy


LOOP = """
import subprocess, sys, time, torch
model = torch.nn.Linear(2, 2)
for step in range(1000):
    model(torch.ones(1, 2)).sum().backward()
    if step == 2:
        {third}
"""
STEPS = LOOP.format(third="time.sleep(600)")


def test_a_script_that_does_not_come_to_its_first_step_is_waited_for_until_the_deadline(
    trial,
) -> None:
    deadline = Deadline(time.monotonic() + 1.0)
    with pytest.raises(OutOfTime):
        trial("import time\ntime.sleep(600)\n", deadline=deadline).begin()
    assert time.monotonic() < deadline.end_s + 10.0


def test_a_step_that_hangs_is_waited_for_until_the_deadline(trial, child_python) -> None:
    deadline = Deadline()
    hanging = trial(STEPS, deadline=deadline, python=child_python)
    hanging.begin()
    hanging.switch((Plan(),))
    deadline.end_s = time.monotonic() + 1.0
    with pytest.raises(OutOfTime):
        hanging.turns([Turn(0, 0, 8, True)], timeout_s=300.0)
    assert time.monotonic() < deadline.end_s + 10.0


BUSY = "until = time.monotonic() + 2.0\nwhile time.monotonic() < until: pass"
EVALUATES = f"""
import subprocess, sys, time, torch
model = torch.nn.Linear(2, 2)
for step in range(1000):
    model(torch.ones(1, 2)).sum().backward()
    if step == 2:
        exec({BUSY!r})
    if step == 10:
        subprocess.run([sys.executable, "-c", "import time\\n" + {BUSY!r}], check=True)
"""


def test_a_script_that_evaluates_for_longer_than_a_wait_has_not_come_to_a_halt(trial) -> None:
    own = trial(EVALUATES)
    own.begin()
    own.switch((Plan(),))
    for where in ("itself", "in a process of its own"):
        began_s = time.monotonic()
        ((*steps,),), _ = own.turns([Turn(0, 0, 8, True)], timeout_s=0.5)
        assert len(steps) == 8, where
        assert time.monotonic() - began_s > 1.9, where


def test_a_script_that_rests_has_come_to_a_halt(trial) -> None:
    own = trial(STEPS)
    own.begin()
    own.switch((Plan(),))
    with pytest.raises(
        ScriptFailed, match=r"came to a halt after at least 1 .*no answer in"
    ) as ended:
        own.turns([Turn(0, 0, 8, True)], timeout_s=1.0)
    assert "time.sleep(600)" in ended.value.problem


def test_a_script_that_computes_for_ever_is_waited_for_until_the_deadline(trial) -> None:
    deadline = Deadline()
    own = trial(LOOP.format(third="exec('while True: pass')"), deadline=deadline)
    own.begin()
    own.switch((Plan(),))
    deadline.end_s = time.monotonic() + 2.0
    with pytest.raises(OutOfTime):
        own.turns([Turn(0, 0, 8, True)], timeout_s=0.5)
    assert 0.0 <= time.monotonic() - deadline.end_s < 10.0


@pytest.mark.parametrize("parked", [False, True], ids=["running", "parked"])
def test_a_trial_whose_guard_is_killed_is_not_waited_for(trial, parked) -> None:
    """Its script hangs, and would be given a minute."""
    own = trial(STEPS)
    own.begin()
    guard, began_s = own._process._guard.pid, time.monotonic()
    if parked:
        own.park()
        os.kill(guard, signal.SIGKILL)
        own.resume()
    else:
        Timer(1.0, os.kill, (guard, signal.SIGKILL)).start()
    with pytest.raises(IsolationFailed, match="guard of a trial was killed"):
        own.turns([Turn(0, 0, 10, True)], timeout_s=60.0)
    assert time.monotonic() - began_s < 20.0
