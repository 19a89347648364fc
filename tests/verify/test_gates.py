"""The gates on made-up evidence: what passes, what does not, and in which words."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from hasten.records import Effect, Proof
from hasten.verify import gates
from hasten.verify.distances import alike
from hasten.verify.recorded_run import RecordedRun

STEPS, SIZES = 8, (160, 32, 8)
SIZE = sum(SIZES)
FLOOR = 2.0**-23


def evidence(*, lr: float = 0.1, rounding: float = 0.0, seed: int = 1) -> RecordedRun:
    """Return the evidence of a small descent, each step taught: it starts from the same weights.

    `rounding` shakes each number that much.
    """
    start, shake = np.random.default_rng(0), np.random.default_rng(seed)

    def shaken(values):
        signs = shake.choice([-1.0, 1.0], size=np.shape(values))
        return np.asarray(values) * (1 + rounding * signs)

    weights = start.normal(size=SIZE)
    gradients, moves, losses = [], [], []
    for _ in range(STEPS):
        losses.append(float(shaken(np.mean(weights**2))))
        gradients.append(shaken(weights).astype(np.float32))
        moves.append(shaken(-lr * gradients[-1]).astype(np.float32))
        weights = 0.9 * weights
    return RecordedRun(
        step_count=STEPS,
        batches=tuple(f"batch {i}" for i in range(STEPS)),
        orders=(tuple(f"index {i}" for i in range(STEPS)),),
        structure=tuple("SGD" for _ in range(STEPS)),
        samples=(4,) * STEPS,
        losses=tuple(losses),
        weights=str(hash((moves[-1].tobytes(), gradients[-1].tobytes()))),
        sizes=SIZES,
        gradients=tuple(gradients),
        moves=tuple(moves),
        losses_at=tuple(range(1, STEPS + 1)),
    )


def at(arrays, step, change):
    """Return the arrays with `change` applied to that of one step."""
    return tuple(change(values.copy()) if i == step else values for i, values in enumerate(arrays))


@pytest.fixture
def baseline() -> RecordedRun:
    return evidence()


@pytest.fixture
def floors() -> list[RecordedRun]:
    return [evidence(rounding=FLOOR, seed=seed) for seed in (2, 3)]


def test_two_equal_runs_are_repeatable_and_exact(baseline) -> None:
    assert gates.repeatable(baseline, evidence()).passed is True
    assert gates.same_structure(baseline, evidence(), redraws=False).passed is True
    bits = gates.same_bits(baseline, evidence(), drawn_alike=True)
    assert bits.passed is True
    proof = Proof(effect=Effect.EXACT, gates=(bits,))
    assert proof.holds
    assert proof.effect is Effect.EXACT


def test_a_script_that_does_not_repeat_itself_is_undecided_and_says_by_how_much(baseline) -> None:
    gate = gates.repeatable(baseline, evidence(rounding=1e-3))
    assert gate.passed is None
    assert gate.distance_ratio == pytest.approx(1e-3, rel=0.01)
    assert "cannot be judged" in gate.message


def test_other_bits_are_not_exact(baseline) -> None:
    assert gates.same_bits(baseline, evidence(rounding=FLOOR), drawn_alike=True).passed is False


def test_rounding_within_the_floor_passes(baseline, floors) -> None:
    gate = gates.within_floor(baseline, evidence(rounding=2 * FLOOR), floors)
    assert gate.passed is True, gate.message


@pytest.mark.parametrize("lr", [0.1005, 0.0995, 0.2])
def test_another_learning_rate_is_not_rounding(baseline, floors, lr) -> None:
    gate = gates.within_floor(baseline, evidence(lr=lr), floors)
    assert gate.passed is False
    assert gate.distance_ratio > 100


def test_a_difference_between_rounding_and_wrong_is_a_warning(baseline, floors) -> None:
    gate = gates.within_floor(baseline, evidence(rounding=40 * FLOOR), floors)
    assert gate.passed is None
    assert "more than rounding" in gate.message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_losses_that_are_no_numbers_are_rejected(baseline, floors, bad) -> None:
    broken = replace(baseline, losses=(*baseline.losses[:-1], bad))
    assert gates.within_floor(baseline, broken, floors).passed is False
    gate = gates.repeatable(baseline, evidence(rounding=1e-3))
    assert gates.within_spread(baseline, broken, gate).passed is False


@pytest.mark.parametrize("name", ["gradients", "moves"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_tensors_that_are_no_numbers_are_rejected(baseline, floors, name, bad) -> None:
    def spoil(values):
        values[3] = bad
        return values

    broken = replace(baseline, **{name: at(getattr(baseline, name), 2, spoil)})
    assert gates.within_floor(baseline, broken, floors).passed is False


def test_a_kink_in_some_steps_is_rounding(baseline, floors) -> None:
    def kinked(candidate):
        """Shift some gradients by a thousandth, as a ReLU does, and what the optimizer keeps."""
        for step in (1, 4, 6):
            bend = np.random.default_rng(step).normal(size=SIZE) * 1e-3
            candidate = replace(
                candidate,
                gradients=at(candidate.gradients, step, lambda g, bend=bend: g * (1 + bend)),
            )
            for later in range(step, STEPS):
                candidate = replace(
                    candidate,
                    moves=at(candidate.moves, later, lambda m, bend=bend: m * (1 + 0.3 * bend)),
                )
        return candidate

    gate = gates.within_floor(baseline, kinked(evidence(rounding=2 * FLOOR, seed=9)), floors)
    assert gate.passed is True, gate.message
    faulty = gates.within_floor(baseline, kinked(evidence(lr=0.1005, rounding=FLOOR)), floors)
    assert faulty.passed is False, faulty.message


@pytest.mark.parametrize("tensor", [0, 1, 2])
def test_one_frozen_tensor_is_no_rounding(baseline, floors, tensor) -> None:
    start = sum(SIZES[:tensor])

    def freeze(values):
        values[start : start + SIZES[tensor]] = 0
        return values

    moves = tuple(freeze(values.copy()) for values in baseline.moves)
    assert gates.within_floor(baseline, replace(baseline, moves=moves), floors).passed is False


def test_one_skipped_step_is_no_rounding(baseline, floors) -> None:
    skipped = replace(baseline, moves=at(baseline.moves, 5, lambda values: values * 0))
    gate = gates.within_floor(baseline, skipped, floors)
    assert gate.passed is False
    assert "step 6" in gate.message


@pytest.mark.parametrize(("other", "passed"), [(float("inf"), True), (1.0, False)])
def test_one_loss_of_the_script_s_own_that_is_no_number_only_has_to_come_again(
    floors, other, passed
) -> None:
    def with_one(run, value):
        return replace(run, losses=(*run.losses[:2], value, *run.losses[3:]))

    baseline = with_one(evidence(), float("inf"))
    shaken = [with_one(floor, float("inf")) for floor in floors]
    candidate = with_one(evidence(rounding=FLOOR), other)
    assert gates.within_floor(baseline, candidate, shaken).passed is passed


def test_a_script_whose_own_losses_are_no_numbers_is_not_proved_by_rounding(floors) -> None:
    nan = (float("nan"),) * STEPS
    baseline = replace(evidence(), losses=nan)
    sick = [replace(floor, losses=nan) for floor in floors]
    candidate = replace(evidence(lr=0.1, rounding=FLOOR), losses=nan)
    assert gates.within_floor(baseline, candidate, sick).passed is not True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": ("batch 1", "batch 0", *(f"batch {i}" for i in range(2, STEPS)))}, "batches"),
        ({"structure": ("SGD lr 0.2",) * STEPS}, "optimizer settings"),
        ({"samples": (8,) * STEPS}, "samples per step"),
        ({"losses": (), "step_count": STEPS - 1}, "number of steps"),
    ],
)
def test_another_training_is_rejected_by_its_structure(baseline, change, message) -> None:
    gate = gates.same_structure(baseline, replace(baseline, **change), redraws=False)
    assert gate.passed is False
    assert message in gate.message


def test_what_two_launches_of_the_script_itself_differ_in_is_not_the_plans_work(baseline) -> None:
    again = replace(baseline, batches=("other",) * STEPS)
    third = replace(baseline, batches=("third",) * STEPS)
    gate = gates.same_structure(baseline, third, redraws=False, again=again)
    assert gate.passed is None
    assert "two launches of the script itself differ in the content of the batches" in gate.message
    sized = replace(third, samples=(8,) * STEPS)
    gate = gates.same_structure(baseline, sized, redraws=False, again=again)
    assert gate.passed is False
    assert gate.message == "the plan changes the samples per step"


def searching(run, counts):
    """Return a run whose steps have that many losses, as under a line search."""
    losses = [loss for loss, count in zip(run.losses, counts, strict=True) for _ in range(count)]
    structure = [kind for count in counts for kind in ("LBFGS", *["call"] * count)]
    ends = tuple(int(end) for end in np.cumsum(counts))
    return replace(run, losses=tuple(losses), losses_at=ends, structure=tuple(structure))


def test_counts_that_one_changed_bit_changes_are_not_the_plans_work(baseline, floors) -> None:
    own = searching(baseline, (2, 2, 2, 3, 1, 2, 2, 2))
    bent = searching(floors[0], (2, 2, 3, 2, 1, 2, 2, 2))
    other = searching(evidence(rounding=FLOOR, seed=7), (2, 2, 2, 3, 1, 2, 4, 2))
    assert gates.only_counts_differ(own, other, redraws=False)
    alone = gates.same_structure(own, other, redraws=False)
    assert alone.passed is False
    assert "number of losses" in alone.message
    gate = gates.same_structure(own, other, redraws=False, shaken=[bent])
    assert gate.passed is None
    assert "with one bit of its weights changed" in gate.message
    steady = gates.same_structure(own, other, redraws=False, shaken=[own])
    assert steady.passed is False
    wrong = replace(other, structure=tuple(f"{kind} lr 0.2" for kind in other.structure))
    assert gates.same_structure(own, wrong, redraws=False, shaken=[bent]).passed is False
    assert not gates.only_counts_differ(own, wrong, redraws=False)
    first, candidate, floor = alike(own, other, bent)
    assert first.step_count == candidate.step_count == floor.step_count == 2
    assert gates.within_floor(first, candidate, [floor]).passed is True


def test_runs_are_alike_as_far_as_they_had_the_batches_of_the_first(baseline) -> None:
    fed = replace(baseline, fed_step_count=5)
    assert [run.step_count for run in alike(baseline, fed, baseline)] == [5, 5, 5]
    without_loader = replace(baseline, batches=())
    played = replace(fed, fed_step_count=0)
    assert alike(without_loader, played)[1].step_count == STEPS


def test_runs_that_part_at_once_are_judged_by_their_losses(baseline) -> None:
    floor, far = evidence(rounding=1e-3), evidence(rounding=1e-3, seed=5)
    assert gates.by_spread(baseline, far, [floor]).passed is True
    wrong = replace(far, losses=tuple(1.1 * loss for loss in far.losses))
    assert gates.by_spread(baseline, wrong, [floor]).passed is False


def test_a_floor_is_as_wide_as_the_run_that_lies_furthest(baseline, floors) -> None:
    """Of a script that goes one of two ways by chance, the runs with one bit changed do, too."""
    other_way = evidence(rounding=1e-3, seed=9)
    candidate = evidence(rounding=1e-3, seed=10)
    assert gates.within_floor(baseline, candidate, floors).passed is False
    assert gates.within_floor(baseline, candidate, [*floors, other_way]).passed is True


def test_a_script_that_varies_much_leaves_the_gate_open(baseline, floors) -> None:
    tight = gates.resolved(
        gates.within_floor(baseline, evidence(rounding=FLOOR, seed=7), floors), baseline, floors
    )
    assert tight.passed is True
    assert "two launches of the script itself differ by" in tight.message
    wild = [evidence(rounding=0.2, seed=seed) for seed in (2, 3, 4)]
    near = evidence(rounding=0.2, seed=5)
    gate = gates.resolved(gates.within_floor(baseline, near, wild), baseline, wild)
    assert gate.passed is None
    assert "cannot be judged" in gate.message
    failed = replace(gate, passed=False)
    assert gates.resolved(failed, baseline, wild).passed is False


def test_a_redraw_may_change_the_content_but_not_the_order(baseline) -> None:
    redrawn = replace(baseline, batches=("other",) * STEPS)
    assert gates.same_structure(baseline, redrawn, redraws=True).passed is True
    for orders in ((tuple(reversed(baseline.orders[0])),), ()):
        shuffled = replace(redrawn, orders=orders)
        gate = gates.same_structure(baseline, shuffled, redraws=True)
        assert gate.passed is False
        assert "order of the samples" in gate.message


@pytest.mark.parametrize("orders", [((),), None])
def test_an_order_that_nobody_saw_is_undecided(baseline, orders) -> None:
    redrawn = replace(baseline, batches=("other",) * STEPS)
    if orders is None:
        baseline, redrawn = replace(baseline, orders=()), replace(redrawn, orders=())
    else:
        redrawn = replace(redrawn, orders=orders)
    gate = gates.same_structure(baseline, redrawn, redraws=True)
    assert gate.passed is None
    assert "order of the samples could not be seen" in gate.message


def test_orders_are_compared_as_far_as_both_have_asked(baseline) -> None:
    ahead = replace(baseline, orders=((*baseline.orders[0], "index 8", "index 9"),))
    assert gates.same_structure(baseline, ahead, redraws=True).passed is True
    assert gates.same_structure(ahead, baseline, redraws=True).passed is True


def test_fewer_losses_than_the_baseline_are_no_rounding(baseline, floors) -> None:
    short = replace(baseline, losses=baseline.losses[:-2])
    assert gates.within_floor(baseline, short, floors).passed is False


def test_a_candidate_that_moves_what_the_baseline_leaves_alone_is_rejected(
    baseline, floors
) -> None:
    nothing = tuple(np.zeros(SIZE, np.float32) for _ in range(STEPS))
    still = replace(baseline, moves=nothing)
    resting = [replace(floor, moves=nothing) for floor in floors]
    assert gates.within_floor(still, still, resting).passed is True
    assert gates.within_floor(still, baseline, resting).passed is False


def test_one_floor_run_is_enough(baseline, floors) -> None:
    assert gates.within_floor(baseline, evidence(rounding=FLOOR), floors[:1]).passed is True


def test_a_script_that_does_not_repeat_itself_is_judged_by_its_own_spread(baseline) -> None:
    gate = gates.repeatable(baseline, evidence(rounding=1e-3))
    near = evidence(rounding=1e-3, seed=5)
    far = replace(near, losses=tuple(1.1 * loss for loss in near.losses))
    assert gates.within_spread(baseline, near, gate).passed is True
    assert gates.within_spread(baseline, far, gate).passed is False


def test_a_spread_that_allows_anything_judges_nothing(baseline) -> None:
    wild = replace(baseline, losses=tuple(1.5 * loss for loss in baseline.losses))
    gate = gates.within_spread(baseline, baseline, gates.repeatable(baseline, wild))
    assert gate.passed is None
    assert "cannot be judged" in gate.message
    broken = replace(baseline, losses=(*baseline.losses[:-1], float("nan")))
    gate = gates.within_spread(baseline, broken, gates.repeatable(baseline, wild))
    assert gate.passed is False


def test_a_training_that_came_to_nothing_repeats_itself(baseline) -> None:
    def lost(run):
        nothing = np.full(SIZE, np.nan, np.float32)
        return replace(
            run,
            losses=(*run.losses[:-1], float("nan")),
            gradients=(*run.gradients[:-1], nothing),
            moves=(*run.moves[:-1], nothing.copy()),
        )

    assert gates.repeatable(lost(baseline), lost(evidence())).passed is True
    assert gates.loss_distance(lost(baseline), lost(evidence())) == 0.0
    assert gates.repeatable(baseline, lost(evidence())).passed is None


def test_a_floor_that_ran_away_permits_nothing(baseline, floors) -> None:
    endless = tuple(np.full(SIZE, np.inf, np.float32) for _ in range(STEPS))
    wild = replace(floors[0], gradients=endless, losses=(float("inf"),) * STEPS)
    assert gates.within_floor(baseline, evidence(lr=0.1005), [wild]).passed is False


def test_the_losses_of_both_runs_go_into_the_proof(baseline) -> None:
    losses = {"losses": tuple(range(16)), "losses_at": tuple(range(2, 18, 2))}
    two_a_step = replace(evidence(), **losses)
    proof = gates.show_losses(Proof(effect=Effect.EXACT, gates=()), baseline, two_a_step.until(6))
    assert proof.baseline_losses == baseline.losses[:6]
    assert proof.candidate_losses == (0.5, 2.5, 4.5, 6.5, 8.5, 10.5)
    assert proof.taught_count == 6


def test_a_step_without_a_loss_has_none(baseline) -> None:
    some = replace(baseline, losses_at=(0, 1, 1, 2), losses=(3.0, 5.0))
    assert np.isnan(some.step_losses).tolist() == [True, False, True, False]


def test_the_steps_after_the_taught_ones_are_looked_at_too(baseline, floors) -> None:
    """They are not compared step by step, so only what differs by far is told."""
    chance = np.random.default_rng(7)
    tail = chance.normal(size=SIZE).astype(np.float32)

    def moved(run, share, seed=1):
        away = np.random.default_rng(seed).normal(size=SIZE)
        away *= share * np.linalg.norm(tail) / np.linalg.norm(away)
        return replace(run, tail=(tail + away).astype(np.float32))

    own, candidate = replace(baseline, tail=tail), evidence(rounding=FLOOR, seed=7)
    calm = [moved(floor, 1e-4, seed) for seed, floor in enumerate(floors, 5)]
    wild = [moved(floor, 0.05, seed) for seed, floor in enumerate(floors, 5)]
    lost = [replace(floor, tail=np.full(SIZE, np.inf, np.float32)) for floor in floors]
    for share, shaken, passed in (
        (0.1, calm, True),
        (0.3, calm, False),
        (0.3, wild, True),
        (0.6, wild, False),
        (0.3, lost, False),
        (0.3, floors, False),
    ):
        gate = gates.within_floor(own, moved(candidate, share), shaken)
        assert gate.passed is passed, (share, gate.message)
    skipped = replace(candidate, tail=0 * tail)
    gate = gates.within_floor(own, skipped, calm)
    assert gate.passed is False
    assert "the weights of the last steps differ by 1 of what they moved" in gate.message
    assert gates.within_floor(own, candidate, calm).passed is True  # one of them kept none
    assert gates.within_floor(baseline, skipped, calm).passed is True


UNIT = 1e-5
"""A floor far above the rounding of 32 bits, so that factors of it are exact."""


def scaled(run, factor, *, tensor=None, step=None, parts=("gradients", "moves")):
    """Return a run in which tensors are longer by so much of their size."""
    begin = sum(SIZES[:tensor]) if tensor is not None else 0
    end = begin + SIZES[tensor] if tensor is not None else SIZE

    def longer(values):
        values[begin:end] *= np.float32(1 + factor)
        return values

    changed = {
        part: tuple(
            longer(values.copy()) if step in (None, i) else values
            for i, values in enumerate(getattr(run, part))
        )
        for part in parts
    }
    return replace(run, **changed)


@pytest.mark.parametrize("part", ["gradients", "moves"])
@pytest.mark.parametrize(
    ("times", "passed"), [(9.8, True), (10.2, None), (98.0, None), (102.0, False)]
)
def test_ten_times_the_floor_is_rounding_and_a_hundred_is_not(baseline, part, times, passed):
    floor = scaled(baseline, UNIT)
    gate = gates.within_floor(baseline, scaled(baseline, times * UNIT, parts=(part,)), [floor])
    assert gate.passed is passed
    assert gate.distance_ratio == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize("tensor", [0, 1, 2])
@pytest.mark.parametrize(("times", "passed"), [(98.0, True), (102.0, None), (1020.0, False)])
def test_the_worst_tensor_may_lie_ten_times_further(baseline, tensor, times, passed) -> None:
    floor = scaled(baseline, UNIT)
    far = scaled(scaled(baseline, UNIT), times * UNIT, tensor=tensor)
    gate = gates.within_floor(baseline, far, [floor])
    assert gate.passed is passed
    assert gate.distance_ratio == pytest.approx(times / 10, rel=0.02)


@pytest.mark.parametrize("part", ["gradients", "moves"])
@pytest.mark.parametrize(
    ("floor", "far", "passed"),
    [(UNIT, 0.195, True), (UNIT, 0.205, False), (0.03, 0.29, True), (0.03, 0.31, False)],
)
def test_one_step_may_differ_by_a_fifth_or_ten_times_the_floor(
    baseline, part, floor, far, passed
) -> None:
    gate = gates.within_floor(
        baseline, scaled(baseline, far, step=5, parts=(part,)), [scaled(baseline, floor)]
    )
    assert (gate.passed is not False) is passed
    assert passed or "of step 6 differ" in gate.message


@pytest.mark.parametrize(
    ("own", "far", "passed"),
    [
        (0.0, 0.00099, True),
        (0.0, 0.00101, False),
        (0.01, 0.0299, True),
        (0.01, 0.0301, False),
        (0.099, 0.29, True),
        (0.101, 0.5, None),
    ],
)
def test_losses_may_differ_by_three_times_their_own_spread(baseline, own, far, passed) -> None:
    gate = gates.repeatable(baseline, baseline)
    gate = replace(gate, distance_ratio=own)
    other = replace(baseline, losses=tuple((1 - far) * loss for loss in baseline.losses))
    found = gates.within_spread(baseline, other, gate)
    assert found.passed is passed
    if passed is not None:
        assert found.distance_ratio == pytest.approx(far / max(0.001, 3 * own), rel=1e-3)


@pytest.mark.parametrize(("wide", "passed"), [(0.0099, True), (0.0101, None)])
@pytest.mark.parametrize("part", ["gradients", "moves"])
def test_a_floor_wider_than_a_hundredth_judges_nothing(baseline, wide, passed, part) -> None:
    floors = [scaled(baseline, wide, parts=(part,))]
    gate = replace(gates.same_bits(baseline, baseline, drawn_alike=True), passed=True)
    found = gates.resolved(gate, baseline, floors)
    assert found.passed is passed
    assert f"{wide:.2g} of" in found.message
    assert gates.resolved(replace(gate, passed=None), baseline, floors).passed is None


def test_the_way_of_the_losses_is_that_which_lies_furthest() -> None:
    run = evidence()
    for step in range(STEPS):
        losses = tuple(loss * (1.02 if i == step else 1.01) for i, loss in enumerate(run.losses))
        assert gates.loss_distance(run, replace(run, losses=losses)) == pytest.approx(0.02 / 1.02)
        assert gates.loss_distance(replace(run, losses=losses), run) == pytest.approx(0.02 / 1.02)


def test_what_was_compared_is_told_by_what_was_seen(baseline) -> None:
    gate = gates.same_structure(baseline, baseline, redraws=False)
    assert gate.message.startswith("same batches in the same order, ")
    assert f"over {STEPS} steps" in gate.message
    gate = gates.same_structure(baseline, baseline, redraws=True)
    assert gate.message.startswith("same order of samples, ")
    blind = replace(baseline, orders=())
    assert gates.same_structure(blind, blind, redraws=False).passed is True
    assert gates.only_counts_differ(baseline, baseline, redraws=False)
    fewer = {"step_count": 3, "samples": (4,) * 3, "losses": (), "batches": ()}
    counted = replace(baseline, structure=baseline.structure[:3], **fewer)
    assert gates.only_counts_differ(baseline, counted, redraws=False)


def test_only_what_differs_is_named(baseline) -> None:
    def message(redraws=False, **change):
        return gates.same_structure(baseline, replace(baseline, **change), redraws=redraws).message

    more = {"batches": (*baseline.batches, "batch 9")}
    assert message(**more) == "the plan changes the number of batches"
    assert "number of batches" not in message(redraws=True, **more)
    kinds = {"structure": ("SGD lr 0.2",) * (STEPS + 1)}
    assert message(**kinds) == "the plan changes the optimizer settings or training flags"
    order = {"structure": ("SGD",) * (STEPS + 1)}
    assert message(**order) == "the plan changes the order of calls and settings"
    turned = {"orders": (tuple(reversed(baseline.orders[0])),)}
    assert message(redraws=True, **turned) == "the plan changes the order of the samples"
    assert message(**turned).startswith("same batches in the same order")
    both = {"samples": (8,) * STEPS, "step_count": 9}
    assert message(**both) == "the plan changes the number of steps and the samples per step"


def test_one_order_of_several_that_nobody_saw_is_undecided(baseline) -> None:
    two = replace(baseline, orders=(baseline.orders[0], ()))
    assert gates.same_structure(two, two, redraws=True).passed is None
    more = replace(baseline, orders=(*baseline.orders, ("index 0",)))
    assert gates.same_structure(baseline, more, redraws=True).passed is True
    assert gates.same_structure(more, baseline, redraws=True).passed is False


def test_other_parameters_are_no_rounding(baseline, floors) -> None:
    for change in ({"sizes": (160, 40)}, {"losses": baseline.losses[:-1]}):
        gate = gates.within_floor(baseline, replace(baseline, **change), floors)
        assert gate.passed is False
        assert gate.message == "the plan changes the parameters or the number of losses"


def test_the_figures_are_those_of_the_typical_tensors(baseline) -> None:
    floor, far = scaled(baseline, UNIT), scaled(baseline, 3 * UNIT)
    gate = gates.within_floor(baseline, far, [floor])
    assert gate.message.startswith(
        "consistent with rounding: gradients 3, weights 3, losses 0 times"
    )
    gate = gates.within_floor(baseline, scaled(baseline, 500 * UNIT, parts=("moves",)), [floor])
    assert gate.message.startswith("the weights differ by ")
    assert gate.distance_ratio == pytest.approx(500, rel=0.01)


def test_a_floor_is_the_largest_of_its_runs(baseline) -> None:
    far = scaled(baseline, 9.8 * UNIT)
    for order in (1, -1):
        floors = [scaled(baseline, unit) for unit in (UNIT, 0.2 * UNIT)[::order]]
        assert gates.within_floor(baseline, far, floors).passed is True
    assert gates.within_floor(baseline, far, floors[:1]).passed is None


def test_distances_are_shares_of_what_the_baseline_has(baseline) -> None:
    floor, longer = scaled(baseline, UNIT), scaled(baseline, 1.0)
    longer = replace(longer, losses=tuple(2 * loss for loss in baseline.losses))
    ratios = gates.part_ratios(baseline, longer, [floor])
    assert ratios["gradients"] == pytest.approx(1 / UNIT, rel=0.01)
    assert ratios["weights"] == pytest.approx(1 / UNIT, rel=0.01)
    assert ratios["losses"] == pytest.approx(1 / gates.LEAST_DISTANCE)
    assert ratios["worst gradients"] == pytest.approx(0.1 / UNIT, rel=0.01)
    moved = gates.part_ratios(baseline, scaled(baseline, 1.0, parts=("moves",)), [floor])
    assert moved["weights"] == pytest.approx(1 / UNIT, rel=0.01)
    assert moved["gradients"] == 0.0


def test_losses_are_held_against_the_widest_of_the_launches(baseline) -> None:
    def louder(share):
        return replace(baseline, losses=tuple((1 + share) * loss for loss in baseline.losses))

    for order in (1, -1):
        floors = [louder(0.001), louder(0.02)][::order]
        assert gates.by_spread(baseline, louder(0.05), floors).passed is True
        assert gates.by_spread(baseline, louder(0.07), floors).passed is False
    assert gates.by_spread(baseline, louder(0.0009), [baseline]).passed is True
    assert gates.by_spread(baseline, louder(0.0011), [baseline]).passed is False


def test_losses_are_compared_as_far_as_both_went(baseline) -> None:
    short = replace(baseline, losses=baseline.losses[:3])
    assert gates.loss_distance(baseline, short) == gates.loss_distance(short, baseline) == 0.0


def test_a_plan_under_which_no_loss_is_computed_is_not_judged_by_its_losses(baseline) -> None:
    mute = replace(baseline, losses=())
    assert gates.by_spread(baseline, mute, [baseline, mute]).passed is False
    assert gates.by_spread(mute, mute, [baseline]).passed is True


@pytest.mark.parametrize(
    ("times", "passed"), [(9.9, True), (-9.9, True), (10.1, None), (-10.1, None)]
)
def test_four_last_bits_are_the_least_floor_of_losses_too(baseline, times, passed) -> None:
    losses = tuple((1 + times * 2.0**-21) * loss for loss in baseline.losses)
    gate = gates.within_floor(baseline, replace(baseline, losses=losses), [baseline])
    assert gate.passed is passed
    assert gate.distance_ratio == pytest.approx(abs(times), rel=1e-6)


@pytest.mark.parametrize("part", ["gradients", "moves"])
def test_a_floor_that_ran_away_in_one_step_hides_no_skipped_step(baseline, part) -> None:
    own = getattr(baseline, part)
    wild = replace(baseline, **{part: at(own, 2, lambda values: np.full_like(values, np.inf))})
    skipped = replace(baseline, **{part: at(own, 5, lambda values: values * 0)})
    gate = gates.within_floor(baseline, skipped, [wild])
    assert gate.passed is False
    assert "of step 6 differ by 1 of" in gate.message


def test_a_script_that_ran_away_itself_allows_no_loss_that_is_no_number(baseline) -> None:
    broken = replace(baseline, losses=(*baseline.losses[:-1], float("nan")))
    own = gates.repeatable(baseline, broken)
    assert own.distance_ratio == np.inf
    assert gates.within_spread(baseline, broken, own).passed is False
    assert gates.within_spread(baseline, baseline, own).passed is None


@pytest.mark.parametrize(
    ("change", "redraws"),
    [
        ({"structure": ("SGD lr 0.2",) * STEPS}, False),
        ({"batches": ("other",) * STEPS}, False),
        ({"orders": (("index 7",) * STEPS,)}, True),
    ],
)
def test_one_changed_bit_excuses_other_counts_alone(baseline, change, redraws) -> None:
    other = replace(baseline, **change)
    gate = gates.same_structure(baseline, other, redraws=redraws, shaken=[other])
    assert gate.passed is False
    assert not gates.only_counts_differ(baseline, other, redraws=redraws)


def test_settings_that_come_in_another_order_are_other_settings(baseline) -> None:
    steps = ("SGD lr 0.1",) * 4 + ("SGD lr 0.2",) * 4
    own, other = (replace(baseline, structure=order) for order in (steps, steps[::-1]))
    assert not gates.only_counts_differ(own, other, redraws=False)


def test_a_script_that_differs_from_itself_is_not_said_to_stay_the_same(baseline) -> None:
    again = replace(baseline, batches=("other",) * STEPS)
    gate = gates.same_structure(baseline, baseline, redraws=False, again=again)
    assert gate.passed is None


def test_bits_are_equal_only_where_every_average_is_still_there() -> None:
    run = replace(evidence(), averages=(("(2,)", np.float32([1.0, 2.0])),))
    more = replace(run, averages=(*run.averages, ("(2,)", np.float32([3.0, 4.0]))))
    assert gates.same_bits(run, replace(run, averages=()), drawn_alike=True).passed is False
    assert gates.same_bits(run, more, drawn_alike=True).passed is True


@pytest.mark.parametrize("count", [1, 8])
def test_samples_that_are_no_numbers_are_not_of_the_same_law(count) -> None:
    def outlined(values, names):
        outlines = tuple((("torch.float32 (8, 3)", float(v), 1.0),) for v in values)
        return replace(evidence(), batches=tuple(names), outlines=outlines)

    calm = np.linspace(0.1, 0.2, 8)
    sick = np.where(np.arange(8) < count, np.nan, calm)
    same_law = importlib.import_module("hasten.verify.distribution").same_law
    assert same_law(outlined(calm, "12345678"), outlined(sick, "abcdefgh")).passed is False
