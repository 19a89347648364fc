"""What tests of several stages share."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import upshift

SRC = Path(upshift.__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"]}


def pytest_configure() -> None:
    """Let programs under test be interrupted, also where the tests run under nohup or with `&`.

    An ignored signal stays ignored across exec; a shell ignores SIGINT for what it runs with `&`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Imports torch once, and forks for each program: a line of JSON with the paths of its text and of
# its two streams. A fork goes on behind the loop and ends as any Python does.
WARM = """
import json, os, sys
import torch, torch._dynamo
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
for number, name in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(file, number)
    os.close(file)
text = open(order["text"]).read()
del json, line, pid, order, number, name, file
exec(compile(text, "<string>", "exec"))
"""


class Warm:
    """A Python that has torch already: programs start in a fork of it.

    What depends on how Python starts, such as the environment, cannot be tested in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python: subprocess.Popen[str] | None = None

    def run(self, text: str, *, timeout_s: float) -> tuple[int, str, str]:
        """Run a program; return its exit code and what it printed."""
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True, env=ENVIRONMENT,
            )  # fmt: skip
        paths = {name: self._folder / name for name in ("text", "out", "err")}
        for path in paths.values():
            path.unlink(missing_ok=True)
        paths["text"].write_text(text)
        self._python.stdin.write(json.dumps({k: str(v) for k, v in paths.items()}) + "\n")
        self._python.stdin.flush()
        if not select.select([self._python.stdout], [], [], timeout_s)[0]:
            self.close()
            pytest.fail(f"no end after {timeout_s:.0f} s: {paths['err'].read_text()}")
        code = int(self._python.stdout.readline())
        return code, paths["out"].read_text(), paths["err"].read_text()

    def close(self) -> None:
        """End it, and what still runs in it."""
        if self._python is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._python.pid, signal.SIGKILL)
            self._python.communicate()
            self._python = None


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Programs in forks of a Python that has torch already."""
    python = Warm(tmp_path_factory.mktemp("warm"))
    yield python
    python.close()


@pytest.fixture(scope="session")
def gathered(warm):
    """Run a program and return the `facts` that it gathered; `fresh` starts a Python for it."""

    def run(program: str, *, timeout_s: float = 120.0, fresh: bool = False):
        text = f"{program}\nprint(json.dumps(facts))"
        if fresh:
            done = subprocess.run(
                [sys.executable, "-c", text], env=ENVIRONMENT, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
            code, out, errors = done.returncode, done.stdout, done.stderr
        else:
            code, out, errors = warm.run(text, timeout_s=timeout_s)
        assert code == 0, errors
        return json.loads(out.splitlines()[-1])

    return run
