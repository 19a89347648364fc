import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hasten.errors import IsolationFailed
from hasten.trials.isolation.removal import wipe
from hasten.trials.process import Exit, Isolation
from hasten.trials.process_tree import descendants

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
from hasten.errors import IsolationFailed
from hasten.trials.process_tree import descendants
from hasten.trials.process import Isolation, Process
scratch = Path(sys.argv[1]); scratch.mkdir()
argv = [sys.executable, "-c", sys.argv[3], "60"]
way = Isolation(sys.argv[2])
process = Process.start(argv, env=os.environ, cwd="/", scratch=scratch, isolation=way)
while not process.output(): time.sleep(0.01)
time.sleep(0.1)
print(*descendants(process._guard.pid), process._guard.pid, *process._folders, flush=True)
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
    daemon = trials.outside(process, process.output())
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
        words = parent.stdout.readline().split()
        parent.send_signal(number)
    pids = [int(word) for word in words if word.isdigit()]
    folders = [word for word in words if not word.isdigit()]
    assert len(pids) >= 4  # the guard, the keeper, the command and its daemon
    assert trials.eventually(lambda: not any(map(trials.alive, pids)))
    assert not any(Path(folder).exists() for folder in folders)


@pytest.mark.child
def test_the_guard_s_death_ends_the_script(begin, trials) -> None:
    process = begin("import time; time.sleep(60)")
    os.kill(process._guard.pid, signal.SIGKILL)
    ended = process.wait(30)
    assert ended == Exit(None, None, lost=True)
    with pytest.raises(IsolationFailed, match="guard of a trial was killed"):
        process.raise_if_outside()
    assert trials.eventually(lambda: not trials.alive(process.pid))


@pytest.mark.child
def test_a_command_dies_with_its_keeper_though_no_guard_can_act(begin, trials) -> None:
    """As where memory runs out and the kernel takes both."""
    process = begin("import time; print('up', flush=True); time.sleep(60)", Isolation.NONE)
    assert trials.eventually(process.output)
    os.kill(process._guard.pid, signal.SIGSTOP)
    try:
        os.kill(process.keeper, signal.SIGKILL)
        assert trials.eventually(lambda: not trials.alive(process.pid))
    finally:
        os.kill(process._guard.pid, signal.SIGCONT)


@pytest.mark.child
def test_a_signal_to_the_guard_ends_the_trial_cleanly(begin, trials, isolation) -> None:
    process = begin([sys.executable, "-c", DAEMON, "60"], isolation)
    assert trials.eventually(process.output)
    daemon = trials.outside(process, process.output())
    os.kill(process._guard.pid, signal.SIGTERM)
    assert process.wait(30) == Exit(None, 9)
    assert not trials.alive(daemon)


@pytest.mark.child
@pytest.mark.parametrize("parked", [False, True], ids=["running", "parked"])
@pytest.mark.parametrize("code", [SHARING, SHARING_TENSORS], ids=["python", "torch"])
def test_what_a_killed_trial_keeps_in_shared_memory_goes_with_it(
    begin, trials, code, parked
) -> None:
    process = begin(code, Isolation.NONE)  # else it may be memory of the trial's own
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
    assert trials.eventually(lambda: len(descendants(guard)) > 30)
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


@pytest.mark.parametrize("linked", ["tree", "folder"])
def test_wipe_removes_what_is_or_becomes_a_link_and_not_its_target(
    tmp_path, monkeypatch, linked
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "tree" / "folder").mkdir(parents=True)
    stock = os.stat

    def stat(name, **where):
        found = stock(name, **where)
        if name == "folder" and (tmp_path / "tree" / "folder").is_dir():
            link(tmp_path / "tree" / "folder")
        return found

    def link(path):
        shutil.rmtree(path)
        path.symlink_to(tmp_path / "outside")

    if linked == "tree":
        link(tmp_path / "tree")
    else:
        monkeypatch.setattr(os, "stat", stat)
    wipe(str(tmp_path / "tree"))
    assert not os.path.lexists(tmp_path / "tree")
    assert (tmp_path / "outside" / "kept").exists()


def test_wipe_removes_what_is_deeper_than_recursion_and_paths_can_be(tmp_path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    depth = sys.getrecursionlimit() + 2000
    for name in ("tree", *["a-folder"] * depth):
        os.mkdir(name, dir_fd=at)
        beneath = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = beneath
    os.close(os.open("file", os.O_CREAT, dir_fd=at))
    os.close(at)
    wipe(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()


def test_wipe_passes_over_what_cannot_be_removed(tmp_path, monkeypatch) -> None:
    for name in ("tree/a/b", "tree/c/d", "tree/e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tree" / "c" / "kept").touch()
    stock = os.unlink

    def unlink(name, **where):
        if name == "kept":
            raise PermissionError
        stock(name, **where)

    monkeypatch.setattr(os, "unlink", unlink)
    wipe(str(tmp_path / "tree"))
    assert [p.name for p in sorted((tmp_path / "tree").rglob("*"))] == ["c", "kept"]


def _session(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


@pytest.mark.child
def test_a_trial_ignores_no_signal_that_its_script_would_not(begin) -> None:
    """Python ignores SIGPIPE for itself; what it starts would inherit that."""
    process = begin(["grep", "SigIgn", "/proc/self/status"])
    assert process.wait(30) == Exit(0, None)
    ignored = int(process.output().split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1, number.name
