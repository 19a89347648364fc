"""device_placement: offered to models on the CPU beside an accelerator."""

from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers.device_placement import LEVER
from hasten.records import ModelTraits, Traits
from hasten.testing import LAPTOP, SERVER


def seen(machine, device):
    return ScriptContext(machine=machine, traits=Traits(model=ModelTraits(device=device)))


def test_is_offered_to_models_on_the_cpu_beside_an_accelerator() -> None:
    assert LEVER.settings(seen(SERVER, "cpu")) == ("cuda",)


@pytest.mark.parametrize(
    ("machine", "device", "why"),
    [
        (LAPTOP, "cpu", "no accelerator"),
        (replace(LAPTOP, torch=None), "cpu", "no accelerator"),
        (SERVER, None, "no call of a model"),
        (SERVER, "cuda", "the model is on cuda"),
    ],
)
def test_says_why_it_is_not(machine, device, why) -> None:
    context = seen(machine, device)
    assert LEVER.settings(context) == ()
    assert why in LEVER.why_not(context)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "xpu", "privateuseone:0"])
def test_takes_the_name_of_a_device(name) -> None:
    assert LEVER.validate(name) == ""


@pytest.mark.parametrize("name", ["cpu:0", "meta", "cuda:", "Cuda", "cuda:x", ""])
def test_refuses_what_names_none(name) -> None:
    assert "cuda:1" in LEVER.validate(name)
