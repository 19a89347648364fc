"""A journal is that of one text of a command's files, and one that cannot be is done without."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from upshift import search
from upshift.records import Comparison, Entry, Plan, Verdict, Workload
from upshift.session import Options
from upshift.session.hunt import Hunt
from upshift.session.journals import open_journal
from upshift.testing import LAPTOP

FAILED = Comparison(
    baseline=Plan(), candidate=Plan().pull("b", 2), verdict=Verdict.FAIL, failure="It died."
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


def opened(work, entry, *argv):
    workload = Workload(entry=entry, argv=argv, cwd=str(work), python="python")
    return open_journal(workload, Options(), LAPTOP, torch="2.9.0")


@pytest.mark.parametrize(
    ("entry", "argv", "changed"),
    [
        (Entry.SCRIPT, ("train.py",), "train.py"),
        (Entry.SCRIPT, ("train.py",), "net.py"),
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
    journal.settle({"a": (True,)})
    journal.append(FAILED)
    assert (journal.history, journal.settings) == ((FAILED,), {"a": (True,)})
    journal.path.unlink(missing_ok=True)


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
    hunt = Hunt(
        (), search.Journal(path=work / "j", lost="disk quota exceeded"), bench=None,
        races=SimpleNamespace(confirm_s=0.0, least_ratio=0.02), options=Options(),
        view=SimpleNamespace(note=said.append), note=said.append, spent_s=lambda: 0.0,
        costs=lambda plan: SimpleNamespace(answer_s=lambda named: 0.0),
    )  # fmt: skip
    hunt.run()
    hunt.run()
    assert len(said) == 2  # to who looks on, and in the report
    assert "cannot be kept on disk: disk quota exceeded." in said[0]
