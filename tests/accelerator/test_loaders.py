"""Data levers beside a device whose driver answers in no forked process."""

import os
from functools import cache
from pathlib import Path

import pytest

from hasten.records import Entry, Plan, Workload
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

SCRIPT = str(Path(__file__).with_name("fed_training.py"))
PLANS = (
    ("rows", "batched_fetch=true"),
    pytest.param("rows", "loader_workers=0", marks=pytest.mark.slow),
    ("items", "loader_workers=2"),
    ("items", "sample_cache=1GiB"),
    pytest.param("items", "worker_threads=1", marks=pytest.mark.slow),
    ("items", "device_copies=call"),
    ("items", "device_copies=arrival"),
)


@pytest.fixture(scope="module")
def bits(ran):
    """Run the script to its end; return its bits."""

    @cache
    def run(*words):
        done = ran(*words, LAGGARD_COPY_US="300")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(("kind", "setting"), PLANS)
def test_a_run_gives_the_same_bits(bits, kind, setting) -> None:
    ours = bits("run", "-q", "--set", setting, SCRIPT, kind, "5")
    assert ours == bits(SCRIPT, kind, "5")


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("items", "loader_workers=2"),
        ("items", "device_copies=arrival"),
        pytest.param("rows", "batched_fetch=true", marks=pytest.mark.slow),
        pytest.param("items", "sample_cache=1GiB", marks=pytest.mark.slow),
        pytest.param("items", "device_copies=call", marks=pytest.mark.slow),
    ],
)
def test_a_trial_survives(child_python, kind, setting) -> None:
    workload = Workload(
        entry=Entry.SCRIPT, argv=(SCRIPT, kind, "1000000"), cwd=os.getcwd(), python=child_python
    )
    name, _, word = setting.partition("=")
    value = True if word == "true" else int(word) if word.isdigit() else word
    plan = Plan().with_lever(name, value)
    with TrialRunner(workload, isolation=Isolation.NONE, patience_s=60.0) as made:
        made.facts(Plan())
        made.prepare(Plan(), plan)
        assert len(made.pairs(Plan(), plan, [True, False] * 3)) == 6


def test_added_workers_make_batches_that_are_page_locked(ran, bits) -> None:
    """A batch of theirs is compared with one of the main process, which is page-locked, too."""
    ours = ran("run", "-q", "--set", "loader_workers=2", SCRIPT, "items", "4", "0")
    assert ours.stdout == bits(SCRIPT, "items", "4", "0")
    assert ours.stderr == "2 processes\n"
