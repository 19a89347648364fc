"""How a trial that never trains is told: by its own words, or by what keeps upshift out."""

import sys

import pytest

from upshift.errors import IsolationFailed, NeverTrains, ScriptFailed
from upshift.launch.arm import Arm
from upshift.launch.process import Isolation
from upshift.records import Entry, Plan, Workload

pytestmark = pytest.mark.child

WARNS = """
import sys
print("mkdir -p failed for path /.config/matplotlib: [Errno 13] Permission denied",
      file=sys.stderr)
"""


@pytest.fixture
def arm(tmp_path):
    """Start a script or a command as a trial with redirected writes, and end it afterwards."""
    begun = []

    def start(script: str = "", command: tuple[str, ...] = ()) -> Arm:
        (tmp_path / "train.py").write_text(script)
        workload = Workload(
            entry=Entry.COMMAND if command else Entry.SCRIPT, argv=command or ("train.py",),
            cwd=str(tmp_path), python=sys.executable,
        )  # fmt: skip
        begun.append(Arm(workload, Plan(), isolation=Isolation.REDIRECT, patience_s=60.0))
        return begun[-1]

    yield start
    for each in begun:
        each.close()


def test_a_warning_about_a_permission_does_not_hide_why_the_script_failed(arm) -> None:
    with pytest.raises(ScriptFailed) as failed:
        arm(WARNS + "len(3)\n").begin()
    assert "The script failed (exit code 1)" in failed.value.problem
    assert "TypeError: object of type 'int' has no len()" in failed.value.last_words


def test_a_script_that_only_warns_and_never_trains_is_told_so(arm) -> None:
    with pytest.raises(NeverTrains, match="ended without an optimizer step"):
        arm(WARNS).begin()


def test_a_write_that_was_really_refused_is_told_with_the_script_s_words(arm, tmp_path) -> None:
    with pytest.raises(IsolationFailed) as failed:
        arm("import io\nio.FileIO('log.csv', 'w')\n").begin()
    assert f"The script writes to {tmp_path}/log.csv, which" in failed.value.problem
    assert "PermissionError" in failed.value.output


def test_a_shell_script_that_sets_pythonpath_anew_is_told_what_to_write(arm) -> None:
    line = f"PYTHONPATH=. exec {sys.executable} -c pass"
    with pytest.raises(NeverTrains) as failed:
        arm(command=("sh", "-c", line)).begin()
    assert "`PYTHONPATH=. python train.py`" in failed.value.problem
    assert "a Python before 3.11" in failed.value.problem
    assert "`PYTHONPATH=.:$PYTHONPATH`" in failed.value.remedy
