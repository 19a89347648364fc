"""autocast: bfloat16 inside root calls with gradients, float32 everywhere else."""

from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers.autocast import LEVER
from hasten.records import ModelTraits, OptimizerTraits, PrecisionTraits, ProductSpeed, Traits
from hasten.testing import LAPTOP, SERVER

FAST = ProductSpeed(matmul_ratio=1.9, conv_ratio=0.8)


def context(
    machine=SERVER, *, speed=FAST, half=None, optimizer="SGD", uses_autocast=False, **model
):
    traits = Traits(
        model=ModelTraits(**{"dtype": "float32", "device": "cpu"} | model),
        precision=PrecisionTraits(
            uses_autocast=uses_autocast,
            bf16=speed if half is None else ProductSpeed(),
            fp16=half or ProductSpeed(),
        ),
        optimizer=OptimizerTraits(name=optimizer),
    )
    return ScriptContext(machine=machine, traits=traits)


def test_is_offered_where_the_cpu_has_units_and_they_were_faster() -> None:
    assert LEVER.settings(context()) == ("bfloat16",)
    assert LEVER.settings(context(LAPTOP)) == ()
    assert LEVER.settings(context(speed=replace(FAST, matmul_ratio=1.1))) == ()
    assert LEVER.settings(context(LAPTOP, device="cuda")) == ("bfloat16",)


def test_float16_is_offered_where_the_device_has_no_units_for_bfloat16() -> None:
    assert LEVER.settings(context(half=FAST, device="cuda")) == ("float16",)
    slow = context(half=replace(FAST, matmul_ratio=0.5), device="cuda")
    assert LEVER.settings(slow) == ()
    assert LEVER.why_not(slow) == "fp16 is 2x slower than fp32 here"
    assert LEVER.epsilon_ratio("float16") == 2.0**-11


@pytest.mark.parametrize(("optimizer", "why"), [(None, "by hand"), ("LBFGS", "leave out a step")])
def test_float16_is_not_offered_where_no_step_can_be_left_out(optimizer, why) -> None:
    asked = context(half=FAST, device="cuda", optimizer=optimizer)
    assert LEVER.settings(asked) == ()
    assert why in LEVER.why_not(asked)
    assert LEVER.settings(context(optimizer=optimizer)) == ("bfloat16",)


def test_float16_is_not_offered_to_ranks_that_add_up_scaled_gradients() -> None:
    alone = context(half=FAST, device="cuda")
    ranks = replace(alone, traits=replace(alone.traits, rank_count=2))
    assert LEVER.settings(ranks) == ()
    assert "scaled" in LEVER.why_not(ranks)


def test_the_speed_of_convolutions_counts_where_the_model_has_some() -> None:
    speed = ProductSpeed(matmul_ratio=0.5, conv_ratio=1.6)
    assert LEVER.settings(context(speed=speed)) == ()
    assert LEVER.settings(context(speed=speed, has_conv2d=True)) == ("bfloat16",)


def test_says_by_how_much_bf16_is_slower_and_why() -> None:
    said = LEVER.why_not(context(LAPTOP, speed=replace(FAST, matmul_ratio=1 / 93)))
    assert said == "bf16 is 93x slower than fp32 here: the CPU has no hardware for it"
    assert LEVER.why_not(context(speed=replace(FAST, matmul_ratio=1.05))) == (
        "bf16 is only 1.05x faster than fp32 here"
    )


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        ({"uses_autocast": True}, "the script uses autocast itself"),
        ({"dtype": "mixed"}, "the model's dtype is mixed, not float32"),
        ({"dtype": None}, "no call of a model with weights was seen"),
    ],
)
def test_leaves_alone_what_has_its_own_precision(traits, why) -> None:
    assert LEVER.settings(context(**traits)) == ()
    assert LEVER.why_not(context(**traits)) == why


PROGRAM = r"""
import collections, dataclasses
from typing import Any, NamedTuple

PLAN = {"autocast": "bfloat16"}
watch = Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
applied.switch(PLAN)


def kind(value):
    return str(value.dtype).removeprefix("torch.")


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    scores: Any
    count: int


class Output(collections.OrderedDict):  # as the outputs of transformers: keys and attributes
    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner = self.layer(x)
        self.inside = kind(y)
        output = Output()
        output["logits"], output["count"] = y, 3
        self.kept = {"list": [y, 1], "word": "word"}
        self.own = [x]
        return [
            y, (y, [y]), Pair(y, None), Record(y, 2), output, torch.max(y, 0), self.kept, self.own]


net = Many()
x = torch.rand(4, 8)
plain, nested, pair, record, output, largest, kept, own = net(x)
facts["inside"] = net.inside
facts["attribute"] = [kind(net.inner), net.inner.requires_grad]
facts["outside"] = [kind(t) for t in (
    plain, nested[0], nested[1][0], pair.first, record.scores, output["logits"], output.logits,
    largest.values, kept["list"][0])]
facts["kinds"] = [type(v).__name__ for v in (nested, pair, record, output, kept)]
facts["beside"] = [pair.second, record.count, output.count, kept["list"][1], kept["word"]]
facts["own containers"] = own is net.own and kind(net.kept["list"][0]) == "bfloat16"

plain.sum().backward()
facts["gradient"] = kind(net.layer.weight.grad)
with torch.no_grad():
    net(x)
facts["evaluation"] = net.inside
with torch.autocast("cpu", dtype=torch.float16):
    out = net(x)[0]
facts["own context"] = [net.inside, kind(out)]

class Tabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(8, 8), torch.rand(8, 8).bfloat16()

    def forward(self, x):
        return (self.layer(x).bfloat16() @ self.table).float()


tabled = Tabled()
tabled(x).sum().backward()
with torch.no_grad():
    tabled(x)
facts["own attribute"] = kind(tabled.table)
net.double()
net(x.double())
facts["double"] = net.inside
net.float()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            hint = self.layer(x)
        return self.layer(x + hint)


twice = Twice()
twice(x).sum().backward()
facts["used without gradients first"] = twice.layer.weight.grad is not None


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.kinds = nn.Linear(8, 8), []

    def block(self, x):
        y = self.layer(x)
        self.kinds.append(kind(y))
        return y.relu()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


import torch.utils.checkpoint

again = Checkpointed()
again(x.requires_grad_()).sum().backward()
facts["recomputed"] = again.kinds


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        raise ValueError("mine")


try:
    Fails()(x)
except ValueError as error:
    facts["error"] = [str(error), torch.is_autocast_enabled("cpu")]
applied.switch({})
net(x)
facts["afterwards"] = net.inside
watch.detach()
"""


@pytest.fixture(scope="module")
def cast(training):
    return training(PROGRAM)


@pytest.mark.child
def test_the_model_computes_in_bf16_and_hands_out_float32(cast) -> None:
    assert cast["inside"] == "bfloat16"
    assert set(cast["outside"]) == {"float32"}
    assert cast["gradient"] == "float32"


@pytest.mark.child
def test_outputs_keep_their_kinds_and_what_else_is_in_them(cast) -> None:
    assert cast["kinds"] == ["tuple", "Pair", "Record", "Output", "dict"]
    assert cast["beside"] == [None, 2, 3, 1, "word"]


@pytest.mark.child
def test_a_tensor_that_the_model_keeps_as_an_attribute_is_float32(cast) -> None:
    assert cast["attribute"] == ["float32", True]


@pytest.mark.child
def test_the_containers_in_which_the_model_keeps_outputs_are_not_changed(cast) -> None:
    assert cast["own containers"]


@pytest.mark.child
def test_evaluation_and_the_scripts_own_contexts_stay_as_they_are(cast) -> None:
    assert cast["evaluation"] == "float32"
    assert cast["own context"] == ["float16", "float16"]
    assert cast["own attribute"] == "bfloat16"
    assert cast["double"] == "float64"
    assert cast["afterwards"] == "float32"


@pytest.mark.child
def test_a_weight_that_was_used_without_gradients_before_still_gets_one(cast) -> None:
    assert cast["used without gradients first"]


@pytest.mark.child
def test_a_checkpointed_block_is_computed_again_with_the_same_numbers(cast) -> None:
    assert cast["recomputed"] == ["bfloat16", "bfloat16"]


@pytest.mark.child
def test_an_error_of_the_model_reaches_the_script_outside_of_the_context(cast) -> None:
    assert cast["error"] == ["mine", False]
