"""Plant faults in the source one by one, and see whether the tests notice.

`make mutants` runs the faults in `faults.toml`, an hour for all; `ARGUMENTS="NAME..."` some of
them, by a part of their name. With `--every FILE TEST...` every place of a file is changed in turn,
to find what to add to the list: comparisons, constants, operators, conditions and calls.

Each fault is planted in a copy of the tree. It is killed where one of its tests fails, and
survives where all pass. A survivor that the list does not explain is an error; so is an
explanation of a fault that is killed, a fault whose text is not found once, and a test that fails
without a fault.

A run that was cut off goes on where it was: what came of a fault is kept in `build/mutants.jsonl`,
for as long as the fault, its file and its tests are the same. That the rest of the source is the
same is not looked at: delete the file to try all again.

Tests of `tests/accelerator` are run with the accelerator of the tests, which this builds.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
from places import places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
COPIED = ("src", "tests", "docs", "examples", "pyproject.toml", "README.md")
RECORD = ROOT / "build" / "mutants.jsonl"
LAGGARD = ROOT / "tests/accelerator/laggard/laggard.py"
IMPORTS = ("pytest", "numpy", "hypothesis", "hypothesis.strategies", "msgspec", "torch")
ALL_PASSED, SOME_FAILED, BROKEN = 0, 1, 2
CHECK_LIMIT_S, LEAST_LIMIT_S, LIMIT_RATIO = 900.0, 20.0, 5.0
KILLED, SURVIVED, UNTRIED = "killed", "survived", "untried"


class StaleList(Exception):
    """A fault that cannot be planted, or a test that is not there."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of the source that some test should notice.

    Attributes:
        old: text that stands in the file once.
        tests: what is run, as for pytest.
        survives: why no test can notice it; empty where one must.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""
    survives: str = ""

    def plant(self, source: str) -> str:
        """Return the source with the fault in it."""
        count = source.count(self.old)
        if count != 1:
            raise StaleList(f"{self.name}: {self.old!r} stands {count} times in {self.file}.")
        return source.replace(self.old, self.new)

    @property
    def on_accelerator(self) -> bool:
        """Whether a test needs the accelerator of the tests."""
        return any(test.startswith("tests/accelerator") for test in self.tests)

    def key(self, root: Path) -> str:
        """Return what tells it, its file and its tests in a copy from any other."""
        files = [self.file, *(test.partition("::")[0] for test in self.tests)]
        texts = [(root / file).read_text("utf-8") for file in files]
        return hashlib.sha256(repr((self.old, self.new, self.tests, texts)).encode()).hexdigest()


def read_list(path: Path = LIST) -> list[Fault]:
    """Return the committed faults; each must be possible to plant."""
    groups = tomllib.loads(path.read_text("utf-8"))
    faults = []
    for group in groups["group"]:
        for row in group["fault"]:
            shared = {key: group[key] for key in ("file", "tests") if key in group}
            fields = {**shared, **row}
            faults.append(Fault(**{**fields, "tests": tuple(fields["tests"])}))
    names = [fault.name for fault in faults]
    if twice := {name for name in names if names.count(name) > 1}:
        raise StaleList(f"Two faults are called {sorted(twice)[0]}.")
    for fault in faults:
        if not (ROOT / fault.file).is_file():
            raise StaleList(f"{fault.name}: there is no {fault.file}.")
        fault.plant((ROOT / fault.file).read_text("utf-8"))
        for test in fault.tests:
            if not (ROOT / test.partition("::")[0]).is_file():
                raise StaleList(f"{fault.name}: there is no {test}.")
    return faults


def every_fault(file: str, tests: Sequence[str], explained: Iterable[Fault]) -> Iterator[Fault]:
    """Yield a fault for each place of a file, but for those whose survival is explained."""
    source = (ROOT / file).read_text("utf-8")
    known = {fault.plant(source) for fault in explained if fault.file == file and fault.survives}
    for line, change, mutant in places(source):
        if mutant not in known:
            name = f"{Path(file).name}:{line} {change}"
            yield Fault(name=name, file=file, old=source, new=mutant, tests=tuple(tests))


class Server:
    """A process that has imported what tests import, and forks for each run of them.

    Starting Python and pytest anew takes longer than most of the tests.
    """

    def __init__(self, root: Path, *, path: Sequence[str] = ()) -> None:
        self.root = root
        self._edit_count = 0
        given = {
            "HYPOTHESIS_STORAGE_DIRECTORY": str(root / ".hypothesis"),
            # The copy, too: files in a temporary folder that none imports from are no user's.
            "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), *path]),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *IMPORTS], env={**os.environ, **given},
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, tests: Sequence[str], *, limit_s: float) -> int:
        """Run tests; return the exit code of pytest, SOME_FAILED past the limit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([limit_s, *tests]).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def write(self, file: str, source: str) -> None:
        """Change a file of the copy; its time tells the old byte code from the new."""
        path = self.root / file
        path.write_text(source, "utf-8")
        self._edit_count += 1
        os.utime(path, (self._edit_count, self._edit_count))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def serve(imports: Sequence[str]) -> None:
    """Run the tests that each line of standard input names, in a fork of this process."""
    _die_with_parent()
    for name in imports:
        importlib.import_module(name)
    answers, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    for line in sys.stdin.buffer:
        limit_s, *tests = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.dup2(null, 0)
            os.setsid()
            _die_with_parent()
            _become_pytest(tests)
        os.write(answers, f"{_wait(pid, limit_s)}\n".encode())


def _die_with_parent() -> None:
    """Let nothing outlive a runner that is killed (PR_SET_PDEATHSIG)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _become_pytest(tests: Sequence[str]) -> None:
    pytest = importlib.import_module("pytest")
    sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]
    words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning",
             "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
    code = BROKEN
    try:
        code = int(pytest.main([*words, *tests]))
    finally:
        os._exit(code)


def _wait(pid: int, limit_s: float) -> int:
    """Return the exit code of a process; SOME_FAILED where it takes too long, or is killed."""
    until_s = time.monotonic() + limit_s
    ended = 0
    while not ended and time.monotonic() < until_s:
        time.sleep(0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return SOME_FAILED
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else SOME_FAILED


@contextmanager
def servers(count: int, *, on_accelerator: bool) -> Iterator[SimpleQueue[Server]]:
    """Make copies of the tree to plant faults in, with a server for each."""
    queue: SimpleQueue[Server] = SimpleQueue()
    path = [str(LAGGARD.parent)] if on_accelerator else []
    if on_accelerator:
        subprocess.run([sys.executable, LAGGARD], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="hasten-mutants-") as folder, ExitStack() as stack:
        for index in range(count):
            root = Path(folder, str(index))
            root.mkdir()
            for name in COPIED:
                if (ROOT / name).is_dir():
                    leave = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / name, root / name, ignore=leave)
                else:
                    shutil.copy(ROOT / name, root / name)
            server = Server(root, path=path)
            stack.callback(server.close)
            queue.put(server)
        yield queue


class Limits:
    """How long tests may take with a fault: some times what they take without one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[tuple[str, ...], float] = {}

    def of(self, tests: tuple[str, ...], server: Server) -> float:
        """Return the seconds; 0 for tests that fail without a fault. The first call runs them."""
        with self._lock:
            if tests not in self._seconds:
                started_s = time.monotonic()
                code = server.run(tests, limit_s=CHECK_LIMIT_S)
                took_s = time.monotonic() - started_s
                self._seconds[tests] = max(LEAST_LIMIT_S, LIMIT_RATIO * took_s)
                if code != ALL_PASSED:
                    self._seconds[tests] = 0.0
                    print(
                        f"!! Without a fault pytest ends with {code} on {' '.join(tests)}.",
                        flush=True,
                    )
            return self._seconds[tests]


class Record:
    """What came of faults in this run and in those before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        path.touch()
        self.outcomes: dict[str, str] = dict(map(json.loads, path.read_text("utf-8").splitlines()))

    def add(self, key: str, outcome: str) -> None:
        """Keep an outcome."""
        if key in self.outcomes:
            return
        self.outcomes[key] = outcome
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, outcome]) + "\n")


def try_fault(fault: Fault, server: Server, limits: Limits) -> str:
    """Plant a fault in a copy; return what came of it."""
    limit_s = limits.of(fault.tests, server)
    if not limit_s:
        return UNTRIED
    source = (server.root / fault.file).read_text("utf-8")
    try:
        server.write(fault.file, fault.plant(source))
        code = server.run(fault.tests, limit_s=limit_s)
    finally:
        server.write(fault.file, source)
    if code not in (ALL_PASSED, SOME_FAILED, BROKEN):
        print(f"!! {fault.name}: pytest ends with {code}.", flush=True)
        return UNTRIED
    return SURVIVED if code == ALL_PASSED else KILLED


def outcomes(faults: Sequence[Fault], jobs_count: int) -> Iterator[tuple[Fault, str, float]]:
    """Yield each fault with what came of it, and the seconds it took."""
    record, limits = Record(RECORD), Limits()

    def outcome(fault: Fault) -> tuple[Fault, str, float]:
        server, started_s = queue.get(), time.monotonic()
        try:
            key = fault.key(server.root)
            found = record.outcomes.get(key) or try_fault(fault, server, limits)
        finally:
            queue.put(server)
        if found != UNTRIED:
            record.add(key, found)
        return fault, found, time.monotonic() - started_s

    for on_accelerator in (False, True):
        chosen = [fault for fault in faults if fault.on_accelerator is on_accelerator]
        if chosen:
            with (
                servers(jobs_count, on_accelerator=on_accelerator) as queue,
                ThreadPoolExecutor(jobs_count) as pool,
            ):
                yield from pool.map(outcome, chosen)


def run(faults: Sequence[Fault], *, jobs_count: int, quiet: bool) -> int:
    """Try the faults, print what came of each, and return the exit code."""
    wrong, started_s = 0, time.monotonic()
    for number, (fault, outcome, seconds) in enumerate(outcomes(faults, jobs_count), 1):
        is_expected = outcome == (SURVIVED if fault.survives else KILLED)
        wrong += not is_expected
        if not quiet or not is_expected:
            mark, why = "  " if is_expected else "!!", fault.survives or fault.why
            place = f"{number} of {len(faults)}"
            print(f"{mark} {place} {outcome:8} {seconds:5.1f} s  {fault.name}  {why}", flush=True)
    minutes = (time.monotonic() - started_s) / 60
    print(f"{len(faults)} faults, {wrong} not as the list says; {minutes:.0f} minutes.")
    return 1 if wrong else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of faults in the list")
    parser.add_argument("--every", nargs="+", metavar="FILE", help="a file, then its tests")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    try:
        listed = read_list()
        if asked.every:
            file, *tests = asked.every
            return run(
                list(every_fault(file, tests, listed)), jobs_count=asked.jobs, quiet=True
            )  # fmt: skip
        chosen = [
            fault
            for fault in listed
            if not asked.names or any(part in fault.name for part in asked.names)
        ]
        return run(chosen, jobs_count=asked.jobs, quiet=False)
    except StaleList as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
