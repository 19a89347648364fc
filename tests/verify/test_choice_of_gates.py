"""Which gates judge which plan, by runs that are made up: nothing is started."""

from dataclasses import replace

import numpy as np
import pytest

from hasten.errors import ScriptFailed
from hasten.records import Effect, Plan
from hasten.verify.distances import LEAST_DISTANCE
from hasten.verify.proof_runs import ONE_BIT
from hasten.verify.prover import Prover
from hasten.verify.recorded_run import RecordedRun

STEPS = 12
EXACT = Plan().with_lever("malloc_retention", True)
ROUNDING = Plan().with_lever("fused_optimizer", True)
REDRAWN = Plan().with_lever("redrawing_workers", True)
FEWER_BITS = Plan().with_lever("fp32_precision", "tf32")
MIXED = FEWER_BITS.with_lever("fused_optimizer", True)


def made(rounding=0.0, *, in_moves=None, seed=0, rate=0.1, **details) -> RecordedRun:
    """A small descent, each step from the same weights and with the same gradients.

    `rounding` shakes each number that much, `in_moves` those of the moves.
    """
    shake = np.random.default_rng(seed)

    def shaken(values, ratio=rounding):
        return np.float32(values * (1 + ratio * shake.choice([-1.0, 1.0], np.shape(values))))

    weights = [np.random.default_rng(0).normal(size=200) * 0.9**step for step in range(STEPS)]
    gradients = [shaken(values) for values in weights]
    moves = [shaken(-rate * values, in_moves or rounding) for values in weights]
    losses = tuple(float(shaken(np.mean(values**2))) for values in weights)
    return replace(
        RecordedRun(
            step_count=STEPS, batches=tuple(map(str, range(STEPS))), orders=(("0", "1"),),
            structure=("SGD",) * STEPS, samples=(4,) * STEPS, losses=losses,
            weights=str(hash(moves[-1].tobytes())), sizes=(150, 50), gradients=tuple(gradients),
            moves=tuple(moves), losses_at=tuple(range(1, STEPS + 1)),
            fed_step_count=STEPS, gradients_taught=True,
        ),
        **details,
    )  # fmt: skip


class Runs:
    """A recorder whose runs are made; those of the script are equal unless it varies.

    `own` returns what is special about a run of the script, by what was asked and its number.
    """

    teacher, teaching_run, health, launch_count = "folder", None, (), 0

    def __init__(self, candidates, *, variation=0.0, own=lambda take, number: {}) -> None:
        self.candidates, self.variation, self.own = candidates, variation, own
        self.asked = []
        self.forgotten_count = 0

    def record(self, asked):
        return [self.run(plan, take) for plan, take in asked]

    def run(self, plan, take):
        self.asked.append((plan, take))
        self.launch_count += 1
        if plan.settings:
            found = self.candidates[plan]
            if isinstance(found, Exception):
                raise found
            return found
        seed = 1000 * (take.reseed or 0) + take.perturb_seed + 7 * bool(take.perturb_ratio)
        if self.variation:
            seed += 100 * self.launch_count
        found = made(
            max(take.perturb_ratio, self.variation),
            seed=seed,
            **self.own(take, self.launch_count),
        )
        if self.teaching_run is None:
            self.teaching_run = found
        return found

    def forget(self):
        self.teaching_run = None
        self.forgotten_count += 1


def judge(plan, candidate, *, others=(), **script):
    """Return the proof of a plan, the verdicts of its gates, and the recorder."""
    runs = Runs({plan: candidate, **dict(others)}, **script)
    proof = Prover(runs, step_s=0.1, parameter_count=1000).prove(plan)
    return proof, {gate.name: gate.passed for gate in proof.gates}, runs


def test_a_plan_without_levers_needs_no_run() -> None:
    proof, verdicts, runs = judge(Plan(), made())
    assert (proof.effect, verdicts, runs.asked) == (Effect.EXACT, {}, [])


def test_two_equal_runs_prove_a_plan_that_claims_equal_bits_and_that_the_script_repeats() -> None:
    proof, verdicts, runs = judge(EXACT, made())
    assert proof.effect is Effect.EXACT
    assert verdicts == {"G0 repeatable": True, "G1 structure": True, "equal bits": True}
    assert len(proof.baseline_losses) == len(proof.candidate_losses) == STEPS
    assert runs.launch_count == 2
    assert all(take.teacher is None for _, take in runs.asked), "neither is taught"


@pytest.mark.parametrize("part", ["fetch_draws", "model_draws"])
def test_generators_that_stand_elsewhere_refute_a_plan_that_claims_equal_bits(part) -> None:
    drawn = {part: ("other",) * STEPS}
    proof, verdicts, _ = judge(EXACT, made(fed_step_count=None, **drawn))
    assert not proof.holds
    assert verdicts["equal bits"] is False
    assert "later draws would differ" in proof.gates[-1].message


def test_other_bits_refute_a_plan_that_claims_equal_ones_if_the_script_repeats_itself() -> None:
    proof, verdicts, _ = judge(EXACT, made(ONE_BIT, seed=5))
    assert not proof.holds
    assert verdicts == {"G0 repeatable": True, "G1 structure": True, "equal bits": False}


@pytest.mark.parametrize(("rate", "holds"), [(0.1, True), (0.11, False)])
def test_where_the_script_varies_equal_bits_are_judged_as_rounding(rate, holds) -> None:
    proof, verdicts, runs = judge(EXACT, made(1e-6, seed=5, rate=rate), variation=1e-6)
    assert proof.holds is holds
    assert verdicts["G0 repeatable"] is None
    assert verdicts["G3 update"] is holds
    assert runs.asked[-1][1].feeds, "all other runs are given its batches"
    assert runs.forgotten_count == 1
    floors = [take for plan, take in runs.asked if take.perturb_ratio]
    assert [take.perturb_seed for take in floors] == [1, 2, 3]


@pytest.mark.parametrize(
    ("floors", "passed", "floor_count"),
    [(4.5, True, 1), (5.5, True, 3), (15.0, None, 3), (900.0, False, 3), (1100.0, False, 1)],
)
def test_one_floor_is_enough_where_the_difference_is_clear(floors, passed, floor_count) -> None:
    proof, verdicts, runs = judge(ROUNDING, made(floors * LEAST_DISTANCE, seed=5))
    assert proof.effect is Effect.ROUNDING
    assert verdicts == {"G0 repeatable": True, "G1 structure": True, "G3 rounding": passed}
    assert runs.launch_count == 3 + floor_count
    assert {take.perturb_ratio for _, take in runs.asked} == {0.0, ONE_BIT}


def test_a_plan_that_may_round_and_does_not_is_exact() -> None:
    proof, verdicts, _ = judge(ROUNDING, made())
    assert proof.effect is Effect.EXACT
    assert verdicts == {"G0 repeatable": True, "G1 structure": True, "equal bits": True}


def test_where_the_structure_differs_nothing_is_compared_step_by_step() -> None:
    other = made(ONE_BIT, seed=5, structure=("Adam",) * STEPS)
    proof, verdicts, runs = judge(ROUNDING, other)
    assert not proof.holds
    assert verdicts == {"G0 repeatable": True, "G1 structure": False}
    assert len([take for _, take in runs.asked if take.perturb_ratio]) == 1, "what ran beside it"


ONE_LOSS_MORE = {
    "losses": (*made().losses, 0.1),
    "losses_at": (*range(1, STEPS), STEPS + 1),
    "structure": ("SGD",) * (STEPS + 1),
}


@pytest.mark.parametrize(("seed", "floor_count"), [(1, 1), (3, 3), (None, 3)])
def test_one_loss_more_is_the_plans_work_if_no_changed_bit_adds_one(seed, floor_count) -> None:
    def own(take, number):
        return ONE_LOSS_MORE if take.perturb_ratio and take.perturb_seed == seed else {}

    proof, verdicts, runs = judge(ROUNDING, made(ONE_BIT, seed=5, **ONE_LOSS_MORE), own=own)
    assert verdicts["G1 structure"] is (None if seed else False)
    assert ("G3 rounding" in verdicts) == bool(seed)
    assert proof.holds == bool(seed)
    assert len([take for _, take in runs.asked if take.perturb_ratio]) == floor_count


def test_a_plan_under_which_the_script_fails_keeps_no_structure() -> None:
    failed = ScriptFailed(
        "It ended.", remedy="Look.", output="Traceback (most recent call last):\nKeyError: 'b'"
    )
    proof, verdicts, _ = judge(ROUNDING, failed)
    assert proof.effect is Effect.ROUNDING
    assert verdicts == {"G1 structure": False}
    assert "KeyError" in proof.gates[0].message


def test_a_plan_that_may_redraw_and_does_not_is_judged_as_rounding() -> None:
    proof, verdicts, _ = judge(REDRAWN, made(2 * ONE_BIT, seed=5))
    assert proof.effect is Effect.ROUNDING
    assert verdicts == {"G0 repeatable": True, "G1 structure": True, "G3 rounding": True}
    proof, verdicts, _ = judge(REDRAWN, made(rate=0.11))
    assert verdicts["G3 rounding"] is False


REDREW = {"batches": tuple(f"other {i}" for i in range(STEPS))}


def test_redrawn_batches_are_judged_by_their_law_and_the_update_on_the_scripts_own() -> None:
    proof, verdicts, runs = judge(REDRAWN, made(2 * ONE_BIT, seed=5, **REDREW))
    assert proof.effect is Effect.DISTRIBUTION
    assert set(verdicts) == {"G0 repeatable", "G1 structure", "G1 law of the draws", "G3 rounding"}
    assert runs.asked[0][1].keeps
    assert [take.feeds for plan, take in runs.asked if plan == REDRAWN] == [True]
    proof, verdicts, _ = judge(REDRAWN, made(rate=0.11, **REDREW))
    assert verdicts["G3 rounding"] is False


@pytest.mark.parametrize("parted", [False, True])
def test_other_batches_in_each_launch_are_judged_by_their_law_if_the_script_keeps_it(
    parted,
) -> None:
    def own(take, number):
        kind = "float32" if number % 2 or not parted else "int64"
        return {
            "batches": tuple(f"{number} {i}" for i in range(STEPS)),
            "outlines": (((kind, 0.0, 1.0),),) * STEPS,
        }

    candidate = made(1e-6, seed=5, **own(None, 99))
    proof, verdicts, runs = judge(ROUNDING, candidate, variation=1e-6, own=own)
    assert proof.effect is Effect.ROUNDING
    assert ("G1 law of the draws" in verdicts) is not parted
    assert verdicts["G0 repeatable"] is None
    assert verdicts["G1 structure"] is True
    assert runs.asked[-1][1].feeds


@pytest.mark.parametrize(
    ("plan", "change"),
    [
        (ROUNDING, {}),
        (FEWER_BITS, {}),
        (REDRAWN, {}),
        (REDRAWN, {"model_draws": ("other",) * STEPS}),
    ],
)
@pytest.mark.parametrize(("loss_ratio", "passed"), [(1.0005, True), (1.2, False)])
def test_runs_that_part_at_once_are_judged_by_their_losses(
    plan, change, loss_ratio, passed
) -> None:
    late = {"losses_at": (2, *range(2, STEPS + 1))}

    def own(take, number):
        return late if take.perturb_ratio or take.reseed else {}

    losses = tuple(np.multiply(made().losses, loss_ratio).tolist())
    candidate = made(ONE_BIT, seed=5, **change, **late, losses=losses)
    _, verdicts, runs = judge(plan, candidate, own=own)
    assert verdicts["G3 spread"] is passed
    assert not {"G3 update", "G3 rounding", "G3 draws"} & set(verdicts)
    assert any(take.reseed for _, take in runs.asked) == bool(change)


def test_redrawn_batches_without_the_scripts_own_to_train_on_leave_the_gate_open() -> None:
    _, verdicts, _ = judge(REDRAWN, made(**REDREW, fed_step_count=0))
    assert verdicts["G3 draws"] is None


def test_a_model_that_draws_otherwise_is_held_against_its_runs_of_other_seeds() -> None:
    drawn = made(2 * ONE_BIT, seed=5, model_draws=("other",) * STEPS)
    proof, verdicts, runs = judge(REDRAWN, drawn)
    assert proof.effect is Effect.DISTRIBUTION
    assert verdicts["G3 draws"] is not None
    assert verdicts["G3 update"] is True
    assert [take.reseed for _, take in runs.asked if take.reseed] == [1, 2]
    assert all(take.feeds for _, take in runs.asked if take.reseed)
    proof, verdicts, _ = judge(REDRAWN, replace(made(rate=0.11), model_draws=("other",) * STEPS))
    assert verdicts["G3 update"] is False


def test_fewer_bits_are_held_against_a_wider_floor_and_their_update_against_rounding() -> None:
    proof, verdicts, runs = judge(FEWER_BITS, made(2.0**-11, in_moves=ONE_BIT, seed=5))
    assert proof.effect is Effect.PRECISION
    assert verdicts["G4 precision"] is True
    wide = {take.perturb_ratio for _, take in runs.asked} - {0.0, ONE_BIT}
    assert len(wide) == 1
    assert min(wide) > 100 * ONE_BIT
    assert verdicts["G3 update"] is True
    _, verdicts, _ = judge(FEWER_BITS, made(2.0**-11, in_moves=ONE_BIT, seed=5, rate=0.11))
    assert verdicts["G3 update"] is False


@pytest.mark.parametrize(
    ("rest", "passed"), [(made(2 * ONE_BIT, seed=6), True), (made(rate=0.11), False)]
)
def test_the_other_levers_of_a_plan_with_fewer_bits_are_judged_without_these(rest, passed) -> None:
    proof, verdicts, _ = judge(
        MIXED, made(2.0**-11, in_moves=ONE_BIT, seed=5), others={ROUNDING: rest}.items()
    )
    assert proof.effect is Effect.PRECISION
    assert verdicts["G3 rounding"] is passed
    assert [gate.name for gate in proof.gates].count("G1 structure") == 1


def test_each_run_is_recorded_once() -> None:
    runs = Runs({EXACT: made(), ROUNDING: made(2 * ONE_BIT, seed=5), REDRAWN: made(**REDREW)})
    prover = Prover(runs, step_s=0.1, parameter_count=1000)
    counts = []
    for plan in (EXACT, ROUNDING, ROUNDING, REDRAWN):
        prover.prove(plan)
        counts.append(prover.launch_count)
    assert counts == [2, 5, 5, 9]
    assert runs.forgotten_count == 1, "the first two runs have kept no batches"


def test_a_plan_that_claims_equal_bits_needs_one_run_where_those_of_the_script_are_there() -> None:
    runs = Runs({EXACT: made(), ROUNDING: made(2 * ONE_BIT, seed=5)})
    prover = Prover(runs, step_s=0.1, parameter_count=1000)
    prover.prove(ROUNDING)
    before_count = runs.launch_count
    assert [gate.name for gate in prover.prove(EXACT).gates][-1] == "equal bits"
    assert runs.launch_count == before_count + 1


@pytest.mark.parametrize(("rate", "passed"), [(0.1, True), (0.11, False)])
def test_the_other_levers_of_a_plan_that_redraws_are_judged_without_these(rate, passed) -> None:
    plan = REDRAWN.with_lever("fused_optimizer", True)
    rest = made(2 * ONE_BIT, seed=6, rate=rate)
    proof, verdicts, runs = judge(
        plan,
        made(2 * ONE_BIT, seed=5, model_draws=("other",) * STEPS),
        others={ROUNDING: rest}.items(),
    )
    assert proof.effect is Effect.DISTRIBUTION
    assert verdicts["G3 rounding"] is passed
    assert ROUNDING in [plan for plan, _ in runs.asked]


@pytest.mark.parametrize("drawn", [True, False])
def test_fewer_bits_are_judged_without_the_levers_that_redraw_where_these_do(drawn) -> None:
    plan = REDRAWN.with_lever("fp32_precision", "tf32")
    draws = {"model_draws": ("other",) * STEPS} if drawn else {}
    narrow = made(2.0**-11, in_moves=ONE_BIT, seed=5)
    _, verdicts, runs = judge(
        plan, replace(narrow, **draws), others={FEWER_BITS: narrow, REDRAWN: made(**draws)}.items()
    )
    assert verdicts["G4 precision"] is True
    alone = [take for asked, take in runs.asked if asked == FEWER_BITS]
    assert [take.feeds for take in alone] == ([True] if drawn else [])
