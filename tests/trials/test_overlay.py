import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from hasten.trials.process import Exit, Isolation, best_isolation

pytestmark = pytest.mark.child

# A trial in a name space of mounts that a test has made.
HEAD = """
import os, sys, tempfile
from pathlib import Path
from hasten.trials.process import Isolation, Process

def trial(what, cwd):
    argv = ["sh", "-c", what] if isinstance(what, str) else what
    process = Process.start(argv, env=os.environ, cwd=cwd, scratch=Path(tempfile.mkdtemp()),
                            isolation=Isolation.OVERLAY)
    process.wait(30)
    process.kill()
    return process

def show(process, folder):
    print(process.output() + Path(folder, "file").read_text(), end="")
"""


@pytest.fixture
def overlaid():
    if best_isolation() is not Isolation.OVERLAY:
        pytest.skip("this kernel permits no overlay to us")
    return Isolation.OVERLAY


def test_a_script_sees_its_own_writes_and_the_folder_stays(
    begin, project, trials, isolation
) -> None:
    name, before = trials.unique(), trials.fingerprint(project)
    process = begin([sys.executable, "-c", trials.script, name], isolation, cwd=project)
    assert process.wait(60) == Exit(0, None), process.output()
    assert process.output() == "all seen\n"
    assert trials.fingerprint(project) == before
    assert not Path("/tmp", name).exists()
    process.kill()
    assert trials.fingerprint(project) == before


def test_other_programs_write_into_the_overlay_too(begin, project, trials, overlaid) -> None:
    name, before = trials.unique(), trials.fingerprint(project)
    line = (
        "rm -r runs && mkdir runs && echo x >> log.csv && mv weights w2 && ls w2 && "
        f"touch /var/tmp/{name} /dev/shm/{name}"
    )
    process = begin(["sh", "-ec", line], overlaid, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "a.bin\nb.bin\n"
    assert trials.fingerprint(project) == before
    assert not Path("/var/tmp", name).exists()
    assert not Path("/dev/shm", name).exists()


def test_the_process_is_still_who_and_where_it_was(begin, project, overlaid) -> None:
    code = "import os; print(os.getuid(), os.getgid(), os.getcwd(), os.environ['HOME'])"
    process = begin(code, overlaid, cwd=project)
    process.wait(30)
    expected = f"{os.getuid()} {os.getgid()} {project} {project}/home\n"
    assert process.output() == expected


def test_a_socket_in_the_scratch_folder_is_reached_from_inside(begin, tmp_path, isolation) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = tmp_path / "scratch0" / "s"
        got = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                got.append(connection.recv(99))

        code = (
            "import socket, sys, time, os\n"
            f"path = {str(path)!r}\n"
            "while not os.path.exists(path): time.sleep(0.01)\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(path); s.sendall(b'hello')"
        )
        process = begin(code, isolation)
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert process.wait(30) == Exit(0, None), process.output()
        thread.join(10)
        assert got == [b"hello"]


def test_a_socket_of_another_program_in_tmp_is_reached(begin, overlaid, trials) -> None:
    path = f"/tmp/{trials.unique()[:40]}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        try:
            listener.listen()
            code = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
            process = begin(code, overlaid)
            assert process.wait(30) == Exit(0, None), process.output()
        finally:
            os.unlink(path)


def test_what_lies_in_shared_memory_can_be_read(begin, overlaid, trials) -> None:
    path = Path("/dev/shm", trials.unique())
    path.write_text("a data set")
    try:
        process = begin(f"p = {str(path)!r}; print(open(p).read()); open(p, 'w')", overlaid)
        process.wait(30)
        assert process.output() == "a data set\n"
        assert path.read_text() == "a data set"
    finally:
        path.unlink()


def test_shared_memory_works_between_processes(begin, overlaid) -> None:
    code = (
        "import multiprocessing as m\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "def write(name):\n"
        "    s = SharedMemory(name=name); s.buf[0] = 7; s.close()\n"
        "s = SharedMemory(create=True, size=10)\n"
        "p = m.get_context('fork').Process(target=write, args=(s.name,)); p.start(); p.join()\n"
        "print(s.buf[0]); s.close(); s.unlink()"
    )
    process = begin(code, overlaid)
    process.wait(30)
    assert process.output() == "7\n"


@pytest.fixture
def mounted(overlaid, trials):
    """Run code of ours where other things are mounted, which nobody else sees."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount what a trial should meet")

    def run(mounting: str, code: str) -> subprocess.CompletedProcess:
        line = f'{mounting}; exec {sys.executable} -c "$0"'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-ec", line, HEAD + code], capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": str(trials.src)},
        )  # fmt: skip
        if "unshare failed" in done.stderr:
            pytest.skip("this kernel permits no mount name space to us")
        return done

    return run


@pytest.fixture
def disk(tmp_path):
    """Return a folder with one file, on a file system that is no memory."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_text("real\n")
    kind = subprocess.run(["stat", "-fc", "%T", str(tmp_path)], capture_output=True, check=False)
    if kind.stdout in (b"tmpfs\n", b"ramfs\n"):
        pytest.skip("the temporary folder lies in memory")
    return tmp_path / "disk"


def test_nested_mounts_stay_visible_and_are_protected(mounted, tmp_path) -> None:
    inner = tmp_path / "disk" / "inner"
    inner.mkdir(parents=True)
    done = mounted(
        f"mount -t tmpfs none {inner}; echo real > {inner}/file",
        f"show(trial('cd {inner}; cat file; echo x > file; cat file', '/'), '{inner}')",
    )
    assert done.stdout == "real\nx\nreal\n", done.stderr


def test_a_disk_that_is_mounted_in_run_is_protected(mounted, disk) -> None:
    place = "/run/media/ada/DISK"
    done = mounted(
        f"mount -t tmpfs none /run; mkdir -p {place}; mount --bind {disk} {place}",
        f"show(trial('cat file; echo x > file; cat file', {place!r}), {place!r})",
    )
    assert done.stdout == "real\nx\nreal\n", done.stderr
    assert (disk / "file").read_text() == "real\n"


def test_a_socket_on_a_volume_in_run_is_reached(mounted, disk) -> None:
    done = mounted(
        f"mount -t tmpfs none /run; mkdir /run/volume; mount --bind {disk} /run/volume",
        "import socket\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('/run/volume/s'); s.listen()\n"
        "reach = 'import socket; socket.socket(socket.AF_UNIX).connect(\"/run/volume/s\")'\n"
        "p = trial([sys.executable, '-c', reach], '/'); print(p.exit.code, p.errors())",
    )
    assert done.stdout == "0 \n", done.stderr


def test_a_working_directory_that_nothing_can_cover_is_refused(mounted) -> None:
    done = mounted(
        "mount -t tmpfs none /run; mkdir -p /run/user/1000/project",
        "trial('echo x > file', '/run/user/1000/project')",
    )
    assert "IsolationFailed: " in done.stderr
    assert "trials would write to the real /run/user/1000/project" in done.stderr


def test_a_disk_that_no_overlay_can_lie_over_is_refused_and_told_before(mounted, tmp_path) -> None:
    at = tmp_path  # an overlay over an overlay over a disk: the kernel permits no third one
    done = mounted(
        f"mount -t tmpfs none {at}; cd {at}; mkdir l u1 w1 a u2 w2 b; cd /; "
        f"mount -t overlay none -o lowerdir={at}/l,upperdir={at}/u1,workdir={at}/w1 {at}/a; "
        f"mount -t overlay none -o lowerdir={at}/a,upperdir={at}/u2,workdir={at}/w2 {at}/b",
        "from hasten.trials.process import best_isolation\n"
        f"print(best_isolation('/'), best_isolation('{at}/b'))\n"
        f"trial('echo x > file', '{at}/b')",
    )
    assert done.stdout == "overlay redirect\n", done.stderr
    assert f"no overlay can lie over {at}/b" in done.stderr


# Runs a line as the trial of a user without rights.
TRIAL = """
import os, sys, tempfile; from pathlib import Path
from hasten.trials.process import Isolation, Process, best_isolation
assert best_isolation() is Isolation.OVERLAY, 'SKIP'
p = Process.start(['sh', '-c', sys.argv[1]], env=os.environ, cwd=os.getcwd(),
    scratch=Path(tempfile.mkdtemp()), isolation=Isolation.OVERLAY)
p.wait(30); p.kill(); print(p.output(), end='')
"""


def as_ordinary_user(line, trials, cwd, **env):
    """Run a line as a trial of the user 4320, who is in the group 4321."""
    system = Path("/usr/bin/python3")
    if not (system.exists() and os.access("/usr/bin/setpriv", os.X_OK)):
        pytest.skip("needs setpriv, and a Python that others may run")
    user = ["setpriv", "--reuid", "4320", "--regid", "4320", "--groups", "4321"]
    done = subprocess.run(
        [*user, str(system), "-B", "-c", TRIAL, line], capture_output=True, text=True, check=False,
        cwd=cwd, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(trials.src), **env},
    )  # fmt: skip
    if "SKIP" in done.stderr:
        pytest.skip("this kernel permits no overlay to an ordinary user")
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_an_ordinary_user_writes_beneath_folders_of_others(trials) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        mine = [Path(folder, "users", name) for name in ("project", "home")]
        for path in mine:
            path.mkdir(parents=True)
            os.chown(path, 4320, 4320)
        line = "mkdir new && echo b > new/log && ls; mkdir ~/.cache && ls -A ~; touch ../no 2>&-"
        done = as_ordinary_user(line, trials, mine[0], HOME=str(mine[1]))
        assert done.stdout == "new\n.cache\n", done.stderr
        assert [os.listdir(path) for path in mine] == [[], []]
        assert sorted(os.listdir(Path(folder, "users"))) == ["home", "project"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another group")
def test_an_ordinary_user_changes_what_only_a_group_may_write(tmp_path, trials) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "log.csv").write_text("a\n")
        for path, mode in ((Path(folder), 0o777), (project, 0o770), (project / "log.csv", 0o660)):
            os.chown(path, 0, 4321)
            path.chmod(mode)
        line = "echo b >> log.csv && mkdir new && cat log.csv && ls"
        done = as_ordinary_user(line, trials, project)
        assert done.stdout == "a\nb\nlog.csv\nnew\n", done.stderr
        assert (project / "log.csv").read_text() == "a\n"
        assert os.listdir(project) == ["log.csv"]
