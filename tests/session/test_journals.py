"""A journal is that of one text of a command's files, and one that cannot be is done without."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten import search
from hasten.records import Comparison, Effect, Entry, Plan, Verdict, Workload
from hasten.session import Options
from hasten.session.journals import open_journal
from hasten.session.search_driver import SearchDriver
from hasten.testing import LAPTOP
from hasten.trials.deadline import Deadline

FAILED = Comparison(
    baseline=Plan(), candidate=Plan().with_lever("b", 2), verdict=Verdict.FAIL, failure="It died."
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    for name in ("pkg/train.py", "pkg/net.py", "pkg/__init__.py", "train.py", "net.py", "a b.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("lr = 1\n")
    (folder / "conf.yaml").write_text("lr: 1\n")
    return folder


def opened(work, entry, *argv, **options):
    workload = Workload(entry=entry, argv=argv, cwd=str(work), python="python")
    return open_journal(workload, Options(**options), LAPTOP, torch="2.9.0")


def test_races_in_another_environment_are_not_taken_over(work, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    opened(work, Entry.SCRIPT, "train.py").append(FAILED)
    monkeypatch.setenv("COLUMNS", "81")
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 0


@pytest.mark.parametrize(
    ("entry", "argv", "changed"),
    [
        (Entry.SCRIPT, ("train.py",), "train.py"),
        (Entry.SCRIPT, ("train.py",), "net.py"),
        (Entry.SCRIPT, ("train.py",), "pkg/net.py"),
        (Entry.SCRIPT, ("train.py", "--config=conf.yaml"), "conf.yaml"),
        (Entry.SCRIPT, ("pkg",), "pkg/__main__.py"),
        (Entry.MODULE, ("pkg.train", "-x"), "pkg/train.py"),
        (Entry.MODULE, ("pkg.train", "-x"), "pkg/net.py"),
        (Entry.MODULE, ("pkg",), "pkg/__main__.py"),
        (Entry.COMMAND, ("python", "train.py"), "train.py"),
        (Entry.COMMAND, ("python", "a b.py"), "a b.py"),
        (Entry.COMMAND, ("bash", "-c", "python train.py --lr 1"), "train.py"),
        (Entry.COMMAND, ("python", "-m", "pkg.train"), "pkg/train.py"),
    ],
)
def test_races_of_another_text_are_not_taken_over(work, entry, argv, changed):
    (work / "pkg" / "__main__.py").write_text("import train\n")
    opened(work, entry, *argv).append(FAILED)
    assert opened(work, entry, *argv).resumed_count == 1
    (work / changed).write_text("lr = 2\n")
    assert opened(work, entry, *argv).resumed_count == 0


def test_races_under_an_assumption_are_not_taken_over_without_it(work):
    granted = {"assumed": frozenset({"dataset-unchanged"})}
    opened(work, Entry.SCRIPT, "train.py", **granted).append(FAILED)
    assert opened(work, Entry.SCRIPT, "train.py", **granted).resumed_count == 1
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 0


def test_looking_for_a_module_runs_nothing(work):
    (work / "pkg" / "__init__.py").write_text("raise SystemExit('imported')\n")
    opened(work, Entry.MODULE, "pkg.train")


def test_a_large_file_is_told_apart_without_reading_it(work, monkeypatch):
    with (work / "data.bin").open("wb") as file:
        file.truncate(2**40)
    argv = ("train.py", "data.bin")
    opened(work, Entry.SCRIPT, *argv).append(FAILED)
    assert opened(work, Entry.SCRIPT, *argv).resumed_count == 1
    os.utime(work / "data.bin", (1, 1))
    assert opened(work, Entry.SCRIPT, *argv).resumed_count == 0


def test_names_that_are_no_utf8_are_kept(work):
    argv = ("caf\udce9.py", "\udcff")
    opened(work, Entry.SCRIPT, *argv).append(FAILED)
    assert opened(work, Entry.SCRIPT, *argv).history == (FAILED,)


def lives_on(journal):
    begun = search.SearchStarted(settings={"a": (True,)})
    journal.settle(begun)
    journal.append(FAILED)
    assert (journal.history, journal.begun) == ((FAILED,), begun)


def test_without_a_home_the_races_are_kept_in_memory(work, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    journal = opened(work, Entry.SCRIPT, "train.py")
    assert journal.lost == "there is no home folder"
    lives_on(journal)


def test_on_a_full_disk_the_races_are_kept_in_memory(work, monkeypatch):
    def full(descriptor):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    journal = opened(work, Entry.SCRIPT, "train.py")
    assert journal.lost == "disk quota exceeded"
    lives_on(journal)


def test_two_tunings_of_one_command_do_not_write_into_one_journal(work):
    first = opened(work, Entry.SCRIPT, "train.py")
    second = opened(work, Entry.SCRIPT, "train.py")
    assert second.lost == "another tuning of this command is running"
    lives_on(second)
    second.forget()
    first.append(FAILED)
    first.close()
    assert opened(work, Entry.SCRIPT, "train.py").history == (FAILED,)


def test_each_kind_of_machine_has_a_journal_of_its_own(work):
    workload = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=str(work), python="python")
    there = replace(LAPTOP, cpu=replace(LAPTOP.cpu, model="another"))
    for machine in (LAPTOP, there):
        open_journal(workload, Options(), machine, torch="2.9.0").append(FAILED)
    for machine in (LAPTOP, there):
        assert open_journal(workload, Options(), machine, torch="2.9.0").resumed_count == 1


def test_a_disk_that_fills_up_ends_no_search(work, monkeypatch):
    tries = []

    def full(path, line):
        tries.append(line)
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = opened(work, Entry.SCRIPT, "train.py")
    monkeypatch.setattr(search.journal, "_append", full)
    lives_on(journal)
    assert journal.lost == "no space left on device"
    assert len(tries) == 1


def test_a_search_says_once_that_its_races_are_lost(work):
    said = []
    driver = SearchDriver(
        (), search.Journal(lost="disk quota exceeded"),
        races=SimpleNamespace(confirm_s=0.0, least_ratio=0.02, pass_count=10, price=None),
        options=Options(),
        view=SimpleNamespace(note=said.append), note=said.append, spent_s=lambda: 0.0,
        costs=lambda plan: SimpleNamespace(answer_s=0.0), deadline=Deadline(),
        doubtful=lambda plan: {},
    )  # fmt: skip
    driver.run()
    driver.run()
    assert len(said) == 2  # to who looks on, and in the report
    assert "cannot be kept on disk: disk quota exceeded." in said[0]


@pytest.mark.parametrize(
    "other",
    [
        {"numerics": Effect.EXACT},
        {"only": frozenset({"huge_pages"})},
        {"skip": frozenset({"huge_pages"})},
        {"applied": Plan().with_lever("loader_workers", 2)},
    ],
    ids="".join,
)
def test_races_under_other_options_are_not_taken_over(work, other):
    workload = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=str(work), python="python")
    open_journal(workload, Options(), LAPTOP, torch="2.9.0").append(FAILED)
    assert open_journal(workload, Options(**other), LAPTOP, torch="2.9.0").resumed_count == 0


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"budget": replace(LAPTOP.budget, core_count=2)},
        {"cpu": replace(LAPTOP.cpu, model="another")},
    ],
    ids="".join,
)
def test_races_on_another_machine_or_torch_are_not_taken_over(work, elsewhere):
    workload = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=str(work), python="python")
    open_journal(workload, Options(), LAPTOP, torch="2.9.0").append(FAILED)
    assert open_journal(workload, Options(), LAPTOP, torch="2.9.0").resumed_count == 1
    there = replace(LAPTOP, **elsewhere)
    assert open_journal(workload, Options(), there, torch="2.9.0").resumed_count == 0
    open_journal(workload, Options(), LAPTOP, torch="2.9.0").append(FAILED)
    assert open_journal(workload, Options(), LAPTOP, torch="2.8.0").resumed_count == 0


def test_another_set_of_levers_has_races_of_its_own(work, monkeypatch):
    opened(work, Entry.SCRIPT, "train.py").append(FAILED)
    monkeypatch.setattr("hasten.session.journals.discover", lambda: {"huge_pages": None})
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 0


def test_another_command_or_folder_has_races_of_its_own(work):
    opened(work, Entry.SCRIPT, "train.py").append(FAILED)
    assert opened(work, Entry.SCRIPT, "train.py", "--lr", "1").resumed_count == 0
    assert opened(work / "pkg", Entry.SCRIPT, "train.py").resumed_count == 0
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 1


def test_races_of_another_build_of_hasten_are_not_taken_over(work, monkeypatch, tmp_path):
    monkeypatch.setattr("hasten.session.journals._PRODUCT", tmp_path / "build")
    source = tmp_path / "build" / "levers" / "huge_pages.py"
    source.parent.mkdir(parents=True)
    source.write_text("works = False\n")
    opened(work, Entry.SCRIPT, "train.py").append(FAILED)
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 1
    source.write_text("works = True\n")
    assert opened(work, Entry.SCRIPT, "train.py").resumed_count == 0
