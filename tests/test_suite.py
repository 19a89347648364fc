"""The rules that hold for every test, shown by a small suite of its own under the same conftest."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import pytest

HERE = Path(__file__).parent
LEFT = """import os, subprocess, sys, pytest
SLEEP = [sys.executable, '-c', 'import time; time.sleep(60)']
"""
START = """
    pid = subprocess.Popen(SLEEP, start_new_session=True).pid
    open({file!r}, "w").write(str(pid))
"""


@pytest.fixture
def outcomes(tmp_path):
    """Run tests under the conftest of the project; return pytest's summary lines."""
    for name in ("conftest.py", "suite.py", "warm_python.py", "torchvision_ops"):
        copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
        copy(HERE / name, tmp_path / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(source, ci):
        (tmp_path / "test_it.py").write_text(LEFT + source)
        words = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-n", "0"]
        src = str(HERE.parent / "src")
        env = {**os.environ, "CI": ci, "PYTHONPATH": src, "COLUMNS": "400", "TEST_MOMENT_S": "1"}
        done = subprocess.run(
            [*words, "test_it.py"], cwd=tmp_path, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.stdout

    return run


def alive(path):
    try:
        stat = Path(f"/proc/{path.read_text()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.child
@pytest.mark.parametrize(("ci", "outcome"), [("true", "failed"), ("", "skipped")])
@pytest.mark.parametrize(
    "skip",
    [
        "def test_it(): pytest.importorskip('no_such_package')",
        "pytest.importorskip('no_such_package')\ndef test_it(): pass",
        "@pytest.mark.skipif(True, reason='no browser')\ndef test_it(): pass",
        "@pytest.fixture\ndef it(): pytest.skip('no overlay')\ndef test_it(it): pass",
    ],
)
def test_a_skip_for_want_of_what_can_be_installed_fails_under_ci(
    skip, ci, outcome, outcomes
) -> None:
    said = outcomes(skip, ci).splitlines()[-1]
    assert outcome in said or (outcome == "failed" and "error" in said)


@pytest.mark.child
def test_a_skip_for_want_of_hardware_stays_one_under_ci(outcomes) -> None:
    assert "1 skipped" in outcomes("def test_it(): pytest.skip('needs two CPUs')", "true")


@pytest.mark.child
def test_what_a_failed_test_left_running_is_ended(outcomes, tmp_path) -> None:
    file = str(tmp_path / "pid")
    said = outcomes(f"def test_it():{START.format(file=file)}    assert not 'wrong'", "")
    assert "1 failed" in said
    assert "error" not in said
    assert not alive(tmp_path / "pid")


@pytest.mark.child
def test_a_test_that_passes_and_leaves_a_process_is_an_error(outcomes, tmp_path) -> None:
    file = str(tmp_path / "pid")
    said = outcomes(f"def test_it():{START.format(file=file)}", "")
    assert "the test left processes" in said
    assert not alive(tmp_path / "pid")


@pytest.mark.child
def test_what_serves_as_python_ends_with_tests_that_are_killed(outcomes, tmp_path) -> None:
    find = "subprocess.run(['pgrep', '-P', str(os.getpid())], stdout=open({file!r}, 'w'))"
    find = find.format(file=str(tmp_path / "pid"))
    outcomes(f"def test_it(warm_python):\n    {find}\n    os.kill(os.getpid(), 9)", "")
    (tmp_path / "pid").write_text((tmp_path / "pid").read_text().split()[0])
    until = time.monotonic() + 5
    while alive(tmp_path / "pid") and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(tmp_path / "pid")


def test_no_property_fails_for_the_time_that_it_takes() -> None:
    assert hypothesis.settings().deadline is None
