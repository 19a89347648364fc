"""Accelerators that a script leaves alone."""

from dataclasses import replace

import pytest

from hasten.diagnose import Case, discover
from hasten.records import ModelTraits, Phase, Step, Traits
from hasten.testing import LAPTOP, SERVER, sample_profile

STEP = Step(
    phase_ns={Phase.DATA: 40_000_000, Phase.FORWARD: 20_000_000, Phase.BACKWARD: 40_000_000}
)


def told(machine=SERVER, device="cpu", step=STEP):
    case = Case(
        machine=machine,
        profile=sample_profile(),
        traits=Traits(model=ModelTraits(device=device)),
        steps=(step,) * 8,
    )
    return discover()["accelerator-unused"].find(case)


def test_a_model_on_the_cpu_beside_an_accelerator_is_found_by_what_the_cpu_computes() -> None:
    found = told()
    assert found.share.mid_ratio == pytest.approx(0.6)
    assert "60% of a step" in found.message
    assert "Accelerator 80 GB has nothing to do" in found.message
    assert found.remedy.endswith('.to("cuda").')


def test_several_accelerators_of_one_kind_are_named_once() -> None:
    torch = replace(SERVER.torch, accelerators=("Accelerator 80 GB",) * 2)
    found = told(machine=replace(SERVER, torch=torch))
    assert "2 of Accelerator 80 GB have nothing to do" in found.message


def test_there_is_nothing_to_tell_without_one_or_where_it_is_used() -> None:
    assert told(machine=LAPTOP) is None
    assert told(machine=replace(LAPTOP, torch=None)) is None
    assert told(device="cuda") is None
    assert told(device=None) is None
    assert told(step=Step(phase_ns={Phase.DATA: 100_000_000, Phase.FORWARD: 100_000})) is None
