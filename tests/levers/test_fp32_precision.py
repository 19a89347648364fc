"""fp32_precision: set where the script has set nothing, and put back to the letter."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.fp32_precision import LEVER
from hasten.testing import LAPTOP

CPU = {
    "model.dtype": "float32", "model.device": "cpu", "bf16_inside.matmul_ratio": 1.6,
    "fp32.precision": "highest",
}  # fmt: skip
CUDA = {"model.dtype": "float32", "model.device": "cuda", "tf32_inside.matmul_ratio": 4.0}


def context(traits, **other):
    told = {name.replace("__", "."): value for name, value in other.items()}
    return ScriptContext(machine=LAPTOP, traits={**traits, **told})


def test_offers_the_fewer_bits_that_the_device_has() -> None:
    assert LEVER.settings(context(CPU)) == ("bf16",)
    assert LEVER.settings(context(CUDA)) == ("tf32",)
    assert LEVER.settings(context(CPU, bf16_inside__matmul_ratio=1.02)) == ()


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        (context(CPU, bf16_inside__matmul_ratio=1.02), "only 1.02x faster with bf16 inside"),
        (context(CPU, fp32__precision="high"), "sets the precision of float32 products itself"),
        (context(CPU, fp32__precision="mixed"), "itself (mixed)"),
        (context(CPU, model__dtype="float64"), "the numbers of the model are float64"),
        (context(CPU, model__device="mps"), "were not timed on this mps"),
        (ScriptContext(machine=LAPTOP), "no call of a model"),
    ],
)
def test_says_why_not(traits, why) -> None:
    assert LEVER.settings(traits) == ()
    assert why in LEVER.why_not(traits)


PROGRAM = r"""
from hasten.instrument.live import LiveTraining

PLAN = {"fp32_precision": "bf16"}
onednn = torch.backends.mkldnn
newer = hasattr(torch._C, "_get_fp32_precision_getter")


def words():
    told = [torch.get_float32_matmul_precision()]
    if newer:
        told += [onednn.matmul.fp32_precision, onednn.conv.fp32_precision,
                 onednn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision]
    return told


facts["newer"] = newer
facts["before"] = words()
applied = AppliedLevers(LiveTraining())
applied.switch(PLAN)
facts["under"] = words()
facts["legacy can be read"] = torch.backends.cuda.matmul.allow_tf32
applied.switch({})
facts["back"] = words()
if newer:  # what was not set before follows the setting for all, then as now
    torch.backends.fp32_precision = "tf32"
    facts["general setting"] = onednn.rnn.fp32_precision == onednn.conv.fp32_precision
    torch.backends.fp32_precision = "none"

torch.set_float32_matmul_precision("high")
applied.switch(PLAN)
facts["own"] = torch.get_float32_matmul_precision()
applied.switch({})
facts["own, back"] = torch.get_float32_matmul_precision()

torch.set_float32_matmul_precision("highest")
applied.switch(PLAN)
torch.set_float32_matmul_precision("high")  # the script, later
applied.switch({})
facts["set meanwhile"] = torch.get_float32_matmul_precision()
torch.set_float32_matmul_precision("highest")
"""


@pytest.fixture(scope="module")
def precision(training):
    return training(PROGRAM)


@pytest.mark.child
def test_sets_all_that_torch_has_and_puts_it_back(precision) -> None:
    assert precision["under"][0] == "medium"
    if precision["newer"]:
        assert precision["under"][1:4] == ["bf16"] * 3
    assert precision["back"] == precision["before"]


@pytest.mark.child
def test_the_older_settings_can_still_be_read(precision) -> None:
    assert precision["legacy can be read"] in (True, False)


@pytest.mark.child
def test_what_the_script_sets_stays_as_it_says(precision) -> None:
    assert precision["own"] == precision["own, back"] == "high"
    assert precision["set meanwhile"] == "high"
