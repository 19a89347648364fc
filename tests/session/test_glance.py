"""What `run` looks at before it becomes the script must cost it nothing."""

import importlib.metadata
import sys

import pytest

from hasten import session
from hasten.records import Entry, Workload


def at(python=sys.executable, entry=Entry.SCRIPT, cwd="/"):
    return Workload(entry=entry, argv=("train.py",), cwd=cwd, python=str(python))


def test_a_glance_starts_no_torch_and_knows_its_version() -> None:
    loaded = "torch" in sys.modules
    machine = session.glance(at())
    assert ("torch" in sys.modules) == loaded
    assert machine.torch is not None
    assert machine.torch.version == importlib.metadata.version("torch")
    assert machine.torch.thread_count is None
    assert machine.budget.core_count >= 1


def test_without_torch_a_glance_knows_none(monkeypatch) -> None:
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert session.glance(at()).torch is None


@pytest.mark.parametrize(("entry", "version"), [(Entry.SCRIPT, "9.8.7"), (Entry.COMMAND, None)])
def test_another_python_is_asked_for_its_torch_where_it_runs_the_script(
    tmp_path, entry, version
) -> None:
    there = tmp_path / "python"
    there.write_text("#!/bin/sh\necho 9.8.7\n")
    there.chmod(0o755)
    found = session.glance(at(there, entry, cwd=str(tmp_path))).torch
    assert (found and found.version) == version


def test_a_python_that_is_not_there_or_has_no_torch_says_nothing(tmp_path) -> None:
    assert session.glance(at("/other/venv/bin/python")).torch is None
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    assert session.glance(at(silent)).torch is None
