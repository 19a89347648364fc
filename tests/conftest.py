"""What tests of several stages share."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
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


@pytest.fixture(scope="session")
def warm_python():
    """What stands for `python` where a test need not see it start (see warm_python.py)."""
    if sys.platform != "linux":
        yield sys.executable
        return
    here = Path(__file__).with_name("warm_python.py")
    spec = spec_from_file_location("warm_python", here)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        client = Path(folder) / "python"
        client.write_text(module.CLIENT.format(python=sys.executable, path=f"{folder}/s"))
        client.chmod(0o700)
        process = subprocess.Popen(
            [sys.executable, str(here), f"{folder}/s"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        assert process.stdout.readline() == b"ready\n"
        yield str(client)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def gathered(warm_python):
    """Run a program and return the `facts` that it gathered; `fresh` lets the test see it start."""

    def run(program: str, *, timeout_s: float = 120.0, fresh: bool = False):
        python = sys.executable if fresh else warm_python
        done = subprocess.run(
            [python, "-c", f"{program}\nprint(json.dumps(facts))"],
            capture_output=True, text=True, timeout=timeout_s, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
