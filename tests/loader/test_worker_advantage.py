"""Who makes the batches of a loader to which workers were added: whoever lets the loop go on."""

import pytest

from hasten.loader.worker_advantage import WorkerAdvantage


class Loop:
    """A loop whose time is told, not measured."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pace = WorkerAdvantage(lambda: self.now_s)

    def elsewhere(self, count, *, wait_s, fetch_s, step_s=1.0) -> bool:
        """Make steps with workers until they are changed for the main process."""
        for _ in range(count):
            self.pace.ask()
            self.now_s += wait_s
            if self.pace.of_workers(fetch_s):
                return True
            self.now_s += step_s
        return False

    def here(self, count, *, fetch_s, step_s=1.0) -> bool:
        """Make steps without workers until they are asked again."""
        for _ in range(count):
            self.pace.ask()
            self.now_s += fetch_s
            if self.pace.of_main(fetch_s):
                return True
            self.now_s += step_s
        return False


@pytest.fixture
def loop():
    return Loop()


def test_two_busy_workers_are_left_to_their_work(loop) -> None:
    assert not loop.elsewhere(500, wait_s=4.0, fetch_s=10.0)
    assert not loop.pace.is_home


def test_workers_that_hide_all_of_a_fetch_are_left_to_their_work(loop) -> None:
    assert not loop.elsewhere(500, wait_s=0.01, fetch_s=0.9)


def test_where_the_wait_is_a_whole_fetch_the_main_process_makes_the_batches(loop) -> None:
    assert loop.elsewhere(40, wait_s=2.0, fetch_s=1.5)
    assert not loop.here(500, fetch_s=1.0)
    assert loop.pace.is_home


def test_when_fetches_become_cheap_and_the_loop_still_waits_the_main_process_is_tried(loop) -> None:
    assert not loop.elsewhere(50, wait_s=4.0, fetch_s=10.0)
    assert loop.elsewhere(40, wait_s=0.3, fetch_s=0.8)
    assert not loop.here(100, fetch_s=0.2)


def test_the_workers_are_asked_again_where_they_were_faster_and_then_looked_at_rarely(loop) -> None:
    assert loop.elsewhere(40, wait_s=1.0, fetch_s=1.0)
    assert loop.here(40, fetch_s=3.0)
    assert not loop.pace.is_home
    assert not loop.elsewhere(60, wait_s=1.0, fetch_s=1.0)
    assert loop.elsewhere(60, wait_s=1.0, fetch_s=1.0)
    assert loop.here(40, fetch_s=3.0)
    assert not loop.elsewhere(120, wait_s=1.0, fetch_s=1.0)


def test_what_happens_between_two_passes_counts_for_nobody(loop) -> None:
    for _ in range(6):
        loop.now_s += 1000.0
        loop.pace.begin_pass()
        assert not loop.elsewhere(10, wait_s=0.01, fetch_s=1.0)
    assert loop.elsewhere(40, wait_s=2.0, fetch_s=1.5)
    for _ in range(6):
        loop.now_s += 1000.0
        loop.pace.begin_pass()
        assert not loop.here(10, fetch_s=1.0)


def test_once_all_samples_are_kept_the_main_process_makes_the_batches(loop) -> None:
    assert not loop.elsewhere(50, wait_s=4.0, fetch_s=10.0)
    loop.pace.kept()
    assert loop.pace.is_home
    assert not loop.here(500, fetch_s=0.1)


def test_workers_are_tried_where_copies_take_a_good_part_of_the_loop_and_stay_if_faster(
    loop,
) -> None:
    loop.pace.kept()
    assert loop.here(40, fetch_s=0.5)
    assert not loop.pace.is_home
    assert not loop.elsewhere(500, wait_s=0.01, fetch_s=0.5)


def test_and_go_for_good_if_not(loop) -> None:
    loop.pace.kept()
    assert loop.here(40, fetch_s=0.5)
    assert loop.elsewhere(200, wait_s=0.6, fetch_s=0.5)
    loop.pace.kept()  # nothing new
    assert not loop.here(500, fetch_s=0.5)


def test_batches_that_nobody_weighs_take_no_memory(loop) -> None:
    for _ in range(5000):
        loop.pace.ask()
        loop.now_s += 1.0
    assert len(loop.pace._cycles_s) < 100
