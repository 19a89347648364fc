"""Parent and child talk in lines, however these arrive."""

import socket
import time

import pytest

from hasten.errors import ChildLost
from hasten.trials.channel import Channel, Listener


@pytest.fixture
def listener(tmp_path):
    one = Listener(tmp_path / "s")
    yield one
    one.close()


def test_what_a_child_said_before_anybody_listened_is_heard(listener) -> None:
    child = Channel.connect(str(listener.path))
    child.send({"kind": "attached", "pid": 1})
    child.send({"kind": "training", "pid": 1, "step_ns": 5})
    found = listener.adopt("training", until=time.monotonic() + 5.0, alive=lambda: True)
    child.close()
    assert found is not None
    assert found[1]["step_ns"] == 5
    assert [message["kind"] for message in listener.attached] == ["attached"]
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
    other.sendall(b'{"v": 1, "kind": "on')
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    assert not channel.has_message
    other.sendall(b'e"}\n{"v": 1, "kind": "two"}\n')
    assert channel.receive(1.0)["kind"] == "one"
    assert channel.has_message
    assert channel.receive(1.0)["kind"] == "two"


def test_an_end_in_the_middle_of_a_message_is_told(ends) -> None:
    channel, other = ends
    other.sendall(b'{"v": 1')
    other.close()
    with pytest.raises(ChildLost):
        channel.receive(1.0)
