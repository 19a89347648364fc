"""fp32_precision: set where the script has set nothing, and put back to the letter."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.fp32_precision import LEVER
from hasten.records import ModelTraits, PrecisionTraits, ProductSpeed, Traits
from hasten.testing import LAPTOP


def on_cpu(*, ratio=1.6, matmul="highest", **model):
    traits = Traits(
        model=ModelTraits(**{"dtype": "float32", "device": "cpu"} | model),
        precision=PrecisionTraits(matmul=matmul, inside=ProductSpeed(matmul_ratio=ratio)),
    )
    return ScriptContext(machine=LAPTOP, traits=traits)


def on_cuda():
    return on_cpu(device="cuda", ratio=4.0, matmul=None)


def test_offers_the_fewer_bits_that_the_device_has() -> None:
    assert LEVER.settings(on_cpu()) == ("bf16",)
    assert LEVER.settings(on_cuda()) == ("tf32",)
    assert LEVER.settings(on_cpu(ratio=1.02)) == ()


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        (on_cpu(ratio=1.02), "only 1.02x faster with bf16 here"),
        (on_cpu(ratio=0.8), "products are 1.25x slower with bf16 here"),
        (on_cpu(matmul="high"), "sets the precision of float32 products itself"),
        (on_cpu(matmul="mixed"), "itself (mixed)"),
        (on_cpu(dtype="float64"), "the model's dtype is float64"),
        (on_cpu(device="mps"), "were not timed on this mps"),
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

facts["before CUDA's alone"] = words()
for setting in ("tf32", "bf16"):
    applied.switch({"fp32_precision": setting})
    torch.backends.cuda.matmul.allow_tf32 = False  # the script, later
    if setting == "tf32":
        try:
            facts["CUDA's alone"] = torch.get_float32_matmul_precision()
        except RuntimeError as error:
            facts["CUDA's alone"] = str(error)
    applied.switch({})
    try:
        facts[f"CUDA's alone, {setting} back"] = words()
    except RuntimeError as error:
        facts[f"CUDA's alone, {setting} back"] = str(error)
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


@pytest.mark.child
def test_a_script_that_sets_the_precision_of_cuda_alone_mixes_nothing(precision) -> None:
    assert precision["CUDA's alone"] == "highest"
    for setting in ("tf32", "bf16"):
        assert precision[f"CUDA's alone, {setting} back"] == precision["before CUDA's alone"]
