"""The door by which hasten comes in, in Pythons of every age."""

import os
import subprocess
import sys

import pytest

from hasten.trials.child_environment import SITE

CODE = """
import runpy, sys
sys.version_info = {version}
runpy.run_path({path!r})
print("in" if any(type(finder).__name__ == "_Hasten" for finder in sys.meta_path) else "out")
"""


def started(version):
    """Start a Python that says it has this version, with an order that nobody can read."""
    code = CODE.format(version=tuple(version), path=str(SITE / "sitecustomize.py"))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HASTEN_CHILD": "no order"},
    )  # fmt: skip


@pytest.mark.parametrize("version", [(3, 6, 9), (3, 10, 14)], ids=str)
def test_stays_out_of_a_python_that_is_too_old_without_a_word(version) -> None:
    done = started(version)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


def test_comes_into_this_one() -> None:
    assert "JSONDecodeError" in started(sys.version_info[:3]).stderr
