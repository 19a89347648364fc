"""What tests of several stages share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import upshift

SRC = Path(upshift.__file__).parents[1]


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
