"""Before the first trial it is said what the kernel cannot keep it from."""

from types import SimpleNamespace

import pytest

from upshift import session
from upshift.errors import IsolationFailed
from upshift.launch import landlock, process
from upshift.launch.process import Isolation
from upshift.records import Entry, Workload
from upshift.session.protection import protect


@pytest.fixture
def said(monkeypatch):
    """A machine with neither the overlay nor Landlock, and what is said there."""
    monkeypatch.setattr(process, "best_isolation", lambda cwd: Isolation.REDIRECT)
    monkeypatch.setattr(landlock, "version", lambda: 1)
    return []


def workload(entry, *argv):
    return Workload(entry=entry, argv=argv, cwd="/", python="python")


def ask(said, what, **options):
    protect(what, session.Options(**options), SimpleNamespace(note=said.append))


@pytest.mark.parametrize("entry", [Entry.SCRIPT, Entry.MODULE, Entry.NOTEBOOK])
def test_a_script_goes_on_after_one_line(said, entry):
    ask(said, workload(entry, "train.py"))
    (line,) = said
    assert "reach the real files" in line


def test_a_program_is_refused_unless_the_user_takes_it_upon_himself(said):
    bash = workload(Entry.COMMAND, "bash", "train.sh")
    with pytest.raises(IsolationFailed, match="bash could change your files") as caught:
        ask(said, bash)
    assert caught.value.exit_code == 4
    assert "--unprotected" in caught.value.remedy
    assert not said
    ask(said, bash, unprotected=True)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("isolation", "abi"), [(Isolation.OVERLAY, 0), (Isolation.REDIRECT, 2), (Isolation.REDIRECT, 7)]
)
def test_nothing_is_said_where_the_kernel_refuses_writes(said, monkeypatch, isolation, abi):
    monkeypatch.setattr(process, "best_isolation", lambda cwd: isolation)
    monkeypatch.setattr(landlock, "version", lambda: abi)
    ask(said, workload(Entry.COMMAND, "bash", "train.sh"))
    assert not said


@pytest.mark.parametrize("verb", [session.profile, session.tune])
def test_it_is_asked_before_anything_is_started(said, monkeypatch, verb):
    def start(*args, **details):
        raise AssertionError("started")

    monkeypatch.setattr(session, "doctor", start)
    monkeypatch.setattr(session, "open_bench", start)
    with pytest.raises(IsolationFailed):
        verb(workload(Entry.COMMAND, "bash"), session.Options(), SimpleNamespace(note=said.append))
