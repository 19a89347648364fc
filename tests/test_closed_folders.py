"""A folder that may not be entered is a sentence, wherever its name is given."""

import io
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli import app
from hasten.errors import UsageError
from hasten.records import Entry, Workload
from hasten.report import archive, files, plan_places
from hasten.report.edits.project import read_project
from hasten.workload import read_workload


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder of mode 000; root may enter any, so the kernel's answer is played."""
    folder = tmp_path / "closed"
    folder.mkdir()
    stat, access = os.stat, os.access

    def refuse(path, *args, **kwargs):
        if not isinstance(path, int) and folder in Path(os.fsdecode(path)).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda place, mode: place != folder and access(place, mode))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_script_in_it_cannot_be_read(closed):
    with pytest.raises(UsageError, match=r"Cannot read the script .*: permission denied\."):
        read_workload([str(closed / "train.py")])


def test_it_is_a_folder_and_no_script(closed):
    with pytest.raises(UsageError, match=r"closed is a folder\."):
        read_workload([str(closed)])


def test_a_file_in_it_cannot_be_written(closed):
    # Until Python 3.13 the path itself says no, from 3.14 on the nearest folder that can be seen.
    reason = r"Cannot write .*: (permission denied|no permission in .*)\."
    for place in (closed / "out.json", closed / "deep" / "out.json"):
        with pytest.raises(UsageError, match=reason):
            files.check_writable(place)
        with pytest.raises(UsageError, match=reason):
            files.write_atomically(place, "x")


def test_a_plan_in_it_is_none_of_ours(closed, monkeypatch):
    def refuse(*words, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "open", refuse)
    workload = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=str(closed), python="python3")
    with pytest.raises(UsageError, match="is not a plan of hasten"):
        plan_places.guard_plan(closed / "hasten.toml", workload)


def test_a_plan_in_it_cannot_be_run(closed):
    Path("train.py").write_text("print('training')\n")
    words = ["run", "--plan", str(closed / "hasten.toml"), "train.py"]
    done = CliRunner().invoke(app, words, prog_name="hasten")
    assert done.exit_code == 2
    assert "plan" in done.stderr
    submitted = CliRunner().invoke(app, ["submit", *words[1:]], prog_name="hasten")
    assert submitted.exit_code == 2
    assert "There is no plan" in submitted.stderr


def test_a_module_in_it_is_not_edited(closed):
    Path("train.py").write_text("import closed.data\n")
    cwd = str(Path.cwd())
    workload = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd=cwd, python="python3")
    assert [source.path.name for source in read_project(workload).sources] == ["train.py"]


def test_a_cache_in_it_keeps_nothing(closed):
    with pytest.raises(UsageError, match="No tuning is kept"):
        archive.recall(Path("hasten.toml"))
