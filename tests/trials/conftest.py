"""What the tests of launch share: a user's folder, its fingerprint, and a way to run scripts."""

import contextlib
import hashlib
import os
import sqlite3
import sys
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten.errors
from hasten.trials.process import Isolation, Process, best_isolation
from hasten.trials.process_tree import descendants, pid_within

SRC = Path(hasten.errors.__file__).parents[1]

# What a training script does to its folder; every step checks that it sees its own writes.
SCRIPT = r"""
import csv, json, mmap, fcntl, os, pathlib, shutil, sqlite3, sys, tempfile, glob
os.umask(0o022)
here = pathlib.Path.cwd()
assert (here / "data" / "x.csv").read_text() == "1,2\n"

shutil.rmtree("runs")                                       # a clean start
assert not os.path.exists("runs") and "runs" not in os.listdir(".")
os.makedirs("runs/new/deep")
assert os.listdir("runs") == ["new"], os.listdir("runs")
assert not os.path.exists("runs/old/log.txt")
with open("log.csv", "a", newline="") as f:                 # an appended log
    csv.writer(f).writerow([1, 2])
assert open("log.csv").read() == "epoch,loss\n1,2\n", open("log.csv").read()
with open("data/x.csv", "r+b") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    with mmap.mmap(f.fileno(), 4) as m:
        m[0:1] = b"9"
assert pathlib.Path("data/x.csv").read_text() == "9,2\n"

with sqlite3.connect("study.db") as db:                     # a study in SQLite
    db.execute("insert into t values (2)")
assert sqlite3.connect(here / "study.db").execute("select sum(a) from t").fetchone() == (3,)

for epoch in range(3):                                      # rotating checkpoints
    with open("checkpoint.tmp", "wb") as f:
        f.write(os.urandom(1000))
    os.replace("checkpoint.tmp", "checkpoint.bin")
assert os.stat("checkpoint.bin").st_size == 1000
os.symlink("checkpoint.bin", "latest")
assert os.path.islink("latest") and len(open("latest", "rb").read()) == 1000
os.link("checkpoint.bin", "hard")
os.symlink(here / "runs" / "new", "current")
pathlib.Path("current/inside.txt").write_text("x")
assert pathlib.Path("runs/new/inside.txt").read_text() == "x"
shutil.move("weights", "moved")
assert sorted(os.listdir("moved")) == ["a.bin", "b.bin"] and not os.path.exists("weights")
os.remove("moved/a.bin")
assert [e.name for e in os.scandir("moved")] == ["b.bin"]
os.chmod("secret.txt", 0o644); os.utime("secret.txt", (1, 1))
assert os.stat("secret.txt").st_mode & 0o777 == 0o644 and os.stat("secret.txt").st_mtime == 1
assert sorted(glob.glob("runs/**/*", recursive=True)) == [
    "runs/new", "runs/new/deep", "runs/new/inside.txt"]
assert [sorted(f) for _, _, f in os.walk("runs")] == [[], ["inside.txt"], []]
shutil.copytree("data", "copy"); shutil.rmtree("data"); os.rename("copy", "data")
assert os.listdir("data") == ["x.csv"]
home = pathlib.Path.home()
(home / ".cache" / "thing").mkdir(parents=True); (home / ".cache" / "thing" / "f").touch()
pathlib.Path("/tmp", sys.argv[1]).write_text("x")
with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f:
    f.write(b"x"); f.flush(); assert os.path.getsize(f.name) == 1
assert not os.path.exists(d)
os.chdir("runs/new")
open("relative.txt", "w").write("y")
assert os.getcwd() == str(here / "runs/new") and os.path.exists(here / "runs/new/relative.txt")
try:
    open("missing/x", "w")
except FileNotFoundError as error:
    assert error.filename == "missing/x" or error.filename.endswith("/missing/x"), error.filename
else:
    raise AssertionError
os.chdir(here)
print("all seen")
"""


def folder(root: Path) -> Path:
    """Make a user's project."""
    for name in ("data", "runs/old", "weights", "home"):
        (root / name).mkdir(parents=True)
    (root / "data" / "x.csv").write_text("1,2\n")
    (root / "runs" / "old" / "log.txt").write_text("old")
    (root / "log.csv").write_text("epoch,loss\n")
    (root / "weights" / "a.bin").write_bytes(b"a" * 5000)
    (root / "weights" / "b.bin").write_bytes(b"b" * 5000)
    (root / "secret.txt").write_text("s")
    (root / "secret.txt").chmod(0o600)
    with contextlib.closing(sqlite3.connect(root / "study.db")) as db, db:
        db.execute("create table t (a)")
        db.execute("insert into t values (1)")
    return root


def fingerprint(root: Path) -> str:
    """Hash names, bytes, links, modes and times of a tree."""
    digest = hashlib.sha256()
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_ino}\n".encode())
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def environment(home: Path, site: Path) -> dict[str, str]:
    """Return an environment whose Python processes redirect where they are told to."""
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('HASTEN_REDIRECT'):\n"
        "    from hasten.trials.isolation import redirect\n"
        "    redirect.install(os.environ['HASTEN_REDIRECT'])\n"
    )
    path = os.pathsep.join([str(site), str(SRC), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    kept = {name: os.environ[name] for name in ("PATH", "TEST_SESSION_MARK")}
    return {**kept, "HOME": str(home), "PYTHONPATH": path}


def unique() -> str:
    """Return a name that no other run uses."""
    return f"hasten-test-{uuid.uuid4().hex}"


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def outside(process: Process, pid: str) -> int:
    """Return our number for a process of a trial, which may know itself by another one."""
    found = descendants(process._guard.pid)
    return next(p for p in found if pid_within(p) == int(pid) and p != process.keeper)


@pytest.fixture
def project(tmp_path) -> Path:
    """A user's project, made anew."""
    return folder(tmp_path / "project")


@pytest.fixture
def begin(tmp_path):
    """Start trials in the project; whatever happens, none is left."""
    begun = []

    def start(argv, isolation=Isolation.NONE, *, cwd=None) -> Process:
        # Short, as the sockets of multiprocessing lie beneath and have 108 bytes for their path.
        scratch = tmp_path / f"scratch{len(begun)}"
        scratch.symlink_to(tempfile.mkdtemp(prefix="hasten-"))
        cwd = cwd or tmp_path
        env = environment(Path(cwd) / "home", tmp_path / "site")
        argv = [sys.executable, "-c", argv] if isinstance(argv, str) else argv
        process = Process.start(argv, env=env, cwd=str(cwd), scratch=scratch, isolation=isolation)
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()


@pytest.fixture(params=[Isolation.OVERLAY, Isolation.REDIRECT], ids=str)
def isolation(request) -> Isolation:
    """Each way to keep writes away that this kernel has."""
    if request.param is Isolation.OVERLAY and best_isolation() is not Isolation.OVERLAY:
        pytest.skip("this kernel permits no overlay to us")
    return request.param


@pytest.fixture
def trials(eventually) -> SimpleNamespace:
    """What the tests of launch share."""
    return SimpleNamespace(
        script=SCRIPT, src=SRC, fingerprint=fingerprint, unique=unique, alive=alive,
        eventually=eventually, outside=outside, folder=folder,
    )  # fmt: skip
