"""The measuring loop that gets its batches again: who is replayed, and who is not."""

from types import SimpleNamespace

import pytest

from hasten.instrument.live import LiveTraining
from hasten.loader.replay import REPLAYED_COUNT, Replay


class Source:
    """An iterator as torch's: an object of its own for each pass."""

    def __init__(self, name, length):
        self.left = [{"name": name, "number": n, "parts": [n]} for n in range(length)]

    def next(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


@pytest.fixture
def loop():
    live = LiveTraining()
    replay = Replay(live.answers.advancers)
    return SimpleNamespace(
        live=live,
        replay=replay,
        next=lambda source: live.answers.advance(Source.next, source),
        on=lambda: replay.switch(replays=True),
        off=lambda: replay.switch(replays=False),
    )


def trained(loop, source, count):
    seen = []
    for _ in range(count):
        seen.append(loop.next(source)["number"])
        loop.replay.stepped()
    return seen


def fetched_to_the_end(loop, source):
    for count in range(3000):
        try:
            loop.next(source)
        except StopIteration:
            return count
    raise AssertionError("it has no end")


def test_gives_the_first_batches_in_turn_once_a_step_has_shown_who_feeds_the_loop(loop) -> None:
    source = Source("train", 20)
    assert trained(loop, source, 2) == [0, 1]
    loop.on()
    seen = trained(loop, source, 1 + 3 * REPLAYED_COUNT)
    assert seen[: 1 + REPLAYED_COUNT] == [2, 3, 4, 5, 6]
    assert set(seen[1:]) == {3, 4, 5, 6}
    loop.off()
    assert trained(loop, source, 2) == [7, 8]
    assert loop.live.answers.advancers == []


def test_an_evaluation_comes_to_its_end(loop) -> None:
    source, other = Source("train", 20), Source("evaluation", 9)
    loop.on()
    trained(loop, source, 8)
    assert fetched_to_the_end(loop, other) == 9
    assert trained(loop, source, 4) != [8, 9, 10, 11]
    assert len(source.left) == 20 - 1 - REPLAYED_COUNT


def test_a_loop_that_steps_no_more_comes_to_its_end(loop) -> None:
    source = Source("train", 20)
    loop.on()
    trained(loop, source, 8)
    assert fetched_to_the_end(loop, source) >= 20 - 8


def test_what_the_levers_do_for_each_batch_is_still_done(loop) -> None:
    seen = []

    def advance(original, iterator):
        seen.append(iterator)
        return original(iterator)

    loop.live.on_next(advance)
    source = Source("train", 20)
    loop.on()
    trained(loop, source, 12)
    assert seen == [source] * (1 + REPLAYED_COUNT)


def test_a_script_may_take_its_batch_apart(loop) -> None:
    source = Source("train", 20)
    loop.on()
    for _ in range(4 * REPLAYED_COUNT):
        batch = loop.next(source)
        assert batch.pop("name") == "train"
        assert batch["parts"].pop() == batch["number"]
        loop.replay.stepped()
