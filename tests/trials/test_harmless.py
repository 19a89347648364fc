"""What trials must not harm, on every level of isolation, as root and as an ordinary user."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hasten.trials.isolation import landlock
from hasten.trials.isolation.removal import wipe
from hasten.trials.process import best_isolation

pytestmark = pytest.mark.child

LEVELS = {
    "overlay": "", "overlay-shared": "namespaces",
    "landlock": "overlay", "landlock-shared": "overlay,namespaces",
}  # fmt: skip
ORDINARY = ["setpriv", "--reuid", "4320", "--regid", "4320", "--clear-groups"]

# Starts one trial on the strictest level that is left, and says what is to be gone afterwards.
DRIVER = """
import os, sys, tempfile, time
from pathlib import Path
from hasten.trials.process_tree import descendants
from hasten.trials.process import Process, best_isolation
script, how, *words = sys.argv[1:]
process = Process.start([sys.executable, "-B", script, *words, str(os.getpid())], env=os.environ,
                        cwd=os.getcwd(), scratch=Path(tempfile.mkdtemp(dir=Path.cwd().parent)),
                        isolation=best_isolation(os.getcwd()))
if how == "wait":
    process.wait(60)
else:
    while "ready" not in process.output() and process.wait(0) is None: time.sleep(0.01)
    print(process._guard.pid, flush=True)
    if how == "stay": time.sleep(60)
process.kill()
print(process.output(), best_isolation(os.getcwd()))
print("left", [str(f) for f in process._folders if f.exists()], flush=True)
"""

# Each line is one harm; what the isolation refuses is all right.
HARMS = r"""
import ctypes, os, subprocess, sys, time
token, kept, parent = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def sh(line): subprocess.run(["bash", "-c", line], stderr=subprocess.DEVNULL)
def opened(path, act):
    fd = os.open(path, os.O_RDONLY)
    try: act(fd)
    finally: os.close(fd)
def deep():
    os.chdir(os.environ.get("TMPDIR", "/var/tmp"))
    for _ in range(1500): libc.mkdir(b"deeper", 0o700); libc.chdir(b"deeper")
def out(pid):
    for way in ("root", "cwd/../../../../../../../.."):
        with open(f"/proc/{pid}/{way}{here}/log.csv", "a") as f: f.write("out")
here = os.getcwd()
HARMS = [
    lambda: open("log.csv", "a").write("x"),
    lambda: opened("log.csv", lambda fd: os.fchmod(fd, 0o600)),
    lambda: opened("log.csv", lambda fd: os.chmod(fd, 0o611)),
    lambda: opened("log.csv", lambda fd: os.utime(fd, (1, 1))),
    lambda: opened("log.csv", lambda fd: os.setxattr(fd, "user.a", b"b")),
    lambda: opened("data", lambda fd: os.fchmod(fd, 0o711)),
    lambda: opened("data", lambda fd: os.utime("x.csv", (1, 1), dir_fd=fd)),
    lambda: opened("log.csv", lambda fd: libc.fchmod(fd, 0o640)),
    lambda: libc.chmod(b"log.csv", 0o640),
    lambda: libc.utimes(b"log.csv", None),
    lambda: libc.setxattr(b"log.csv", b"user.c", b"d", 1, 0),
    lambda: libc.chown(b"log.csv", os.getuid(), os.getgid()),
    lambda: sh("chmod 600 log.csv; touch -d 2001-01-01 data; echo x >> log.csv; chattr +d log.csv"),
    lambda: sh("rm -rf runs; mv weights heavy; ln -sf nowhere study.db"),
    lambda: sh(f"echo x >> /dev/shm/{kept}; echo y > /dev/shm/{token}; chmod 600 /dev/shm/{kept}"),
    lambda: open(f"/dev/shm/{kept}", "a").write("z"),
    lambda: open(f"/dev/shm/{token}-2", "w").write("z"),
    lambda: sh("chmod 600 pipe live.sock; touch -d 2001-01-01 pipe live.sock"),
    lambda: [os.chmod(path, 0o600) for path in ("pipe", "live.sock")],
    lambda: libc.shmget(0, 4321, 0o1600),
    lambda: libc.msgget(0, 0o1600),
    lambda: libc.semget(0, 3, 0o1600),
    lambda: ctypes.CDLL("librt.so.1").mq_open(f"/{token}".encode(), 66, 0o600, None),
    lambda: [out(pid) for pid in (parent, os.getppid(), 1)],
    deep,
]
for harm in HARMS:
    try: harm()
    except (OSError, ValueError, AttributeError) as error: print(type(error).__name__, error)
    os.chdir(here)
immune = f"trap '' TERM HUP; exec -a {token} sleep 60"
subprocess.Popen(["bash", "-c", immune], start_new_session=True)
print("ready", flush=True)
if os.environ.get("STAY"): time.sleep(60)
"""

STORM = r"""
import os, time
if os.fork() == 0:
    for number in range(20):
        if os.fork() == 0:
            apart = APART[number % len(APART)]
            while True:
                time.sleep(NAP_S)
                os.setsid() if apart and os.getpgid(0) != os.getpid() else None
                if os.fork(): os._exit(0)
time.sleep(0.5)
print("ready", flush=True)
time.sleep(60)
"""


# Each would leave the machine as it is, were it permitted.
MACHINE = r"""
import os, socket, subprocess, time
def clock(): time.clock_settime(time.CLOCK_REALTIME, time.time())
def setting():
    path = "/proc/sys/vm/swappiness"
    with open(path) as f: done = subprocess.run(["tee", path], stdin=f, stderr=subprocess.DEVNULL)
    if done.returncode: raise OSError
def name():
    if os.readlink("/proc/self/ns/uts") != os.environ["UTS"]: raise OSError
    socket.sethostname(socket.gethostname())
for change in (clock, setting, name):
    try: change()
    except OSError: print("refused", change.__name__)
print("ready", flush=True)
"""


@pytest.fixture(params=["root", "ordinary"])
def user(request):
    """The words before a command that a user runs, and a Python that may run it."""
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("we are not root")
        return [], sys.executable
    if os.geteuid() != 0:
        return [], sys.executable
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("needs a Python that an ordinary user may run")
    return ORDINARY, str(python)


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """The mechanisms that are switched off, for the strictest to be the one that is meant."""
    if request.param.startswith("overlay") and best_isolation() != "overlay":
        pytest.skip("this kernel permits no overlay to us")
    if request.param.startswith("landlock") and landlock.version() < 2:
        pytest.skip("this kernel has no Landlock that knows renames")
    return request.param


@pytest.fixture
def place(user, trials):
    """A project of the user's, where both may look."""
    root = tempfile.mkdtemp(dir="/tmp", prefix="ut-")
    project = trials.folder(Path(root, "project"))
    os.mkfifo(project / "pipe", 0o644)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(project / "live.sock"))
    for path in [Path(root), project, *project.rglob("*")]:
        if user[0]:
            os.chown(path, 4320, 4320)
    yield project
    wipe(root)  # the standard library's own way recurses


@pytest.fixture
def drive(user, level, place, trials):
    """Start a script as a trial in a process of its own."""
    begun = []

    def start(code, how, *words, **more):
        site = place.parent / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import os\n"
            "if os.environ.get('HASTEN_REDIRECT'):\n"
            "    from hasten.trials.isolation import redirect\n"
            "    redirect.install(os.environ['HASTEN_REDIRECT'])\n"
        )
        (site / "script.py").write_text(code)
        env = {
            "PATH": os.environ["PATH"], "HOME": str(place / "home"), **more,
            "PYTHONPATH": f"{site}:{trials.src}", "HASTEN_WITHOUT": LEVELS[level],
        }  # fmt: skip
        words = [*user[0], user[1], "-B", "-c", DRIVER, str(site / "script.py"), how, *words]
        begun.append(
            subprocess.Popen(
                words, env=env, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
        return begun[0]

    yield start
    for driver in begun:
        driver.kill()
        driver.communicate()
    # As the user's next session does, where guard and parent are gone.
    code = "from hasten.trials.isolation.scratch import sweep; sweep()"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(trials.src)}
    subprocess.run([*user[0], user[1], "-B", "-c", code], env=env, cwd="/", check=True)


def running(token: str) -> list[str]:
    """Return the processes that carry a token in their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended by now
            words = Path("/proc", pid, "cmdline").read_bytes()
            if token.encode() in words and DRIVER[:30].encode() not in words:
                found.append(pid)
    return found


def messages() -> list[str]:
    """Return the System V objects and message queues of the machine."""
    lines = []
    for kind in ("shm", "sem", "msg"):
        for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]:
            lines.append(" ".join([kind, *line.split()[:3]]))
    return lines


def test_the_list_of_harms_harms_nothing(drive, level, place, trials, user) -> None:
    token, kept = trials.unique(), Path("/dev/shm", trials.unique())
    kept.write_text("kept")
    kept.chmod(0o666)
    if user[0]:
        os.chown(kept, 4320, 4320)
    try:
        before = (
            trials.fingerprint(place),
            kept.stat(),
            messages(),
            Path("/proc/mounts").read_text(),
        )
        driver = drive(HARMS, "wait", token, kept.name)
        told, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        way = "overlay" if level.startswith("overlay") else "redirect"
        assert told.splitlines()[-2:] == [f" {way}", "left []"] or told.endswith(
            f"{way}\nleft []\n"
        )
        assert "ready" in told, told + errors
        after = trials.fingerprint(place), kept.stat(), messages(), Path("/proc/mounts").read_text()
        assert after[0] == before[0], told
        assert kept.read_text() == "kept"
        for name in ("st_mode", "st_mtime_ns", "st_size", "st_ino"):
            assert getattr(after[1], name) == getattr(before[1], name)
        assert set(after[2]) <= set(before[2])
        assert after[3] == before[3]
        assert not list(Path("/dev/shm").glob(f"{token}*"))
        assert not Path("/dev/mqueue", token).exists()
        assert not running(token)
    finally:
        kept.unlink()


def test_clock_kernel_settings_and_host_name_stay(drive, level) -> None:
    driver = drive(MACHINE, "wait", UTS=os.readlink("/proc/self/ns/uts"))
    told, errors = driver.communicate(timeout=60)
    assert "ready" in told, told + errors
    expected = {"refused clock", "refused setting", "refused name"}
    if level == "landlock-shared":
        expected = {"refused clock"}
    assert expected <= set(told.splitlines())


def test_guard_and_parent_killed_together_leave_no_process(drive, level, trials) -> None:
    token = trials.unique()
    driver = drive(HARMS, "stay", token, f"{token}-kept", STAY="1")
    guard = int(driver.stdout.readline())
    # In the midst of an exec a process has no arguments.
    assert trials.eventually(lambda: len(running(token)) > 1), running(token)
    for pid in (guard, driver.pid):
        os.kill(pid, signal.SIGKILL)
    assert trials.eventually(lambda: not running(token), 6.0), running(token)
    left = list(Path("/dev/shm").glob(f"{token}*"))
    if level == "landlock-shared":  # the real one: nobody knows who made what bash has put there
        for path in left:
            path.unlink()
    else:
        assert not left


@pytest.mark.parametrize("level", ["overlay", "landlock", "landlock-shared"], indirect=True)
def test_other_processes_of_the_user_are_not_signalled(drive, level, user) -> None:
    if level == "landlock-shared" and landlock.version() < 6:
        pytest.skip("this kernel has no Landlock that knows signals")
    code = (
        "import os, sys\n"
        "os.kill(os.fork() or os._exit(0), 0)\n"  # its own ones it may
        "for pid in map(int, sys.argv[1:]):\n"
        "    try: os.kill(pid, 15); print('harm')\n"
        "    except OSError: print('kept')"
    )
    with subprocess.Popen([*user[0], "sleep", "60"]) as stranger:
        try:
            told, errors = drive(code, "wait", str(stranger.pid)).communicate(timeout=60)
            assert told.split()[:2] == ["kept"] * 2, told + errors
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.parametrize(
    ("killed", "apart", "nap_s"),
    [
        # Without a pause a storm uses up the process ids, and every other test fails.
        pytest.param(False, [False], 0.0, id="ended-one-group", marks=pytest.mark.slow),
        pytest.param(False, [True], 0.0, id="ended-sessions", marks=pytest.mark.slow),
        pytest.param(True, [False], 0.0, id="guard-killed-one-group", marks=pytest.mark.slow),
        pytest.param(True, [True], 0.0, id="guard-killed-sessions", marks=pytest.mark.slow),
        pytest.param(True, [False, True], 0.01, id="guard-killed-gentle"),
    ],
)
def test_a_fork_storm_is_over_when_the_trial_is(drive, trials, apart, killed, nap_s) -> None:
    token = trials.unique()
    storm = f"APART, NAP_S = {apart}, {nap_s}\n{STORM}"
    driver = drive(storm, "stay" if killed else "end", token)
    guard = int(driver.stdout.readline())
    if killed:
        os.kill(guard, signal.SIGKILL)
    else:
        driver.communicate(timeout=60)

    def is_over() -> bool:  # a look at all processes misses some of a storm
        if running(token):
            return False
        time.sleep(0.3)
        return not running(token)

    assert trials.eventually(is_over, 10.0)
