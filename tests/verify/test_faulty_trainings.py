"""Mutation of the verifier: planted faults are caught, harmless changes pass, on three models."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import hasten

pytestmark = [pytest.mark.child, pytest.mark.slow]
SRC = Path(hasten.__file__).parents[1]
HERE = Path(__file__).with_name("faulty_trainings.py")
_spec = spec_from_file_location("faulty_trainings", HERE)
assert _spec is not None
assert _spec.loader is not None
faulty_trainings = module_from_spec(_spec)
_spec.loader.exec_module(faulty_trainings)


def cases(table):
    return [(name, kind) for name, kinds in table.items() for kind in kinds]


def _recorded(kind):
    done = subprocess.run(
        [sys.executable, str(HERE), kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen():
    """What the gates said of every change, of each kind of training."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(_recorded, faulty_trainings.KINDS)
        return {kind: facts for part in found for kind, facts in part.items()}


def test_there_are_enough_of_them_on_each_model() -> None:
    for kind in faulty_trainings.KINDS:
        faults = [
            kinds
            for table in (faulty_trainings.HIDDEN, faulty_trainings.PLAIN)
            for kinds in table.values()
        ]
        assert sum(kind in kinds for kinds in faults) >= 12
        assert sum(kind in kinds for kinds in faulty_trainings.HARMLESS.values()) >= 8


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
def test_the_trainings_repeat_themselves(kind, seen) -> None:
    assert seen[kind]["repeats"] is True


@pytest.mark.parametrize(("fault", "kind"), cases(faulty_trainings.HIDDEN))
def test_a_fault_that_the_settings_do_not_show_is_no_rounding(fault, kind, seen) -> None:
    verdict = seen[kind]["hidden"][fault]
    assert verdict["passed"] == [False], verdict["says"]


@pytest.mark.parametrize(("fault", "kind"), cases(faulty_trainings.PLAIN))
def test_a_fault_in_the_settings_or_the_data_is_another_structure(fault, kind, seen) -> None:
    verdict = seen[kind]["plain"][fault]
    assert verdict["passed"] == [False], verdict["says"]


@pytest.mark.parametrize(("change", "kind"), cases(faulty_trainings.HARMLESS))
def test_a_harmless_change_passes(change, kind, seen) -> None:
    verdict = seen[kind]["harmless"][change]
    assert verdict["passed"] == [True, True], verdict["says"]


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
def test_fewer_bits_in_the_model_pass_as_what_they_are(kind, seen) -> None:
    verdict = seen[kind]["narrow"][""]
    assert verdict["passed"] == [True, True], verdict["says"]


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
@pytest.mark.parametrize("fault", faulty_trainings.NARROW_FAULTS)
def test_fewer_bits_hide_no_fault(fault, kind, seen) -> None:
    verdict = seen[kind]["narrow"][fault]
    assert False in verdict["passed"], verdict["says"]


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
def test_float16_passes_with_losses_that_are_scaled(kind, seen) -> None:
    verdict = seen[kind]["half"][""]
    assert verdict["passed"] == [True, True], verdict["says"]
    assert "left out" not in verdict["says"][0]


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
def test_first_steps_that_overflow_in_float16_are_told_and_left_out(kind, seen) -> None:
    verdict = seen[kind]["half"]["scaled too high"]
    assert verdict["passed"] == [True, True], verdict["says"]
    assert "steps overflowed and were left out" in verdict["says"][0]


@pytest.mark.parametrize("kind", faulty_trainings.KINDS)
@pytest.mark.parametrize("fault", faulty_trainings.HALF_FAULTS)
def test_float16_hides_no_fault(fault, kind, seen) -> None:
    verdict = seen[kind]["half"][fault]
    assert False in verdict["passed"], verdict["says"]


def test_other_draws_of_the_model_pass_as_what_they_are(seen) -> None:
    verdict = seen["transformer"]["draws"][""]
    assert verdict["passed"] == [True, True], verdict["says"]


@pytest.mark.parametrize("fault", faulty_trainings.DRAWN_FAULTS)
def test_other_draws_of_the_model_hide_no_fault(fault, seen) -> None:
    verdict = seen["transformer"]["draws"][fault]
    assert False in verdict["passed"], verdict["says"]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_other_draws_of_the_samples_pass_on_the_batches_of_the_script(kind, seen) -> None:
    verdict = seen[kind]["fed"]["noise redrawn"]
    assert verdict["passed"] == [True, True, True], verdict["says"]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
@pytest.mark.parametrize("fault", ["noise shifted", "noise x 3", "noise repeated"])
def test_another_law_of_the_samples_is_caught_by_what_was_drawn(fault, kind, seen) -> None:
    structure, law, _ = seen[kind]["fed"][fault]["passed"]
    assert (structure, law) == (True, False), seen[kind]["fed"][fault]["says"]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
@pytest.mark.parametrize("fault", ["gradients x 1.005", "steps x 1.005"])
def test_other_draws_of_the_samples_hide_no_fault(fault, kind, seen) -> None:
    verdict = seen[kind]["fed"][fault]
    assert verdict["passed"] == [True, True, False], verdict["says"]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_the_order_of_samples_is_seen_whoever_fetches_them(kind, seen) -> None:
    orders = seen[kind]["orders"]
    assert orders[""]["passed"] == [True], orders[""]["says"]
    assert orders["batches swapped"]["passed"] == [False], orders["batches swapped"]["says"]
    assert "order of the samples" in orders["batches swapped"]["says"][0]
