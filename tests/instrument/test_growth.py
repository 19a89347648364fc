"""What the examiner of growth notes at the ends of steps."""

import gc
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hasten.instrument import kept_graph  # noqa: E402
from hasten.instrument.examine import growth, stacks  # noqa: E402
from hasten.instrument.examine.growth import Growth  # noqa: E402
from hasten.instrument.ledger import Ledger  # noqa: E402


@pytest.fixture
def examiner():
    gc.collect()  # graphs that other tests left in cycles would go while this one counts
    return Growth(SimpleNamespace(ledger=Ledger()))


def test_a_sum_of_losses_rises_from_count_to_count(examiner) -> None:
    weight, total = torch.ones(3, requires_grad=True), 0
    for _ in range(9):
        total = total + (weight * 2).sum()
        examiner.ended()
    counts = examiner.end()["node_counts"]
    assert [step for step, _ in counts] == list(range(1, 10))
    assert all(later > earlier for (_, earlier), (_, later) in pairwise(counts))


def test_losses_of_which_one_is_alive_rise_and_fall_with_it(examiner) -> None:
    weight = torch.ones(3, requires_grad=True)
    for depth in (9, 1, 9, 1):
        loss = weight.sum()
        for _ in range(depth):
            loss = loss * 2
        examiner.ended()
    counts = [count for _, count in examiner.end()["node_counts"]]
    assert counts[0] == counts[2] > counts[1] == counts[3]


def test_graphs_are_counted_a_dozen_times_at_most(examiner, monkeypatch) -> None:
    sizes = iter(range(200))
    monkeypatch.setattr(growth, "live_node_count", lambda: next(sizes))
    for _ in range(200):
        examiner.ended()
    assert len(examiner.end()["node_counts"]) == 13
    assert len(examiner.end()["cpu_s"]) == 200


@pytest.mark.parametrize(
    ("sizes", "step_count", "steps"),
    [([7, 7, 7, 7], 20, [1, 2, 3, 4]), ([9, 7, 8, 8, 9, 9], 6, [1, 2, 3, 4, 5, 6])],
)
def test_graphs_that_do_not_rise_are_counted_four_times(
    examiner, monkeypatch, sizes, step_count, steps
) -> None:
    """Each count goes through every object in memory."""
    left = iter(sizes)
    monkeypatch.setattr(growth, "live_node_count", lambda: next(left))
    for _ in range(step_count):
        examiner.ended()
    assert [step for step, _ in examiner.end()["node_counts"]] == steps


def test_a_count_takes_no_time_of_any_step(monkeypatch) -> None:
    now_ns = [0]

    def take_long():
        now_ns[0] += 10**9
        return 7

    monkeypatch.setattr(growth, "live_node_count", take_long)
    ledger = Ledger(lambda: now_ns[0])
    ledger.loop_begins()
    examiner = Growth(SimpleNamespace(ledger=ledger))
    for _ in range(3):
        now_ns[0] += 5
        assert sum(ledger.cut()) == 5
        examiner.ended()


def test_a_moment_inside_a_count_is_no_sample_of_the_loop() -> None:
    frame = SimpleNamespace(f_code=kept_graph.node_count.__code__, f_back=None, f_lineno=1)
    assert stacks._read(frame) is None


def test_what_a_step_is_fed_is_counted_by_its_calls_or_else_by_its_batch(examiner) -> None:
    examiner.loaded(None, [torch.ones(2, 50), torch.ones(2)])
    examiner.called(None, (torch.ones(2, 5),), {"mask": torch.ones(5)})
    examiner.called(None, (torch.ones(2, 5),), {})
    examiner.ended()
    examiner.loaded(None, [torch.ones(2, 4), torch.ones(2)])
    examiner.ended()
    examiner.ended()
    assert examiner.end()["element_counts"] == [25, 10, 0]


def test_without_a_step_nothing_is_told(examiner) -> None:
    assert examiner.end() == {}
