"""compiled_optimizer: the numbers of each class, one compilation for all rates, and no traces."""

import os
import shutil

import pytest

from hasten.lever import ScriptContext, provided
from hasten.levers.compiled_optimizer import LEVER
from hasten.records import Plan
from hasten.testing import LAPTOP

FIT = {
    "optimizer.name": "RMSprop",
    "optimizer.foreach": False,
    "model.parameter_count": 20_000_000,
    "model.device": "cpu",
    "compile.cxx": "g++",
}


def context(**traits):
    named = {name.replace("_", ".", 1): value for name, value in traits.items()}
    return ScriptContext(machine=LAPTOP, traits={**FIT, **named})


def test_is_offered_where_torch_has_no_fused_kernel_and_promised_for_large_weights() -> None:
    assert LEVER.settings(context()) == (True,)
    assert LEVER.promising(context())
    assert not LEVER.promising(context(model_parameter_count=2_000_000))


def test_does_nothing_where_all_tensors_are_taken_at_once() -> None:
    taken = provided(Plan().with_lever("foreach_optimizer", True))
    assert LEVER.redundant_with(True, taken) == "under this plan torch takes all tensors at once"
    assert LEVER.redundant_with(True, {}) == ""


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        ({"optimizer_name": None}, "the script updates its weights by hand"),
        ({"optimizer_name": "AdamW"}, "torch has a fused AdamW, which is compiled already"),
        ({"optimizer_name": "LBFGS"}, "LBFGS is not one of the classes whose update is compiled"),
        ({"optimizer_foreach": True}, "the script's RMSprop takes all tensors at once"),
        ({"model_device": "cuda"}, "on an accelerator torch takes all tensors at once"),
        (
            {"model_parameter_count": 100_000},
            "the model has fewer than 1,048,576 weights: their update stays in the cache",
        ),
        ({"compile_refused": "TORCH_COMPILE_DISABLE switches torch.compile off"}, None),
        ({"compile_cxx": ""}, "no C++ compiler is found (g++ or clang++)"),
    ],
)
def test_says_what_stands_against_it(traits, why) -> None:
    assert LEVER.settings(context(**traits)) == ()
    assert LEVER.why_not(context(**traits)) == (why or traits["compile_refused"])


PROGRAM = r"""
import copy, sys
from hasten.compile import compiled_updates
from hasten.compile.compiled_updates import Updates
compiled_updates.LARGE_COUNT = 1 << 14
PLAN = {"compiled_optimizer": True}
CASES = [("RMSprop", {}), ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.01}),
         ("Adadelta", {"weight_decay": 0.1}), ("RAdam", {}), ("NAdam", {"maximize": True}),
         ("Adamax", {}), ("ASGD", {})]
SIZES = ((200, 100), (7,), (), (64, 32, 3, 3), (130, 130), (150, 150))
builds = []
seen_answer = Updates.answer


def counting(self, original, *args, **kwargs):
    seen_answer(self, original, *args, **kwargs)
    builds.append(len(self._built))


Updates.answer = counting


def weights(case, plan, count=12, excuse=None):
    name, options = case
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size)) for size in SIZES]
    parameters[3].data = parameters[3].data.to(memory_format=torch.channels_last)
    optimizer = getattr(torch.optim, name)(parameters, lr=0.01, **options)
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live, excuse)
    watch.install()
    applied.switch(plan)
    for step in range(count):
        for p in parameters:
            p.grad = torch.randn_like(p)  # lies as the weight does
        parameters[4].grad = torch.randn(130, 130).t()  # and this one does not
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)  # another rate at each step
        optimizer.step()
    applied.switch({})
    watch._detach()
    state = optimizer.state_dict()
    return [p.detach() for p in parameters], state


import gc
def living():
    gc.collect()
    kinds = (torch.Tensor, nn.Parameter)
    return sum(type(one) in kinds and one.numel() == 123_457 for one in gc.get_objects())

weight = nn.Parameter(torch.randn(123_457))
optimizer = torch.optim.RMSprop([weight])
watch = Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
applied.switch(PLAN)
for _ in range(3):
    weight.grad = torch.ones_like(weight)
    optimizer.step()
facts["living"] = living()  # the weight, its gradient and its state
applied.switch({})
watch._detach()

facts["near"], facts["states"], facts["builds"], facts["keys"] = {}, {}, {}, {}
for case in CASES:
    (own, own_state), (under, state) = weights(case, {}), weights(case, PLAN)
    facts["builds"][str(case)] = builds[-1]
    facts["near"][str(case)] = [
        (a - b).abs().max().item() / a.abs().max().item() for a, b in zip(own, under)]
    facts["states"][str(case)] = max(
        (a[k] - b[k]).abs().max().item() / max(1e-12, a[k].abs().max().item())
        for a, b in zip(own_state["state"].values(), state["state"].values())
        for k in a if isinstance(a[k], torch.Tensor))
    facts["keys"][str(case)] = (
        own_state["param_groups"] == state["param_groups"]
        and [{k: str(getattr(v, "dtype", type(v))) for k, v in one.items()}
             for one in own_state["state"].values()]
        == [{k: str(getattr(v, "dtype", type(v))) for k, v in one.items()}
            for one in state["state"].values()])

weight = nn.Parameter(torch.randn(200, 100))
optimizer = torch.optim.RMSprop([weight])
watch = Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
applied.switch(PLAN)
loss = (weight ** 2).sum()
weight.grad = torch.ones_like(weight)
optimizer.step()
try:
    loss.backward()
    facts["caught"] = "nothing"
except RuntimeError as error:
    facts["caught"] = str(error)
applied.switch({})
watch._detach()

import torch._dynamo
torch._dynamo.reset()
torch._dynamo.config.disable = True
excused = []
(own, _), (under, _) = (
    weights(CASES[1], plan, 3, lambda name, setting, error: excused.append(str(error)))
    for plan in ({}, PLAN))
facts["switched off"] = [hashed(own) == hashed(under), excused]
"""


@pytest.fixture(scope="module")
def compiled(training):
    if not (shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")):
        pytest.skip("no C++ compiler is found")
    return training(PROGRAM)


@pytest.mark.slow
@pytest.mark.child
def test_the_numbers_are_those_of_the_loop_but_for_rounding(compiled) -> None:
    for case, distances in compiled["near"].items():
        assert max(distances) < 1e-4, case
        assert max(distances[1], distances[2], distances[4]) == 0.0, case  # small, or laid apart
        assert compiled["states"][case] < 1e-4, case


@pytest.mark.child
def test_rates_that_change_compile_nothing_anew(compiled) -> None:
    assert set(compiled["builds"].values()) == {1}, compiled["builds"]


@pytest.mark.child
def test_options_and_states_keep_their_names_and_kinds(compiled) -> None:
    assert all(compiled["keys"].values()), compiled["keys"]


@pytest.mark.child
def test_where_torch_compiles_nothing_the_update_is_the_script_s_own(compiled) -> None:
    assert compiled["switched off"] == [True, ["torch.compile is switched off"]]


@pytest.mark.child
def test_autograd_still_notices_a_weight_that_is_updated_before_its_backward_pass(compiled) -> None:
    assert "modified by an inplace operation" in compiled["caught"]


@pytest.mark.child
def test_keeps_no_copy_of_a_weight(compiled) -> None:
    assert compiled["living"] == 3
