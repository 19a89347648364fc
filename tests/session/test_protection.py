"""Before the first trial starts it is known that the kernel keeps it from the user's files."""

from types import SimpleNamespace

import pytest

from hasten import session
from hasten.errors import IsolationFailed, UsageError
from hasten.records import Entry, Traits, Workload
from hasten.session import setup
from hasten.session.setup import protect
from hasten.session.watching import refuse_other_machines
from hasten.trials import process
from hasten.trials.process import Isolation


@pytest.fixture
def said(monkeypatch):
    """A machine with neither the overlay nor Landlock, and what is said there."""
    monkeypatch.setattr(process, "best_isolation", lambda cwd: Isolation.PYTHON)
    return []


def workload(entry, *argv):
    return Workload(entry=entry, argv=argv, cwd="/", python="python")


def ask(said, what, **options):
    protect(what, session.Options(**options), SimpleNamespace(note=said.append))


@pytest.mark.parametrize("entry", list(Entry))
def test_nothing_starts_unless_the_user_takes_it_upon_himself(said, entry):
    command = workload(entry, "train.sh")
    with pytest.raises(IsolationFailed, match=r"train\.sh could change your files") as caught:
        ask(said, command)
    assert caught.value.exit_code == 4
    assert "--no-sandbox" in caught.value.remedy
    assert not said
    ask(said, command, unprotected=True)
    (line,) = said
    assert "reach the real files" in line


@pytest.mark.parametrize("isolation", [Isolation.OVERLAY, Isolation.REDIRECT])
def test_nothing_is_said_where_the_kernel_refuses_writes(said, monkeypatch, isolation):
    monkeypatch.setattr(process, "best_isolation", lambda cwd: isolation)
    ask(said, workload(Entry.COMMAND, "bash", "train.sh"))
    assert not said


@pytest.mark.parametrize("verb", [session.profile, session.tune])
def test_it_is_asked_before_anything_is_started(said, monkeypatch, verb):
    def start(*args, **details):
        raise AssertionError("started")

    monkeypatch.setattr(setup, "doctor", start)
    monkeypatch.setattr(setup, "open_runner", start)
    with pytest.raises(IsolationFailed):
        verb(workload(Entry.COMMAND, "bash"), session.Options(), SimpleNamespace(note=said.append))


def test_a_training_on_several_machines_is_refused():
    refuse_other_machines(Traits(rank_count=4, local_rank_count=4))
    with pytest.raises(UsageError, match="in 4 processes, 2 of them on this machine") as caught:
        refuse_other_machines(Traits(rank_count=4, local_rank_count=2))
    assert caught.value.exit_code == 2
