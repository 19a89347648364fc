"""Tests on `laggard`, an accelerator that torch has to know from its import on.

`make test` builds it and runs this folder with it on the PYTHONPATH. Beside another accelerator
those tests are collected that any will do for, and without one none.
"""

import os
import subprocess
import sys

import pytest
import torch

DEVICE = torch.accelerator.current_accelerator()
collect_ignore_glob = ["laggard/*", "*_training.py", "placed.py"]
if DEVICE is None:
    collect_ignore_glob.append("test_*.py")
elif DEVICE.type != "laggard":
    late = ("copies", "findings", "laggard", "memory", "timeline")
    collect_ignore_glob += [f"test_{name}.py" for name in late]


@pytest.fixture(autouse=True)
def prompt():
    """Leave the device without delay for the next test."""
    yield
    torch.accelerator.synchronize()
    if DEVICE.type == "laggard":
        import laggard

        laggard.configure()


@pytest.fixture(scope="session")
def ran(child_python):
    """Run a script with these words, or `hasten run` with its own, to the end."""

    def run(*words, cwd=None, **env):
        start = [child_python]
        if words[0] == "run":
            end = next(n for n, word in enumerate(words) if word.endswith(".py"))
            start = [sys.executable, "-m", "hasten", *words[:end], "--", child_python]
            words = words[end:]
        return subprocess.run(
            [*start, *words], cwd=cwd, capture_output=True, text=True, check=False,
            env={**os.environ, **env},
        )  # fmt: skip

    return run
