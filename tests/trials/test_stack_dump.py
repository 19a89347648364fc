"""Where a process stands that does not answer: found without its help, told as its own line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hasten.trials.stack_dump import place_in, where

STACKS = """\
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Thread 0x00007f0000000001 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134 in forward
  File "/home/me/model.py", line 31 in forward
  File "/home/me/train.py", line 8 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""
STUCK = """\
import sys
from hasten.trials import stack_dump

def fetch():
    print("there", flush=True)
    sys.stdin.read()  # for ever

stack_dump.listen(sys.argv[1])
fetch()
"""


def test_the_innermost_line_of_the_user_in_the_main_thread_is_told() -> None:
    assert place_in(STACKS) == "model.py:31 in forward"


def test_where_only_libraries_are_nothing_is_told() -> None:
    assert place_in(STACKS.split("\n\n", maxsplit=1)[0]) == ""
    assert place_in("") == ""


@pytest.mark.child
def test_a_process_that_is_stuck_in_a_call_is_found_and_goes_on(tmp_path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    command = [sys.executable, str(script), str(tmp_path / "socket")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        for _ in range(2):
            place = where(tmp_path, process.pid)
            assert place == "stuck.py:6 in fetch: sys.stdin.read()  # for ever"
        process.stdin.close()
        assert process.wait() == 0


def test_a_process_that_does_not_listen_is_left_alone(tmp_path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert where(tmp_path, process.pid) == ""
        process.communicate(b"\n")
    assert process.returncode == 0
