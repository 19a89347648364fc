"""Loaders that get workers, under a Python that does not fork unless it is asked to."""

import importlib.util
from pathlib import Path

import pytest

from hasten.testing import fed

_spec = importlib.util.spec_from_file_location("desks", Path(__file__).with_name("desks.py"))
desks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(desks)
changed, QUIET = desks.changed, desks.QUIET

HEAD = "from torch.utils.data import DataLoader\n"
PLAIN = f"{HEAD}loader = DataLoader(data)\n"
FORK = 'multiprocessing_context="fork"'
TOLD = "from Python 3.14 on, workers run the script anew"


@pytest.fixture
def desk(tmp_path, workload):
    made = desks.Desk(tmp_path, workload)
    made.python = "3.14.0rc1"
    return made


def test_workers_fork_where_this_python_would_run_the_script_anew(desk) -> None:
    text = desk.edit(PLAIN, QUIET, loader_workers=2)
    assert text == f"{HEAD}loader = DataLoader(data, num_workers=2, {FORK})\n"
    assert TOLD not in desk.said()
    assert desk.again(QUIET, loader_workers=2) == text
    assert FORK in desk.edit(PLAIN, redrawing_workers=2)
    options = f"{HEAD}options = {{'num_workers': 0}}\nloader = DataLoader(data, **options)\n"
    text = desk.edit(options, QUIET, loader_workers=2)
    assert 'options = {\'num_workers\': 2, "multiprocessing_context": "fork"}' in text


@pytest.mark.parametrize(
    "source",
    [
        f"{HEAD}loader = DataLoader(data, multiprocessing_context='spawn')\n",
        f"import multiprocessing as mp\nmp.set_start_method('spawn')\n{PLAIN}",
        f"from torch.multiprocessing import set_start_method as s\ns('fork')\n{PLAIN}",
    ],
    ids=["loader", "process", "torch"],
)
def test_the_start_that_the_script_has_chosen_stays(desk, source) -> None:
    desk.edit(source, QUIET, loader_workers=3)
    assert "num_workers=3" in desk.diff
    assert FORK not in desk.diff
    assert TOLD not in desk.said()


def test_workers_that_the_script_has_itself_start_as_they_did(desk) -> None:
    desk.edit(PLAIN, fed(worker_count=2), redrawing_workers=3)
    assert FORK not in desk.diff
    assert TOLD not in desk.said()


def test_arguments_that_nobody_sees_may_choose_a_start(desk) -> None:
    desk.edit(
        f"{HEAD}loader = DataLoader(data, num_workers=0, **options)\n", QUIET, loader_workers=3
    )
    assert "num_workers=3, **options)" in desk.diff
    assert FORK not in desk.diff
    assert TOLD in desk.said()


def test_no_workers_need_no_start(desk) -> None:
    desk.edit(f"{HEAD}loader = DataLoader(data, num_workers=2)\n", redrawing_workers=0)
    assert changed(desk)[1] == "+loader = DataLoader(data, num_workers=0)"


def test_an_older_python_forks_by_itself(desk) -> None:
    desk.python = "3.13.1"
    desk.edit(PLAIN, QUIET, loader_workers=2)
    assert FORK not in desk.diff
