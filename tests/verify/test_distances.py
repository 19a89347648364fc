"""How far two trainings lie apart: each figure can be checked by hand."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from hasten.verify import distances
from hasten.verify.recorded_run import RecordedRun

STEPS, LEAST = 8, 1e-3


def run(gradients=(1.0, 1.0), moves=(1.0, 1.0), *, losses=(-2.0,) * STEPS, averages=()):
    """Return a run of equal steps, each tensor of one number."""
    return RecordedRun(
        step_count=STEPS, batches=(), orders=(), structure=(), samples=(4,) * STEPS, weights="",
        losses=losses, losses_at=tuple(range(1, STEPS + 1)), sizes=(1,) * len(gradients),
        gradients=(np.float32(gradients),) * STEPS, moves=(np.float32(moves),) * STEPS,
        averages=averages,
    )  # fmt: skip


def lossy(*shares):
    """Return a run whose losses are off by these shares of them."""
    return run(losses=tuple(-2.0 * (1 + share) for share in shares))


def averaged(*values):
    return run(averages=tuple((f"({len(value)},)", np.float32(value)) for value in values))


def test_a_distance_is_a_share_of_the_second_tensor() -> None:
    def apart(left, right):
        return distances.distance(np.float32(left), np.float32(right))

    assert apart([6.0, 0.0], [2.0, 0.0]) == 2.0
    assert apart([2.0, 0.0], [6.0, 0.0]) == pytest.approx(2 / 3)
    assert apart([0.0, 0.0], [0.0, 0.0]) == 0.0
    assert apart([0.0, 1.0], [0.0, 0.0]) == inf
    assert apart([nan, 1.0], [1.0, 1.0]) == inf
    assert apart([3e38], [-3e38]) == pytest.approx(2.0)  # beyond the numbers of 32 bits


def test_distances_go_tensor_by_tensor_as_far_as_both_runs_went() -> None:
    left, right = [np.float32([1, 3, 5])], [np.float32([2, 0, 5])] * 2
    assert distances.distances(left, right, (1, 2)).tolist() == [[0.5, 0.6]]
    assert distances.distances([], right, (1, 2)).shape == (0, 2)


@pytest.mark.parametrize(("count", "rank"), [(4, 0), (5, 1), (8, 1), (9, 2), (24, 5)])
def test_the_lower_quartile_of_the_steps_counts(count, rank) -> None:
    column = np.random.default_rng(0).permutation(count).astype(float)
    found = distances.quartile(np.column_stack([column, 100 + column]))
    assert found.tolist() == [rank, 100 + rank]


def test_a_floor_is_the_typical_step_of_the_widest_run() -> None:
    calm, wide = np.array([[1.0], [2.0], [9.0]]), np.array([[5.0], [4.0], [inf]])
    assert distances.floor_of([calm, wide], 0.5) == distances.floor_of([wide, calm], 0.5) == [4.0]
    assert distances.floor_of([calm], 0.5) == [2.0]
    assert distances.floor_of([calm], 3.0) == [3.0]
    assert distances.floor_of([np.array([[5.0], [inf]])], 0.5) == [2.5]
    assert distances.floor_of([np.array([[inf], [inf]])], 0.5) == [0.5]


def test_a_script_s_own_distance_is_that_of_its_typical_tensor() -> None:
    still = (1.0, 1.0, 1.0)
    floors = [run((1.1, 1.2, 1.9), (1.3, 1.4, 1.0)), run(still, (1.3, 1.3, 1.5))]
    gradients, moves = distances.own_distances(run(still, still), floors)
    assert gradients == pytest.approx(0.2, rel=1e-5)
    assert moves == pytest.approx(0.4, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "lost_distance", "varies", "ratio"),
    [
        # 4.0 or 1.6 thousandths of all gradients; 5.0 or 1.0 times as far as the floor
        (0.0080, 0.5, False, 4.0),
        (0.0080, 0.5, True, 4.0),
        (0.0080, 0.7, False, 5.0),
        (0.0080, 0.7, True, 5.0),
        (0.0032, 0.5, False, 1.6),
        (0.0032, 0.5, True, 1.0),
        (-0.0080, 0.5, False, 4.0),
    ],
)
def test_a_gradient_that_is_only_rounding_has_to_stay_small(
    value, lost_distance, varies, ratio
) -> None:
    own, floor = run((2.0, 0.002)), run((2.02, 0.0032))
    found = distances.gradient_ratios(
        own, run((2.04, value)), [floor], LEAST, lost_distance=lost_distance, varies=varies
    )
    assert found.tolist() == pytest.approx([2.0, ratio], rel=1e-3)


@pytest.mark.parametrize(
    ("clean_count", "far", "gradient", "taught", "ratio"),
    [
        (0, 0.03, 1.0, False, 3.0),
        (1, 0.5, 1.0, False, 50.0),  # of eight steps one may be clean by chance
        (2, 0.5, 1.0, False, 0.0),
        (1, 0.5, 1.25, False, 2.0),  # twice as far as a gradient of any step
        (1, 0.5, 1.25, True, 50.0),  # which was taught: the optimizer did not get that one
        (1, 0.5, inf, False, 50.0),
        (0, 0.5, 1.25, False, 50.0),  # no step is clean
    ],
)
def test_movements_may_differ_as_far_as_a_gradient_did_but_in_some_step(
    clean_count, far, gradient, taught, ratio
) -> None:
    own, floor = run(), run(moves=(1.01, 1.01))
    candidate = replace(
        own, gradients_taught=taught, gradients=(np.float32([gradient, 1]), *own.gradients[1:]),
        moves=tuple(np.float32([1 + far * (i >= clean_count), 1.0]) for i in range(STEPS)),
    )  # fmt: skip
    found = distances.move_ratios(own, candidate, [floor], LEAST)
    assert found.tolist() == pytest.approx([ratio, 0.0], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("shares", "ratio"),
    [
        ((0.03,) * 8, 3.0),
        ((-0.03,) * 8, 3.0),
        ((0.0, 0.0, *(0.5,) * 6), 0.0),
        ((0.0, *(0.03,) * 7), 3.0),
        ((0.0, *(nan,) * 7), inf),
    ],
)
def test_losses_lie_apart_by_their_quartile_in_either_direction(shares, ratio) -> None:
    found = distances.loss_ratio(run(), lossy(*shares), [lossy(*(0.01,) * 8)], LEAST)
    assert found == pytest.approx(ratio, rel=1e-6)


def test_losses_are_compared_in_the_taught_steps_alone() -> None:
    own, floor = run(), lossy(*(0.01,) * 8)
    two = replace(own, gradients=own.gradients[:2])
    later, early = lossy(0.0, 0.0, *(0.03,) * 6), lossy(0.03, 0.03, *(0.0,) * 6)
    assert distances.loss_ratio(two, later, [floor], LEAST) == 0.0
    assert distances.loss_ratio(two, early, [floor], LEAST) == pytest.approx(3.0)
    assert distances.loss_ratio(replace(own, gradients=()), early, [floor], LEAST) == 0.0
    assert distances.loss_ratio(lossy(*(nan,) * 8), own, [floor], LEAST) == inf
    assert distances.loss_ratio(lossy(nan, *(0.0,) * 7), own, [floor], LEAST) == inf


def test_a_floor_whose_losses_end_early_is_no_floor_of_losses() -> None:
    own, other, floor = run(), lossy(*(0.03,) * 8), lossy(*(0.01,) * 8)
    short = replace(floor, losses=floor.losses[:3])
    assert distances.loss_ratio(own, other, [short, floor], LEAST) == pytest.approx(3.0)
    assert distances.loss_ratio(own, other, [short], LEAST) == pytest.approx(30.0)


def test_an_average_is_held_against_the_nearest_of_its_shape() -> None:
    own, floor = averaged([1.0], [2.0], [1.0, 1.0]), averaged([1.01], [2.02], [1.01, 1.01])
    other = averaged([1.03, 1.03], [2.06], [1.03])

    def ratios(candidate, floors=(floor,)):
        return distances.average_ratios(own, candidate, floors, LEAST).tolist()

    assert ratios(other) == pytest.approx([3.0] * 3, rel=1e-3)
    assert ratios(averaged([1.03], [2.06])) == pytest.approx([3.0, 3.0, inf], rel=1e-3)
    fewer = averaged([1.01], [2.02])
    assert ratios(other, [fewer]) == pytest.approx([3.0, 3.0, 30.0], rel=1e-3)
    assert distances.average_ratios(run(), other, [floor], LEAST).size == 0


@pytest.mark.parametrize(
    ("left", "right", "cosine", "stretch"),
    [
        ((2.0, 2.0), (4.0, 0.0), 0.5**0.5, 0.5),
        ((-2.0, 0.0), (4.0, 0.0), -1.0, -0.5),
        ((0.0, 3.0), (4.0, 0.0), 0.0, 0.0),
        ((0.0, 0.0), (4.0, 0.0), 0.0, 0.0),
        ((4.0, 0.0), (0.0, 0.0), 0.0, 1.0),
        ((0.0, 0.0), (0.0, 0.0), 1.0, 1.0),
        ((nan, 1.0), (4.0, 0.0), -1.0, nan),
    ],
)
def test_gradients_point_somewhere_and_are_that_long_along_the_script_s(
    left, right, cosine, stretch
) -> None:
    own, other = run(right), run(left)
    assert distances.cosines(own, other).tolist() == pytest.approx([cosine] * STEPS)
    found = distances.stretches(own, other).tolist()
    assert found == pytest.approx([stretch] * STEPS, nan_ok=True)


def parted(own, step):
    """Return a run that took one loss more in that step."""
    ends = tuple(end + (index >= step) for index, end in enumerate(own.losses_at))
    return replace(own, losses_at=ends, losses=(*own.losses, -2.0))


def test_runs_are_followed_until_one_takes_another_number_of_losses() -> None:
    own = run()

    def counts(*others):
        return [each.step_count for each in distances.alike(own, *others)]

    assert counts(own, own) == [8, 8, 8]
    assert counts(parted(own, 3), own) == counts(own, parted(own, 3)) == [3, 3, 3]
    assert counts(parted(own, 3), parted(own, 0)) == [0, 0, 0]
    assert counts(own.until(2), own) == [2, 2, 2]


@pytest.mark.parametrize(
    ("drift", "taught", "parts", "count"),
    [
        (1.9e-4, False, True, 1),
        (0.6e-4, False, True, 3),
        (1.9e-4, True, True, 3),
        (1.9e-4, False, False, 8),
    ],
)
def test_where_counts_differ_runs_are_followed_until_gradients_drift(
    drift, taught, parts, count
) -> None:
    own = run((1.0, 0.0))
    gradients = (own.gradients[0], np.float32([1.0, drift]), *own.gradients[2:])
    drifting = replace(own, gradients=gradients, gradients_taught=taught)
    others = [drifting, parted(own, 3)] if parts else [drifting]
    assert distances.alike(own, *others)[0].step_count == count


def test_runs_are_followed_as_far_as_each_was_fed() -> None:
    own = replace(run(), batches=("batch",) * STEPS)
    fed = [replace(own, fed_step_count=count) for count in (5, 3, None)]
    assert distances.alike(own, *fed)[0].step_count == 3


def test_runs_without_a_known_weight_have_no_step_to_compare() -> None:
    own, other = replace(run(()), gradients=(), moves=()), replace(run(()), gradients=(), moves=())
    assert [one.step_count for one in distances.alike(own, other)] == [0, 0]
