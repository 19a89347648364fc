"""Libraries that look at the environment where a process forks, as Rust code does."""

import ctypes
import os
import sys
from types import ModuleType

import pytest

from hasten.loader.quiet_forks import quiet_forks
from hasten.loader.workers.stateful_fetch import doubtful

NAME = "TOKENIZERS_PARALLELISM"


def told():
    """Return what a library that is not written in Python finds."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(NAME.encode())


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", ModuleType("tokenizers"))
    monkeypatch.delenv(NAME, raising=False)


def test_a_fork_of_ours_is_told_of_one_thread_and_the_script_of_nothing(loaded) -> None:
    with quiet_forks():
        assert told() == b"false"
        assert NAME not in os.environ
    assert told() is None


def test_what_the_user_set_stays(loaded, monkeypatch) -> None:
    monkeypatch.setenv(NAME, "true")
    with quiet_forks():
        assert told() == b"true"
    assert told() == b"true"


def test_nobody_is_told_where_the_library_is_not_loaded(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    monkeypatch.delenv(NAME, raising=False)
    with quiet_forks():
        assert told() is None


def test_a_question_is_forked_so(loaded, monkeypatch) -> None:
    fork, found = os.fork, []
    monkeypatch.setattr(os, "fork", lambda: found.append(told()) or fork())
    assert not doubtful(lambda: False)
    assert found == [b"false"]
    assert not doubtful(lambda: told() != b"false")  # else it would wait for threads that are gone


@pytest.mark.child
def test_workers_that_the_script_does_not_have_are_forked_so_and_its_own_are_not(loaders) -> None:
    found = loaders(
        """
        import types
        sys.modules["tokenizers"] = types.ModuleType("tokenizers")
        getenv = __import__("ctypes").CDLL(None).getenv
        getenv.restype = __import__("ctypes").c_char_p
        fork = os.fork
        def told_fork():
            forks.append(getenv(b"TOKENIZERS_PARALLELISM") == b"false")
            return fork()
        os.fork = told_fork
        forks = facts["forks"] = []
        ours(lambda: epochs(DataLoader(Numbers(), batch_size=4), 1), 2)
        facts["added"] = len(forks)
        ours(lambda: epochs(DataLoader(Numbers(), batch_size=4, num_workers=1), 1), 2)
        """.replace("\n        ", "\n")
    )
    added = found["added"]
    assert added >= 2
    assert all(found["forks"][:added])
    assert found["forks"][added:] == [False, False]
