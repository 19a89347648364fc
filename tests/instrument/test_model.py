"""What is noted of the models of a script, and of the machine's speed with fewer bits."""

import pytest

PROGRAM = r"""
import json
from dataclasses import asdict
import torch
from torch import nn
from hasten.instrument.probes import fewer_bits
from hasten.instrument.model import ModelFacts
from hasten.records import ProductSpeed, Traits

facts = {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


def noted(*modules):
    notes = ModelFacts()
    notes._speeds = {}
    for module in modules:
        notes.called(module)
    return asdict(notes.add(Traits()))


enter = torch.autocast.__enter__
facts["images"] = noted(nn.Conv2d(1, 1, 1), nn.MSELoss(), nn.Linear(2, 2))
facts["volumes"] = noted(nn.Linear(2, 2), nn.ConvTranspose3d(1, 1, 1))
last = torch.channels_last
facts["loss"] = noted(nn.MSELoss())
normed = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 16, 3).to(memory_format=last))
before = {name: value.clone() for name, value in normed.state_dict().items()}
facts["normed"] = noted(normed)
facts["left alone"] = all(before[name].equal(now) for name, now in normed.state_dict().items())
facts["laid out"] = [
    noted(nn.Conv2d(4, 4, 3)), noted(nn.Conv2d(4, 4, 3).to(memory_format=last)),
    noted(nn.Conv2d(4, 4, 3).to(memory_format=last), nn.Conv2d(4, 4, 3)),
    noted(nn.Conv2d(4, 4, 1), nn.Conv3d(4, 4, 3).to(memory_format=torch.channels_last_3d))]
facts["double"] = noted(nn.Linear(2, 2).double())
facts["mixed"] = noted(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
notes, model = ModelFacts(), Model()
notes.called(model)
model(torch.rand(2, 2))
notes._speeds = {}
facts["autocast"] = asdict(notes.add(Traits()))
facts["entered as before"] = torch.autocast.__enter__ is enter

state, words = torch.get_rng_state(), torch.get_float32_matmul_precision()
torch.set_num_threads(1)
facts["bits"] = {name: asdict(speed) for name, speed in fewer_bits("cpu").items()}
facts["other device"] = fewer_bits("mps") == {}
torch.cpu.get_device_capability = lambda: (7, 5)
facts["older device"] = sorted(fewer_bits("cpu"))
torch.cpu.get_device_capability = lambda: (8, 0)
facts["newer device"] = sorted(fewer_bits("cpu"))
facts["untouched"] = [
    torch.equal(state, torch.get_rng_state()), words == torch.get_float32_matmul_precision(),
    getattr(torch.backends.mkldnn, "conv", None) is None
    or torch.backends.mkldnn.conv.fp32_precision in ("none", "ieee")]
torch.set_float32_matmul_precision("high")
facts["own precision"] = noted(nn.Linear(2, 2))["precision"]["matmul"]
"""


@pytest.fixture(scope="module")
def noted(gathered):
    return gathered(PROGRAM)


@pytest.mark.child
def test_every_root_of_the_script_counts(noted) -> None:
    assert noted["images"]["model"]["has_conv2d"] is True
    assert noted["images"]["model"]["has_conv3d"] is False
    assert noted["images"]["model"]["parameter_count"] == 2
    assert noted["volumes"]["model"]["has_conv3d"] is True
    assert noted["volumes"]["model"]["has_conv2d"] is False


@pytest.mark.child
def test_sees_that_the_script_has_laid_its_kernels_out_itself(noted) -> None:
    """A kernel of one pixel is the same in both layouts and says nothing."""
    told = [facts["model"]["has_channels_last"] for facts in noted["laid out"]]
    assert told == [False, True, False, True]
    assert noted["images"]["model"]["has_channels_last"] is None


@pytest.mark.child
def test_a_weight_that_is_computed_is_not_asked_for(noted) -> None:
    assert noted["normed"]["model"]["has_channels_last"] is True
    assert noted["left alone"]


@pytest.mark.child
def test_the_numbers_of_a_model_are_named(noted) -> None:
    assert noted["images"]["model"]["dtype"] == "float32"
    assert noted["images"]["model"]["device"] == "cpu"
    assert noted["double"]["model"]["dtype"] == "float64"
    assert noted["mixed"]["model"]["dtype"] == "mixed"
    assert noted["loss"]["model"]["dtype"] is None
    assert noted["own precision"] == "high"


@pytest.mark.child
def test_sees_an_autocast_inside_a_model_and_looks_no_longer(noted) -> None:
    assert noted["autocast"]["precision"]["uses_autocast"] is True
    assert noted["images"]["precision"]["uses_autocast"] is False
    assert noted["entered as before"]


@pytest.mark.child
def test_the_probe_times_products_and_convolutions_and_leaves_no_trace(noted) -> None:
    tensors, inside = noted["bits"]["bf16"], noted["bits"]["inside"]
    assert all(ratio > 0 for ratio in tensors.values())
    assert all(ratio is None or ratio > 0 for ratio in inside.values())
    assert noted["other device"]
    assert noted["older device"] == ["fp16", "inside"]
    assert noted["newer device"] == ["bf16", "inside"]
    assert noted["untouched"] == [True] * 3
