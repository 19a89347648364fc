"""Scripts of many habits under a trial: their steps are found and their bits stay."""

import pytest
import torch
from torch.utils.data import DataLoader

from hasten.instrument.traits import TraitsReader
from hasten.records import Phase

pytestmark = pytest.mark.child

NAMES = (
    "plain", "functional loss", "accumulation", "tokens", "gan", "by hand", "no loader", "lbfgs",
    "evaluation", "zipped", "saves", "transforms", "recomputation", "background", "in a thread",
    "fork", "fork workers", "spawn workers", "kept workers", "mishap", "compiled",
    "traced", "scripted", "lazy",
)  # fmt: skip
SLOW = ("spawn workers", "compiled")
SCRIPTS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES]


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_weights_and_random_states_are_those_of_plain_python(name, trial, plain) -> None:
    assert "bits" in plain(name)
    assert trial(name).output == plain(name)
    assert len(trial(name).steps) == 6


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_examiner_breaks_on_a_script_of_any_habit(name, trial) -> None:
    assert trial(name).found["broken"] == {}


def phases(steps) -> set[Phase]:
    return {Phase(phase) for step in steps for phase in step.phase_ns}


def spent_ns(steps, phase) -> int:
    return sum(step.phase_ns.get(phase, 0) for step in steps)


@pytest.mark.parametrize("name", ["plain", "functional loss"])
def test_each_part_of_a_plain_loop_has_its_phase(name, trial) -> None:
    parts = {Phase.DATA, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER}
    for step in trial(name).steps[:5]:
        assert parts <= set(step.phase_ns)
        assert set(step.phase_ns) <= parts | {Phase.OTHER}


@pytest.mark.parametrize(
    ("name", "count", "unit"),
    [
        ("plain", 4, "samples"),
        ("accumulation", 16, "samples"),
        ("tokens", 16 * 16, "tokens"),
        ("by hand", 4, "samples"),
        ("no loader", 8, "samples"),
        ("lbfgs", 4, "samples"),
        ("zipped", 8, "samples"),
        ("in a thread", 4, "samples"),
        ("kept workers", 4, "samples"),
    ],
)
def test_a_step_is_one_update_with_all_its_samples(name, count, unit, trial) -> None:
    assert [step.sample_count for step in trial(name).steps] == [count] * 6
    assert trial(name).facts.unit == unit


def test_two_optimizers_make_one_step_together(trial) -> None:
    assert [step.sample_count for step in trial("gan").steps] == [4] * 6
    assert trial("gan").facts.traits.optimizer.step_count == 2


def test_what_a_step_holds_is_counted_once_its_end_is_known() -> None:
    reader, batches = TraitsReader(), iter(DataLoader(range(99)))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    for batch_count in (15, 5, 5, 5):  # the cycle of five to one is known after three rounds
        for _ in range(batch_count):
            reader.loaded(batches, next(batches))
            reader.backward(())
            reader.steps(optimizer)
        reader.steps(optimizer)
        reader.ended()
    found = reader.read()
    assert (found.step_batch_count, found.optimizer.step_count) == (5, 6)


def test_an_evaluation_between_epochs_is_no_part_of_any_step(trial) -> None:
    steps = trial("evaluation").steps
    evaluating = [step for step in steps if Phase.EVALUATION in step.phase_ns]
    assert len(evaluating) == 1  # six steps, one end of an epoch
    assert evaluating[0].phase_ns[Phase.EVALUATION] >= 4 * 20_000_000  # four batches, metrics too
    assert evaluating[0].wall_s < sum(evaluating[0].phase_ns.values()) * 1e-9
    assert [step.sample_count for step in steps] == [4] * 6


def test_a_saved_checkpoint_is_no_part_of_a_step(trial) -> None:
    assert sum(Phase.CHECKPOINT in step.phase_ns for step in trial("saves").steps) == 1


def test_only_calls_from_the_script_are_roots(trial) -> None:
    counted = 10 * 16 + 16 + 16 * 3 + 3
    assert trial("plain").facts.traits.model.parameter_count == counted


def test_transforms_that_are_modules_are_data(trial) -> None:
    steps = trial("transforms").steps
    assert spent_ns(steps[:5], Phase.DATA) >= 5 * 4 * 3_000_000


def test_what_a_backward_pass_computes_again_is_backward(trial) -> None:
    steps = trial("recomputation").steps
    assert spent_ns(steps[:5], Phase.BACKWARD) >= 5 * 3_000_000


def test_a_forked_child_is_left_alone(trial) -> None:
    assert "child 0\n" in trial("fork").output


def test_a_step_that_raised_does_not_end_the_counting(trial) -> None:
    assert "went on" in trial("mishap").output
    assert len(trial("mishap").steps) == 6


@pytest.mark.slow
def test_compiled_code_has_the_same_graphs_and_still_has_steps(trial, plain) -> None:
    graphs = [line for line in plain("compiled").splitlines() if not line.startswith("bits")]
    assert len(graphs) == 6
    assert [line for line in trial("compiled").output.splitlines() if line in graphs] == graphs


@pytest.mark.measures
def test_parts_of_consecutive_steps_sum_to_the_wall_that_the_script_measured(trial) -> None:
    shown = trial("timed")
    ends = [int(word) for word in shown.output.split()[1:]]
    steps = shown.steps[:-1]  # from the end of the first step to the end of the sixth
    wall_ns = ends[len(steps)] - ends[0]
    assert sum(sum(step.phase_ns.values()) for step in steps) == pytest.approx(wall_ns, rel=0.05)


@pytest.mark.parametrize("name", ["plain", "by hand"])
def test_steps_end_also_while_the_seams_are_out(name, trial) -> None:
    shown = trial(name, turns=((0, 1, 5, False), (0, 1, 5, True)))
    assert [len(steps) for steps in shown.turns] == [5, 5]


def test_switching_at_each_step_keeps_the_count(trial) -> None:
    shown = trial("plain", turns=((0, 1, 1, True), (0, 0, 2, True), (0, 2, 3, False)))
    assert [len(steps) for steps in shown.turns] == [1, 2, 3]
