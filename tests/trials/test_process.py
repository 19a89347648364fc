import contextlib
import os
import pty
import sys
import threading
import warnings
from pathlib import Path

import pytest

from hasten.trials.process import Exit, Isolation

pytestmark = pytest.mark.child

EVERY = pytest.mark.parametrize("isolation", [Isolation.NONE, Isolation.REDIRECT], ids=str)


@EVERY
def test_reports_the_exit_code(begin, isolation) -> None:
    process = begin("import sys; print('hi'); print('oh', file=sys.stderr); sys.exit(3)", isolation)
    assert process.wait(30) == Exit(3, None)
    assert process.output() in {"hi\noh\n", "oh\nhi\n"}
    assert process.errors() == "oh\n"


def test_reports_the_signal(begin) -> None:
    process = begin("import os; os.abort()")
    assert process.wait(30) == Exit(None, 6)


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_start_is_a_value(begin, program, code) -> None:
    process = begin([program])
    assert process.exit is not None
    assert process.exit.code == code
    assert program in process.exit.failure


def test_tells_when_it_was_we_who_ended_it(begin) -> None:
    process = begin("import time; time.sleep(60)")
    assert process.wait(0.05) is None
    process.kill()
    assert process.exit == Exit(None, 9)


IN_A_TERMINAL = """
import os, sys
from pathlib import Path
from hasten.trials.process import Isolation, Process
os.close(os.open("/dev/tty", os.O_RDWR))
argv = [sys.executable, "-c", "import os; os.open('/dev/tty', os.O_RDWR)"]
process = Process.start(
    argv, env=os.environ, cwd="/", scratch=Path(sys.argv[1]), isolation=Isolation(sys.argv[2])
)
process.wait(30)
Path(sys.argv[3]).write_text(process.errors())
process.kill()
"""


def test_the_pid_is_that_of_the_user_s_process_in_a_group_of_its_own(begin) -> None:
    process = begin("import os; print(os.getpid(), os.getpgid(0))")
    process.wait(30)
    assert process.output().split() == [str(process.pid)] * 2


def test_a_trial_shares_our_session_and_so_our_part_of_the_cpus(begin) -> None:
    process = begin("import os; print(os.getsid(0))")
    process.wait(30)
    assert process.output().split() == [str(os.getsid(0))]


@EVERY
def test_a_trial_cannot_ask_the_user_at_the_terminal(tmp_path, trials, isolation) -> None:
    scratch, told = tmp_path / "scratch", tmp_path / "told"
    scratch.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads of its own
        pid, terminal = pty.fork()
    if pid == 0:
        argv = [sys.executable, "-c", IN_A_TERMINAL, str(scratch), isolation.value, str(told)]
        os.execve(sys.executable, argv, {**os.environ, "PYTHONPATH": str(trials.src)})
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
        while os.read(terminal, 4096):
            pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "No such device or address: '/dev/tty'" in told.read_text()


def test_standard_input_is_empty_and_no_descriptor_leaks(begin) -> None:
    process = begin("import os, sys; print(repr(sys.stdin.read()), os.listdir('/proc/self/fd'))")
    process.wait(30)
    assert process.output() == "'' ['0', '1', '2', '3']\n"  # 3 is the listing itself


def test_a_flood_of_output_is_bounded_and_blocks_nobody(begin) -> None:
    process = begin(
        "import os\nfor _ in range(800): os.write(1, b'x' * 65536)\nos.write(1, b'end')"
    )
    assert process.wait(30) == Exit(0, None)
    text = process.output()
    assert text.endswith("xend")
    assert len(text) == 256 * 1024


def test_a_stop_reaches_forked_workers_and_sessions_of_their_own(begin, trials) -> None:
    process = begin(
        "import os, time\n"
        "pids = [os.getpid()]\n"
        "for i in range(2):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if i: os.setsid()\n"
        "        time.sleep(60)\n"
        "    pids.append(pid)\n"
        "print(*pids, flush=True); time.sleep(60)"
    )
    assert trials.eventually(lambda: len(process.output().split()) == 3)
    pids = process.output().split()

    def states() -> set[str]:
        return {Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[0] for p in pids}

    assert trials.eventually(lambda: states() == {"S"})
    process.stop()
    assert trials.eventually(lambda: states() == {"T"})
    process.resume()
    assert trials.eventually(lambda: states() == {"S"})
    process.stop()
    process.kill()
    assert not any(trials.alive(int(pid)) for pid in pids)


def test_kill_wipes_the_scratch_folder_and_may_be_called_twice(begin, tmp_path) -> None:
    process = begin(f"open({str(tmp_path)!r} + '/scratch0/x', 'w'); import time; time.sleep(60)")
    process.kill()
    process.kill()
    assert not (tmp_path / "scratch0").exists()


def test_another_thread_may_end_it_while_one_waits(begin, trials) -> None:
    process = begin([sys.executable, "-c", "import time; time.sleep(60)"])
    threading.Timer(0.1, process.end).start()
    assert process.wait(30) == Exit(None, 9)
    assert not trials.alive(process.pid)
    process.end()
    process.kill()
    assert not any(folder.exists() for folder in process._folders)


def test_a_script_s_end_leaves_its_scratch_to_be_read(begin, tmp_path) -> None:
    process = begin(f"open({str(tmp_path)!r} + '/scratch0/x', 'w').write('result')")
    process.wait(30)
    assert (tmp_path / "scratch0" / "x").read_text() == "result"


def test_strange_names_in_argv_and_environment_survive(begin) -> None:
    strange = os.fsdecode(b"caf\xe9,:\\ \n")
    process = begin(
        [sys.executable, "-c", "import os, sys; print(os.fsencode(sys.argv[1]))", strange]
    )
    process.wait(30)
    assert process.output() == f"{os.fsencode(strange)!r}\n"
