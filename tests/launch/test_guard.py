import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from upshift.launch.guard import descendants, wipe
from upshift.launch.process import Exit, Isolation

DAEMON = """
import os, sys, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write_end, str(os.getpid()).encode())
        time.sleep(60)
    os._exit(0)
os.wait()
print(os.read(read_end, 99).decode(), flush=True)
time.sleep(float(sys.argv[1]))
"""

SHARING = """
import sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=10)
print("/dev/shm/" + memory.name.lstrip("/"), flush=True)
time.sleep(60)
"""

SHARING_TENSORS = """
import os, time, torch
torch.multiprocessing.set_sharing_strategy("file_system")
tensor = torch.ones(10).share_memory_()
kept = [line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/torch_" in line]
print(kept[0], flush=True)
time.sleep(60)
"""

PARENT = """
import os, sys, time
from pathlib import Path
from upshift.launch.process import Isolation, Process
scratch = Path(sys.argv[1]); scratch.mkdir()
argv = [sys.executable, "-c", sys.argv[3], "60"]
way = Isolation(sys.argv[2])
process = Process.start(argv, env=os.environ, cwd="/", scratch=scratch, isolation=way)
while not process.output(): time.sleep(0.01)
print(process._guard.pid, process.pid, process.output(), *process._folders, flush=True)
time.sleep(60)
"""


@pytest.mark.child
def test_a_daemon_dies_with_the_script_that_left_it(begin, trials) -> None:
    process = begin([sys.executable, "-c", DAEMON, "0"])
    assert process.wait(30) == Exit(0, None)
    assert not trials.alive(int(process.output()))


@pytest.mark.child
def test_a_daemon_dies_when_the_trial_is_killed(begin, trials, isolation) -> None:
    process = begin([sys.executable, "-c", DAEMON, "60"], isolation)
    assert trials.eventually(process.output)
    daemon = int(process.output())
    assert trials.alive(daemon)
    process.kill()
    assert not trials.alive(daemon)


@pytest.mark.child
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=str)
def test_the_parent_s_death_leaves_no_process_and_no_file(
    tmp_path, trials, isolation, number
) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "s"), isolation.value, DAEMON]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(trials.src)},
    ) as parent:  # fmt: skip
        assert parent.stdout
        guard, child, daemon, *folders = parent.stdout.readline().split()
        parent.send_signal(number)
    pids = [int(pid) for pid in (guard, child, daemon)]
    assert trials.eventually(lambda: not any(map(trials.alive, pids)))
    assert not any(Path(folder).exists() for folder in folders)


@pytest.mark.child
def test_the_guard_s_death_ends_the_script(begin, trials) -> None:
    process = begin("import time; time.sleep(60)")
    os.kill(process._guard.pid, signal.SIGKILL)
    ended = process.wait(30)
    assert ended == Exit(None, None)
    assert trials.eventually(lambda: not trials.alive(process.pid))


@pytest.mark.child
def test_a_signal_to_the_guard_ends_the_trial_cleanly(begin, trials, isolation) -> None:
    process = begin([sys.executable, "-c", DAEMON, "60"], isolation)
    assert trials.eventually(process.output)
    os.kill(process._guard.pid, signal.SIGTERM)
    assert process.wait(30) == Exit(None, 9, killed_by_us=True)
    assert not trials.alive(int(process.output()))


@pytest.mark.child
@pytest.mark.parametrize("parked", [False, True], ids=["running", "parked"])
@pytest.mark.parametrize("code", [SHARING, SHARING_TENSORS], ids=["python", "torch"])
def test_what_a_killed_trial_keeps_in_shared_memory_goes_with_it(
    begin, trials, code, parked
) -> None:
    process = begin(code, Isolation.REDIRECT)
    assert trials.eventually(process.output, 60.0)
    path = Path(process.output().strip())
    assert path.exists()
    if parked:
        process.stop()
    helpers = descendants(process._guard.pid)
    process.kill()
    assert not path.exists()
    assert len(helpers) > 1
    assert not any(map(trials.alive, helpers))


@pytest.mark.child
def test_a_helper_that_does_not_end_by_itself_is_ended(begin, trials) -> None:
    code = "import time; print('multiprocessing.resource_tracker', flush=True); time.sleep(60)"
    process = begin(code)
    assert trials.eventually(process.output)
    process.kill()
    assert not trials.alive(process.pid)


@pytest.mark.child
def test_a_fork_storm_ends(begin, trials) -> None:
    process = begin(
        "import os, time\n"
        "for _ in range(60):\n"
        "    if os.fork() == 0:\n"
        "        while True:\n"
        "            time.sleep(0.002)\n"
        "            if os.fork(): os._exit(0)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    assert trials.eventually(process.output)
    guard = process._guard.pid
    assert len(descendants(guard)) > 30
    process.kill()
    assert not trials.alive(guard)
    assert not [p for p in os.listdir("/proc") if p.isdigit() and _session(p) == process.pid]


@pytest.mark.child
def test_the_trial_is_the_kernel_s_first_choice_when_memory_runs_out(begin) -> None:
    process = begin("print(open('/proc/self/oom_score_adj').read())", Isolation.NONE)
    process.wait(30)
    assert int(process.output()) > int(Path("/proc/self/oom_score_adj").read_text())


@pytest.mark.child
def test_descendants_are_all_and_only_those() -> None:
    code = "import os, time; os.fork() and os.fork(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as top:
        until = time.monotonic() + 10
        while len(found := descendants(top.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        top.kill()
    assert len(found) == 2


def test_wipe_removes_what_has_no_permissions_and_follows_no_link(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "work" / "work").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "work" / "work").chmod(0)
    (tree / "work").chmod(0)
    wipe(str(tree))
    assert not tree.exists()
    assert (outside / "kept").exists()


def _session(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None
