"""Moments are spread over all that passes, whatever cannot be interrupted."""

import signal
from collections import Counter
from types import SimpleNamespace

import pytest

from hasten.instrument import stack_sampler


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns, and an alarm that the test rings."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(stack_sampler, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(stack_sampler, "_alarm", SimpleNamespace(add=lambda _: None))
    return clock


def live(clock, listener, pattern, *, cycle_count):
    """Pass through stretches of seconds; a ring in one that holds it off is answered at its end."""
    for _ in range(cycle_count):
        for name, seconds, holds in pattern:
            end_s = clock.now_s + seconds
            while listener.due_s <= end_s:
                clock.now_s = end_s if holds else max(listener.due_s, clock.now_s)
                listener.rung(name, clock.now_s)
                if holds:
                    break
            clock.now_s = max(clock.now_s, end_s)


def test_short_work_behind_a_call_that_holds_the_alarm_off_is_seen(clock) -> None:
    counts = Counter()
    listener = stack_sampler.StackSampler(
        lambda frame, count: counts.update({frame: count}), shortest_s=0.001
    )
    pattern = [("sleep", 0.0021, True), ("short", 0.0007, False), ("rest", 0.0016, False)]
    live(clock, listener, pattern, cycle_count=2000)
    total = sum(counts.values())
    shares = {name: seconds / 0.0044 for name, seconds, _ in pattern}
    assert {name: counts[name] / total for name in shares} == pytest.approx(shares, abs=0.02)


def test_the_time_of_a_look_is_nobodys(clock) -> None:
    counts = Counter()

    def look(frame, count):
        counts[frame] += count
        clock.now_s += 0.005

    listener = stack_sampler.StackSampler(look, shortest_s=0.001)
    pattern = [("one", 0.010, False), ("other", 0.030, False)]
    live(clock, listener, pattern, cycle_count=500)
    assert counts["other"] / sum(counts.values()) == pytest.approx(0.75, abs=0.06)
    assert listener.due_s > clock.now_s - 0.002


def test_an_alarm_that_rang_as_it_was_stopped_is_not_wound_again(monkeypatch) -> None:
    alarm = stack_sampler._Alarm()
    monkeypatch.setattr(stack_sampler, "_alarm", alarm)
    disarm = signal.setitimer

    def disarmed_late(timer: int, seconds: float) -> tuple[float, float]:
        was = disarm(timer, seconds)
        if seconds == 0.0:  # it rang meanwhile, and Python answers now
            alarm._ring(signal.SIGALRM, None)
        return was

    listener = stack_sampler.StackSampler(lambda frame, count: None, shortest_s=60.0)
    monkeypatch.setattr(signal, "setitimer", disarmed_late)
    try:
        alarm.stop()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        listener.end()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    finally:
        disarm(signal.ITIMER_REAL, 0.0)
