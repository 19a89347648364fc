"""What a run left behind: when two are equal, what their first steps left, how it is read back."""

from dataclasses import replace

import numpy as np
import pytest

from hasten.protocol import Recorded
from hasten.verify.recorded_run import RecordedRun, read_evidence

ONE = np.float32([1.0, 2.0])
NEXT = np.nextafter(ONE, np.float32(9.0))
RUN = RecordedRun(
    step_count=3, batches=("a", "b", "c"), orders=(), structure=(), samples=(4, 5, 6),
    losses=(1.0, 2.0, 3.0, 4.0), losses_at=(1, 2, 4), weights="w", sizes=(2,),
    gradients=(ONE, ONE), moves=(ONE, ONE), tail=ONE, averages=(("(2,)", ONE),),
    fetch_draws=("f",), model_draws=("m",),
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"step_count": 4},
        {"batches": ("a", "c", "b")},
        {"losses": (1.0, 2.0, 3.0, np.nextafter(4.0, 5.0))},
        {"weights": "other"},
        {"gradients": (ONE, NEXT)},
        {"moves": (ONE, NEXT)},
        {"averages": (("(2,)", NEXT),)},
        {"averages": (("(1, 2)", ONE),)},
        {"averages": ()},
    ],
)
def test_a_run_that_differs_in_one_bit_of_anything_is_not_equal(change) -> None:
    assert RUN.equals(RUN)
    assert not replace(RUN, **change).equals(RUN)


def test_what_a_plan_keeps_beside_the_averages_of_the_script_is_no_difference() -> None:
    assert replace(RUN, averages=(("(2,)", NEXT), *RUN.averages)).equals(RUN)


@pytest.mark.parametrize("part", ["fetch_draws", "model_draws"])
def test_only_a_run_that_was_fed_must_have_drawn_alike(part) -> None:
    other = replace(RUN, **{part: ("other",)})
    assert other.equals(RUN)
    for fed in (0, 3):
        assert replace(RUN, fed_step_count=fed).equals(RUN)
        assert not replace(other, fed_step_count=fed).equals(RUN)


def test_the_taught_steps_have_the_losses_at_their_end() -> None:
    assert RUN.forced_losses_count == 2
    assert replace(RUN, gradients=(ONE,) * 3).forced_losses_count == 4
    assert replace(RUN, gradients=()).forced_losses_count == 0
    assert replace(RUN, losses_at=(1,)).forced_losses_count == 1


def test_of_the_first_steps_nothing_is_known_that_came_later() -> None:
    assert RUN.until(3) is RUN.until(9) is RUN
    two, one, none = (RUN.until(count) for count in (2, 1, 0))
    assert (two.step_count, two.losses, two.losses_at, two.samples) == (2, (1, 2), (1, 2), (4, 5))
    assert (one.step_count, one.losses, one.losses_at, one.samples) == (1, (1,), (1,), (4,))
    assert (none.step_count, none.losses, none.losses_at, none.samples) == (0, (), (), ())
    assert [len(run.gradients) for run in (two, one, none)] == [2, 1, 0]
    assert [len(run.moves) for run in (two, one, none)] == [2, 1, 0]
    assert [run.tail.size for run in (two, one, none)] == [0, 0, 0]
    assert [len(run.averages) for run in (two, one, none)] == [1, 0, 0]  # two steps are taught


def test_a_run_is_read_back_as_it_was_sent(tmp_path) -> None:
    arrays = {
        "gradients0": [1.0, 2.0], "gradients1": [3.0, 4.0], "moves0": [5.0, 6.0],
        "moves1": [7.0, 8.0], "averages": [9.0, 10.0, 11.0], "tail": [12.0, 13.0],
    }  # fmt: skip
    for name, values in arrays.items():
        np.asarray(values, "<f4").tofile(tmp_path / name)
    sent = Recorded(
        steps=3, forced=2, batches=["a"], outlines=[[["float", 1.0, 2.0]]], orders=[["i", "j"]],
        structure=["SGD"], samples=[4, 5, 6], losses=[1.0, 2.0], losses_at=[1, 1, 2], weights="w",
        sizes=[2], averages=(["(2,)", "()"], [2, 1]), fetch_draws=["f"], model_draws=["m"], fed=2,
        gradients_taught=True,
    )  # fmt: skip
    run = read_evidence(sent, tmp_path)
    assert [row.tolist() for row in run.gradients] == [[1.0, 2.0], [3.0, 4.0]]
    assert [row.tolist() for row in run.moves] == [[5.0, 6.0], [7.0, 8.0]]
    found = [(shape, values.tolist()) for shape, values in run.averages]
    assert found == [("(2,)", [9.0, 10.0]), ("()", [11.0])]
    assert run.tail.tolist() == [12.0, 13.0]
    assert (run.step_count, run.sizes, run.weights) == (3, (2,), "w")
    assert (run.batches, run.outlines) == (("a",), ((("float", 1.0, 2.0),),))
    assert (run.orders, run.structure, run.samples) == ((("i", "j"),), ("SGD",), (4, 5, 6))
    assert (run.losses, run.losses_at) == ((1.0, 2.0), (1, 1, 2))
    assert (run.fetch_draws, run.model_draws) == (("f",), ("m",))
    assert (run.fed_step_count, run.gradients_taught) == (2, True)


def test_what_a_run_did_not_leave_is_nothing(tmp_path) -> None:
    sent = Recorded(
        steps=1, forced=1, batches=[], outlines=[], orders=[], structure=[], samples=[4],
        losses=[], losses_at=[0], weights="w", sizes=[], averages=([], []), fetch_draws=[],
        model_draws=[], fed=0, gradients_taught=False,
    )  # fmt: skip
    run = read_evidence(sent, tmp_path)
    assert [row.size for row in (*run.gradients, *run.moves, run.tail)] == [0, 0, 0]
    assert run.averages == ()
