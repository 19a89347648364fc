"""How long a pass waits for workers that the script never asked for."""

import pytest

from hasten.loader.workers import worker_processes


class Iterator:
    """Torch's iterator over workers that give nothing for some time-outs of 0.5 s."""

    _timeout = 0.5

    def __init__(self, clock, lasts_s):
        self._clock, self._lasts_s = clock, list(lasts_s)

    def _next_data(self):
        if not self._lasts_s:
            return "batch"
        self._clock.now_s += self._lasts_s.pop(0)
        raise RuntimeError("DataLoader timed out after 0.5 seconds")


class Clock:
    now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(worker_processes, "time", clock)
    return clock


def test_a_process_that_was_stopped_has_not_waited_meanwhile(clock) -> None:
    """Ctrl-Z, an hour, `fg`: the clock went on, and the workers stood still, too."""
    assert worker_processes._patient(Iterator(clock, [0.5, 3600.0, 0.5]), 10.0) == "batch"


def test_workers_that_give_nothing_are_waited_for_as_long_as_was_said(clock) -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        worker_processes._patient(Iterator(clock, [0.5] * 60), 10.0)
    assert clock.now_s == pytest.approx(1010.0)
