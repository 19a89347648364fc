"""Streams of a script: those that live and each new one are seen, ours and the default are not."""

from types import SimpleNamespace

import pytest

from hasten.loader.device.streams import ScriptStreams, own_stream


@pytest.fixture
def module():
    """A device module as `torch.cuda` is, where each look at a stream is a new object."""

    class Stream:
        def __new__(cls, device=None, *, stream_id=None):
            made = super().__new__(cls)
            made.device, made.stream_id = device, id(made) if stream_id is None else stream_id
            return made

        def __eq__(self, other):
            return self.stream_id == other.stream_id

        __hash__ = None

    return SimpleNamespace(Stream=Stream, default_stream=lambda device: Stream(device, stream_id=0))


@pytest.fixture
def watch(module):
    """Watch the streams of a script; return what is known and how often we were called."""
    made, seen = [], []

    def begin(mentioned=""):
        own_stream(module, "here")
        made.append(ScriptStreams(module, lambda: mentioned, lambda: seen.append(1)))
        return made[-1], seen

    yield begin
    for one in reversed(made):
        one.close()


def test_our_own_stream_and_looks_at_the_default_one_do_not_count(module, watch) -> None:
    kept = module.default_stream("here")
    streams, seen = watch()
    again = module.Stream("here", stream_id=0)
    assert (kept, seen) == (again, [])
    assert not streams.are_several


def test_our_own_streams_on_other_devices_do_not_count(watch) -> None:
    first, seen = watch()
    second, _ = watch()
    assert (first.are_several, second.are_several, seen) == (False, False, [])


def test_a_new_stream_is_seen_once_before_it_is_there(module, watch) -> None:
    streams, seen = watch()
    module.Stream("here")
    assert streams.are_several
    module.Stream("here")
    assert seen == [1]


def test_a_stream_that_lives_already_is_seen(module, watch) -> None:
    kept = module.Stream("here")
    assert watch()[0].are_several
    del kept


def test_code_that_names_streams_counts(watch) -> None:
    assert watch("train.py has Stream in main")[0].are_several


def test_a_closed_watch_leaves_the_class_as_it_was(module, watch) -> None:
    before = vars(module.Stream)["__new__"]
    streams, seen = watch()
    streams.close()
    assert vars(module.Stream)["__new__"] is before
    module.Stream("here")
    assert seen == []


def test_a_class_of_c_is_left_alone(watch) -> None:
    module = SimpleNamespace(Stream=complex, default_stream=None)
    assert not ScriptStreams(module, str, list).are_several
