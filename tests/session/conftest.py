"""What the tests of whole sessions share: a user's folder, and the real command line in it."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import hasten.errors

SRC = Path(hasten.errors.__file__).parents[1]
MARK = "HASTEN_TEST_MARK"
_MOMENT_S = 20.0

# The least that trains: an optimizer imports torch's compiler, half as long as torch itself.
# `at(step)` is where a test lets something happen.
HEAD = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
at = lambda step: None
"""
LOOP = """
for step in range(int(os.environ.get("STEPS", "100000"))):
    at(step)
    model.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
"""

# Every temporary folder that the parent makes is noted, so that the test can look for it.
NOTES_FOLDERS = """
import os, tempfile
if "HASTEN_CHILD" not in os.environ and "HASTEN_TEST_FOLDERS" in os.environ:
    stock = tempfile.mkdtemp
    def mkdtemp(*args, **kwargs):
        path = stock(*args, **kwargs)
        with open(os.environ["HASTEN_TEST_FOLDERS"], "a") as file:
            file.write(path + "\\n")
        return path
    tempfile.mkdtemp = mkdtemp
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """What hasten itself said at the end: the problem, then the remedy."""
        lines = self.err.splitlines()
        heads = [i for i, line in enumerate(lines) if line.startswith("hasten: ")]
        if not heads:
            return []
        return [lines[heads[-1]].removeprefix("hasten: "), *map(str.strip, lines[heads[-1] + 1 :])]


@dataclass
class Project:
    """A user's folder, and everything that commands in it could leave behind."""

    root: Path
    home: Path
    env: dict[str, str]
    noted: Path
    source: Path = SRC / "hasten"
    leaked: list[int] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def script(self, at: str = "", *, head: str = "", tail: str = "", name: str = "train.py"):
        """Write a script that trains; `at` is the body of what happens before each step."""
        body = "".join(f"    {line}\n" for line in at.strip().splitlines())
        given = f"def at(step):\n{body}" if body else ""
        return self.write(name, f"{head}\n{HEAD}\n{given}\n{LOOP}\n{tail}\n")

    def command(self, *words: str) -> list[str]:
        """Return the command line of hasten."""
        return [sys.executable, "-m", "hasten", *words]

    @contextmanager
    def begun(self, *words: str, argv=None, env=None, **options):
        """Start hasten in the folder; whatever happens, nothing of it is left."""
        process = subprocess.Popen(
            argv or self.command(*words), cwd=self.root, env={**self.env, **(env or {})},
            stdin=options.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True, **options,
        )  # fmt: skip
        try:
            with process:
                yield process
                process.kill()
        finally:
            process.kill()
            self._end_all()

    def _end_all(self) -> None:
        """Give the guards a moment to clean up; what is left then is ended, and remembered."""
        until = time.monotonic() + _MOMENT_S
        while (left := self.living()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            self.leaked.append(pid)
            os.kill(pid, signal.SIGKILL)

    def hasten(self, *words: str, limit_s: float = 120, stdin_text=None, **options) -> Ended:
        """Run a command of hasten to its end."""
        if stdin_text is not None:
            options["stdin"] = subprocess.PIPE
        with self.begun(*words, **options) as process:
            out, err = process.communicate(stdin_text, timeout=limit_s)
            return Ended(process.returncode, out, err)

    def python(self, *words: str, **options) -> Ended:
        """Run plain python, for comparison."""
        return self.hasten(argv=[sys.executable, *words], **options)

    def living(self) -> list[int]:
        """Return every process that a command in this folder has left, detached or not."""
        mark = f"{MARK}={self.env[MARK]}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if mark in _environment(pid)]  # fmt: skip

    def trials(self) -> list[int]:
        """Return the processes that hasten has started as trials."""
        return [pid for pid in self.living() if b"HASTEN_CHILD=" in _environment(pid)]

    def folders(self) -> list[str]:
        """Return the temporary folders of hasten that are still there."""
        made = self.noted.read_text().splitlines() if self.noted.exists() else []
        return [path for path in made if os.path.lexists(path)] + os.listdir(self.env["TMPDIR"])

    def tree(self) -> dict[str, str]:
        """Return a hash of each file in the user's folder."""
        return {
            str(path.relative_to(self.root)): _digest(path) for path in sorted(self.root.rglob("*"))
        }

    def nothing_left(self) -> bool:
        """Whether no process and no temporary folder is there, soon."""
        until = time.monotonic() + _MOMENT_S
        while self.folders() and time.monotonic() < until:
            time.sleep(0.05)
        assert not self.leaked
        assert not self.living()
        assert not self.folders()
        return True


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


@pytest.fixture
def project(tmp_path):
    """A user's folder of its own, with a home and temporary folders that can be searched."""
    root, home, site = (tmp_path / name for name in ("work", "home", "site"))
    for folder in (root, home, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(NOTES_FOLDERS)
    noted = tmp_path / "folders"
    temporary = tempfile.mkdtemp(prefix="ut-")  # short: sockets lie beneath
    env = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(SRC), str(site)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": temporary,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
        MARK: uuid.uuid4().hex,
        "TEST_SESSION_MARK": os.environ["TEST_SESSION_MARK"],
        "HASTEN_TEST_FOLDERS": str(noted),
    }
    yield Project(root=root, home=home, env=env, noted=noted)
    shutil.rmtree(temporary, ignore_errors=True)
