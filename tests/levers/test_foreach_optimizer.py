"""foreach_optimizer: every class of torch, the same numbers, and nothing of it in a checkpoint."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.foreach_optimizer import LEVER
from hasten.records import ModelTraits, OptimizerTraits, Traits
from hasten.testing import LAPTOP


def context(parameter_count=None, **optimizer):
    model = ModelTraits(parameter_count=parameter_count)
    traits = Traits(model=model, optimizer=OptimizerTraits(**optimizer))
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_says_which_optimizer_has_no_such_form() -> None:
    assert LEVER.why_not(context(name="LBFGS")) == "torch has no multi-tensor form of LBFGS"
    assert LEVER.why_not(context(name="Adamax", is_foreach=True)).startswith("the script's Adamax")
    assert "a fused Adam" in LEVER.why_not(context(name="Adam", is_foreach=False))
    assert LEVER.why_not(context()) == "the script updates its weights by hand"
    sparse = context(name="SGD", has_sparse_gradients=True)
    assert LEVER.why_not(sparse) == "torch has no multi-tensor form of SGD for sparse gradients"


def test_proposes_itself_where_the_script_loops_and_promises_only_for_small_tensors() -> None:
    looping = context(name="RMSprop", is_foreach=False)
    assert LEVER.settings(looping) == (True,)
    for name, element_count, promising in (
        ("RMSprop", 60_000, True), ("RMSprop", 6_000_000, False),
    ):  # fmt: skip
        seen = context(element_count, name=name, tensor_count=60)
        assert LEVER.promising(seen) is promising
    assert not LEVER.promising(looping)
    assert LEVER.settings(context(name="RMSprop", is_foreach=True)) == ()
    assert LEVER.settings(context(name="Adam", is_foreach=False)) == ()  # one kernel is faster
    assert LEVER.settings(context(name="AdamW", is_fused=True)) == ()


PROGRAM = r"""
OPTIM = torch.optim
PLAN = {"foreach_optimizer": True}
CASES = [(name, options) for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta",
         "ASGD", "Rprop", "RMSprop", "SGD", "Adagrad")
         for options in ({}, {"maximize": True}, {"weight_decay": 0.1})
         if not (name == "Rprop" and "weight_decay" in options)]
CASES += [
    ("Adam", {"amsgrad": True}), ("AdamW", {"amsgrad": True, "maximize": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr_decay": 0.1}),
]


def weights(case, plan):
    name, options = case
    torch.manual_seed(0)
    sizes = ((40, 30), (7,), (), (3, 5, 2), (1000,), (9, 9))
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = getattr(OPTIM, name)(parameters, lr=0.01, **options)
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live)
    watch.install()
    applied.switch(plan)
    seen = None
    for _ in range(8):
        for p in parameters:
            p.grad = torch.randn_like(p)
        given = hashed([p.grad for p in parameters])
        optimizer.step()
        if given != hashed([p.grad for p in parameters]):
            facts.setdefault("gradients", []).append(str(case))
        seen = [foreach for _, foreach in under(optimizer)]
    applied.switch({})
    watch.detach()
    facts.setdefault("flags", []).append([str(case), seen, optimizer.param_groups[0]["foreach"]])
    return [p.detach() for p in parameters]


facts["near"], facts["equal"], facts["gradients"] = {}, [], []
for case in CASES:
    own, other = weights(case, {}), weights(case, PLAN)
    facts["near"][str(case)] = all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(own, other))
    if hashed(own) == hashed(other):
        facts["equal"].append(str(case))

run = Run(lambda p: OPTIM.RMSprop(p))
run.applied.switch(PLAN)
run.train(count=3)
facts["saved"] = run.optimizer.state_dict()["param_groups"][0]["foreach"]
run.optimizer.load_state_dict(run.optimizer.state_dict())
run.train(count=2)
facts["loaded"] = under(run.optimizer)[0][1]
run.close()

both = {}
for name, first in (("SGD", "foreach_optimizer"), ("Adam", "fused_optimizer")):
    run = Run(lambda p: getattr(OPTIM, name)(p, 0.01))
    run.applied.switch({first: True})
    run.train(count=3)
    run.applied.switch(dict.fromkeys(("foreach_optimizer", "fused_optimizer"), True))
    run.train(count=1)
    seen = under(run.optimizer)
    run.applied.switch({"foreach_optimizer": True})
    run.train(count=1)
    seen += under(run.optimizer)
    run.close()
    both[name] = [*seen, *flags(run.optimizer.param_groups)]
facts["both"] = both
run = Run(lambda p: OPTIM.SGD(p, 0.01, momentum=0.9, nesterov=True))
run.applied.switch(PLAN)
facts["nesterov"] = under(run.train(count=3).close().optimizer)[0][1]
run = Run(lambda p: OPTIM.RMSprop(p, 0.01, foreach=False))
run.applied.switch(PLAN)
facts["loop"] = under(run.train(count=3).close().optimizer)
facts["tensor lr"] = Run(lambda p: OPTIM.Adam(p, torch.tensor(0.01)))
facts["tensor lr"].applied.switch(PLAN)
facts["tensor lr"] = under(facts["tensor lr"].train(count=3).close().optimizer)[0][1]
betas = torch.tensor(0.9), torch.tensor(0.99)
run = Run(lambda p: OPTIM.NAdam(p, 0.01, betas=betas))
run.applied.switch(PLAN)
facts["tensor betas"] = under(run.train(count=3).close().optimizer)[0][1]
"""


@pytest.fixture(scope="module")
def foreach(training):
    return training(PROGRAM)


@pytest.mark.child
def test_takes_every_class_and_gives_the_flags_back(foreach) -> None:
    for case, under, after in foreach["flags"][1::2]:
        assert under == [True], case
        assert after is None, case


@pytest.mark.child
def test_a_script_that_asks_for_the_loop_keeps_it(foreach) -> None:
    assert [asked for _, asked in foreach["loop"]] == [False]


@pytest.mark.child
def test_the_numbers_are_those_of_the_loop_but_for_rounding(foreach) -> None:
    for case, near in foreach["near"].items():
        assert near, case


@pytest.mark.child
def test_the_gradients_that_the_script_has_are_not_written_to(foreach) -> None:
    assert foreach["gradients"] == []
    assert foreach["nesterov"] is None


@pytest.mark.child
def test_checkpoints_say_what_the_script_said_and_loading_keeps_it(foreach) -> None:
    assert foreach["saved"] is None
    assert foreach["loaded"] is True


@pytest.mark.child
def test_a_fused_kernel_goes_before_it_and_both_come_off_in_any_order(foreach) -> None:
    for steps in foreach["both"].values():
        assert steps == [[True, False], [None, True], [None, None]]


@pytest.mark.child
def test_a_learning_rate_or_betas_in_tensors_are_left_alone(foreach) -> None:
    assert foreach["tensor lr"] is None
    assert foreach["tensor betas"] is None
