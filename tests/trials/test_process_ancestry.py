"""What a daemon starts for a trial is not behind the trial's isolation, so it must not train."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hasten.errors import IsolationFailed
from hasten.protocol import RecordingSpec
from hasten.records import Entry, Plan, Workload
from hasten.trials import process_ancestry
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.process import Exit, Isolation
from hasten.trials.recording import recorded
from hasten.trials.trial_process import TrialProcess

pytestmark = pytest.mark.child

# As srun does: ask a daemon to start a command with this environment, and end as that does.
CLIENT = """
import json, os, socket, sys
daemon = socket.socket(socket.AF_UNIX)
daemon.connect(sys.argv[1])
daemon.sendall(json.dumps([sys.argv[2:], dict(os.environ)]).encode())
daemon.shutdown(socket.SHUT_WR)
code, errors = json.load(daemon.makefile())
sys.stderr.write(errors)
sys.exit(code)
"""
TRAINING = """
open("trained", "w").close()
import torch
parameter = torch.nn.Parameter(torch.ones(1))
for _ in range(50):
    parameter.sum().backward()
"""
INSIDE = """
import os, sys, time
from hasten.trials.process_ancestry import SEAL_KEY, is_outside
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while os.getppid() != int(os.environ[SEAL_KEY].split()[0]):
            time.sleep(0.01)
        os.write(write_end, str(is_outside(os.environ[SEAL_KEY])).encode())
    os._exit(0)
os.wait()
print(is_outside(os.environ[SEAL_KEY]), os.read(read_end, 9).decode())
"""


@pytest.fixture
def sent(tmp_path, trials):
    """A command that lets a daemon, which is this process, start the training."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "client.py").write_text(CLIENT)
    path = f"/tmp/{trials.unique()[:40]}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                argv, env = json.load(connection.makefile())
                done = subprocess.run(
                    argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
                )
                connection.sendall(json.dumps([done.returncode, done.stderr]).encode())

        threading.Thread(target=serve, daemon=True).start()
        yield Workload(
            entry=Entry.COMMAND, cwd=str(tmp_path), python=sys.executable,
            argv=(sys.executable, "client.py", path, sys.executable, "train.py"),
        )  # fmt: skip
        os.unlink(path)


def _trial(workload, isolation):
    trial = TrialProcess(workload, Plan(), isolation=isolation, patience_s=60.0)
    try:
        trial.begin()
    finally:
        trial.close()


def _recording(workload, isolation):
    take = RecordingSpec(step_count=1, forced_count=0)
    with (
        CompiledCode() as code,
        recorded(workload, Plan(), take, isolation=isolation, patience_s=60.0, code=code),
    ):
        pass


@pytest.mark.parametrize("begin", [_trial, _recording])
def test_a_training_that_a_daemon_starts_ends_before_its_first_line(begin, sent, isolation) -> None:
    with pytest.raises(IsolationFailed, match="outside of the trial") as failed:
        begin(sent, isolation)
    assert "`srun hasten tune train.py`" in failed.value.remedy
    assert not Path(sent.cwd, "trained").exists()


def test_a_daemon_that_the_trial_itself_leaves_is_inside(begin, isolation) -> None:
    process = begin([sys.executable, "-c", INSIDE], isolation)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "False False\n"


def test_a_process_that_is_not_of_the_trial_is_not_followed_but_ended(begin) -> None:
    process = begin("import time; time.sleep(60)", Isolation.REDIRECT)
    process.follow(process.pid)
    process.follow(None)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        with pytest.raises(IsolationFailed, match="outside of the trial"):
            process.follow(stranger.pid)
        assert stranger.wait(30) == -signal.SIGKILL


def test_where_nothing_is_isolated_nothing_is_outside(begin) -> None:
    process = begin("import time; time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        process.follow(stranger.pid)
        assert stranger.poll() is None
        stranger.kill()


def test_the_same_process_id_on_another_machine_is_outside() -> None:
    assert not process_ancestry.is_outside(process_ancestry.seal(os.getppid()))
    assert process_ancestry.is_outside(f"{os.getppid()} {'0' * 36}pid:[1]")
