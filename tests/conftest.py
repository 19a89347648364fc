"""What tests of several stages share."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import upshift

SRC = Path(upshift.__file__).parents[1]


def pytest_configure() -> None:
    """Let programs under test be interrupted, also where the tests run under nohup or with `&`.

    An ignored signal stays ignored across exec; a shell ignores SIGINT for what it runs with `&`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def gathered():
    """Run a program in a fresh Python and return the `facts` that it gathered."""

    def run(program: str, *, timeout_s: float = 120.0):
        done = subprocess.run(
            [sys.executable, "-c", f"{program}\nprint(json.dumps(facts))"],
            capture_output=True, text=True, timeout=timeout_s, check=False,
            env={"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
