"""What a bench has seen of the script as it is."""

import pytest

from upshift import compare
from upshift.launch.tally import Tally
from upshift.records import Phase, Step


def step(seconds):
    return Step(phase_ns={Phase.FORWARD: int(seconds * 1e9)}, sample_count=2)


def test_neighbours_stand_in_both_orders_and_in_whole_blocks() -> None:
    tally = Tally()
    tally.watched([step(seconds) for seconds in (1.0, 2.0, 3.0, 4.0, 5.0)])
    found = [(pair.baseline_s, pair.candidate_s) for pair in tally.neighbours(1)]
    assert found == [(0.5, 1.0), (1.0, 0.5), (1.5, 2.0), (2.0, 1.5)]
    (pair, other) = tally.neighbours(2)
    assert (pair.baseline_s, pair.candidate_s) == (0.75, 1.75)
    assert pair.log_ratio == -other.log_ratio
    assert not tally.neighbours(3)


def test_steps_that_are_dear_and_cheap_in_turns_are_noise_step_by_step_only() -> None:
    tally = Tally()
    tally.watched([step(0.1 if at % 2 else 0.2) for at in range(64)])
    single, double = (compare.spread(tally.neighbours(count)) for count in (1, 2))
    assert single > 0.69
    assert double == pytest.approx(0.0)
