"""Parent and child talk in lines, however these arrive."""

import os
import socket
import time
from math import inf

import pytest

from hasten import protocol
from hasten.errors import ChildLost
from hasten.protocol import Attached, CommandRefused, Ended, FirstStep, Go, Ready
from hasten.trials.channel import Channel, Listener


@pytest.fixture
def listener(tmp_path):
    one = Listener(tmp_path / "s")
    yield one
    one.close()


def test_what_a_child_said_before_anybody_listened_is_heard(listener) -> None:
    child = Channel.connect(str(listener.path))
    child.send(Attached())
    child.send(FirstStep(step_ns=5, at_s=1.0))
    found = listener.adopt(FirstStep, until=time.monotonic() + 5.0, alive=lambda: True)
    child.close()
    assert found is not None
    assert found[1].step_ns == 5
    assert listener.attached == [Attached()]
    assert found[0].pid == os.getpid()
    found[0].close()


def test_nobody_trains_before_somebody_waits_for_it(listener) -> None:
    child = Channel.connect(str(listener.path))
    child.send(Ready())
    with pytest.raises(TimeoutError):
        child.receive(0.1)
    found = listener.adopt(FirstStep, until=time.monotonic() + 0.3, alive=lambda: True)
    assert found is None
    assert child.receive(1.0) == Go()
    child.send(FirstStep(step_ns=5, at_s=1.0))
    found = listener.adopt(FirstStep, until=time.monotonic() + 5.0, alive=lambda: True)
    child.close()
    assert found is not None
    assert listener.attached == []
    found[0].close()


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    channel = Channel(left)
    yield channel, right
    channel.close()
    right.close()


def test_a_message_in_pieces_is_whole_and_the_next_one_stays(ends) -> None:
    channel, other = ends
    line = protocol.encode(CommandRefused(why="one"))
    other.sendall(line[:20])
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    assert not channel.has_message
    other.sendall(line[20:] + protocol.encode(Ended(step_count=2)))
    assert channel.receive(1.0) == CommandRefused(why="one")
    assert channel.has_message
    assert channel.receive(1.0) == Ended(step_count=2)


def test_ranks_that_have_not_stepped_are_counted_and_awaited_by_the_next_call(listener) -> None:
    ranks = [Channel.connect(str(listener.path)) for _ in range(2)]
    assert listener.rank_counts == (0, 0)
    for number, rank in enumerate(ranks):
        rank.send(FirstStep(step_ns=5, at_s=1.0, rank=number, rank_count=2))
        found = listener.adopt_ranks(FirstStep, until=time.monotonic() + 0.5, alive=lambda: True)
        assert listener.rank_counts == (number + 1, 2)
        assert (found is None) == (number == 0)
        rank.close()
    for channel, _ in found:
        channel.close()


def test_an_end_in_the_middle_of_a_message_is_told(ends) -> None:
    channel, other = ends
    other.sendall(b'{"v": 1')
    other.close()
    with pytest.raises(ChildLost):
        channel.receive(1.0)


@pytest.mark.parametrize("timeout_s", [1e12, 1e30, inf])
def test_a_wait_may_be_longer_than_a_socket_can_take(ends, timeout_s) -> None:
    channel, other = ends
    other.sendall(protocol.encode(Ended(step_count=2)))
    assert channel.hear(timeout_s) == Ended(step_count=2)
