"""Signals that come while ranks meet are answered by the script's handlers afterwards."""

import os
import signal
import threading

import pytest

from hasten.root_calls.ranks.held_signals import signals_held


class Stopped(Exception):  # as a script would name it
    """What a script raises from a handler."""


@pytest.fixture
def handler():
    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield stop
    signal.signal(signal.SIGUSR1, before)


def test_an_exception_of_a_handler_comes_after_what_is_held(handler) -> None:
    reached = []

    def meet():
        with signals_held():
            os.kill(os.getpid(), signal.SIGUSR1)
            reached.append(True)

    with pytest.raises(Stopped):
        meet()
    assert reached
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_what_the_system_answers_is_left_to_it() -> None:
    with signals_held():
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_handler_that_is_set_within_stays(handler) -> None:
    seen = []
    with signals_held():
        signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [signal.SIGUSR1]


def test_another_thread_holds_nothing() -> None:
    found = []

    def look():
        with signals_held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
