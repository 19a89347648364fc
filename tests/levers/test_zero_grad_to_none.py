"""zero_grad_to_none: the same bits and the same gradients, wherever the script looks at them."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.zero_grad_to_none import LEVER
from hasten.testing import LAPTOP


def test_proposes_itself_where_gradients_are_filled_with_zeros() -> None:
    def context(**traits):
        return ScriptContext(
            machine=LAPTOP, traits={f"optimizer.{k}": v for k, v in traits.items()}
        )

    assert LEVER.settings(context(zero_filled=True)) == (True,)
    assert LEVER.settings(context(zero_filled=False)) == ()
    assert "no gradient is filled with zeros" in LEVER.why_not(context(zero_filled=False))
    assert not LEVER.promising(context(zero_filled=True))
    large = {"model.parameter_count": 10**7, "optimizer.parameter_count": 20}
    assert LEVER.promising(ScriptContext(machine=LAPTOP, traits=large))
    assert "no optimizer of torch" in LEVER.why_not(context())


PROGRAM = r"""
import copy
import threading

PLAN = {"zero_grad_to_none": True}
GETTER = torch.Tensor.grad
SIZE = 1 << 16


def away(p):
    return GETTER.__get__(p) is None


class Script:
    def __init__(self, plan, make=lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1)):
        torch.manual_seed(0)
        self.watch = Watch(measuring=False)
        self.applied = AppliedLevers(self.watch.live)
        self.watch.install()
        self.applied.switch(plan)
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(n)) for n in (SIZE, SIZE, 3))
        self.optimizer = make(self.parts.parameters())
        self.away_count = 0

    def zero(self):
        self.optimizer.zero_grad(set_to_none=False)
        self.away_count += sum(map(away, self.parts))

    def loss(self, step):
        x = torch.randn(SIZE)
        loss = (self.parts[0] * x).sum() + (self.parts[2] ** 2).sum()
        return loss + (self.parts[1] * -0.0).sum() if step % 3 else loss

    def steps(self, body, count=6):
        for step in range(count):
            body(self, step)
        return self

    def end(self):
        self.applied.switch({})
        self.watch._detach()
        return hashed([list(self.parts), [p.grad for p in self.parts], torch.randn(2),
                       list(self.optimizer.state_dict()["state"].values())])


def plain(script, step):
    script.zero()
    script.loss(step).backward()
    script.optimizer.step()


def accumulating(script, step):
    script.zero()
    for part in range(3):
        script.loss(step + part).backward()
    nn.utils.clip_grad_norm_(script.parts.parameters(), 1.0)
    script.optimizer.step()


def reading(script, step):
    script.optimizer.step()
    script.zero()
    for p in script.parts:
        if p.grad is not None:
            p.grad.add_(0.01)
    script.loss(step).backward()


def holding(script, step):
    script.zero()
    script.kept = [p.grad for p in script.parts]
    script.loss(step).backward()
    for gradient in script.kept:
        if gradient is not None:
            gradient.mul_(2.0)
    script.optimizer.step()


def sharing(script, step):
    script.zero()
    if step == 1:
        script.flat = torch.zeros(2 * SIZE)
        for p, part in zip(script.parts, script.flat.split(SIZE)):
            p.grad = part
        script.views = [p.grad.data for p in script.parts]
    script.loss(step).backward()
    if step > 1:
        script.flat.mul_(0.5)
    script.optimizer.step()


def viewing(script, step):
    script.zero()
    script.loss(step).backward()
    if step == 1:
        script.view = script.parts[0].grad.view(-1)
    if step > 1:
        script.view.mul_(0.5)
    script.optimizer.step()


def second_order(script, step):
    script.zero()
    (script.loss(step) ** 2).backward(create_graph=step == 3)
    if step == 3:
        norm = sum(p.grad.square().sum() for p in script.parts if p.grad is not None)
        for p in script.parts:
            p.grad = torch.autograd.grad(norm, p, retain_graph=True, allow_unused=True)[0]
    script.optimizer.step()


def by_module(script, step):
    script.parts.zero_grad(set_to_none=False)
    script.away_count += sum(map(away, script.parts))
    script.loss(step).backward()
    script.optimizer.step()


def mixed(script, step):
    script.optimizer.zero_grad(step % 2 == 0)
    script.away_count += sum(map(away, script.parts)) * (step % 2)
    script.loss(step).backward()
    if step == 2:
        script.parts[0].requires_grad_(False)
    if step == 4:
        script.parts[0].requires_grad_(True)
        script.parts[0].grad = None
        del script.parts[1].grad
    script.optimizer.step()


def skipping(script, step):
    script.zero()
    script.loss(step).backward()
    if step % 2:
        script.optimizer.step()
    with torch.inference_mode():
        script.seen = float(sum(p.grad.sum() for p in script.parts if p.grad is not None))


facts["exact"], facts["went"] = {}, {}
for body in (plain, accumulating, reading, holding, sharing, viewing, second_order, by_module,
             mixed, skipping):
    for make in (lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1),
                 lambda p: torch.optim.Adam(p, 0.1)):
        own_bits = Script({}, make).steps(body).end()
        under = Script(PLAN, make).steps(body)
        name = body.__name__
        facts["exact"][name] = facts["exact"].get(name, True) and under.end() == own_bits
        facts["went"][name] = under.away_count

script = Script(PLAN)
plain(script, 1)
plain(script, 1)
facts["instance"] = "zero_grad" in vars(script.optimizer)
facts["copy"] = "zero_grad" in vars(copy.deepcopy(script.optimizer))
script.zero()
seen = [away(script.parts[0]), script.parts[0].grad.count_nonzero().item()]
script.zero()
script.applied.switch({})
facts["undone"] = [away(script.parts[0]), "zero_grad" in vars(script.optimizer),
                   "grad" in vars(nn.Parameter), nn.Parameter.grad is GETTER]
facts["read"] = seen
script.end()

import weakref

facts["living"] = []
for plan in ({}, PLAN):
    script = Script(plan)
    plain(script, 1)
    held = weakref.ref(script.optimizer)
    del script.optimizer
    facts["living"].append(held() is not None)
    script.applied.switch({})
    script.watch._detach()

from hasten.instrument.traits import Traits

facts["traits"] = []
for set_to_none in (False, True):
    watch = Watch(measuring=True)
    traits = Traits()
    watch.observers.append(traits)
    watch.install()
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(2):
            layer(torch.ones(3)).sum().backward()
        optimizer.step()
    facts["traits"].append(traits.read()["optimizer.zero_filled"])
    watch._detach()
"""


@pytest.fixture(scope="module")
def zeroed(training):
    return training(PROGRAM)


@pytest.mark.child
def test_weights_states_and_gradients_are_equal_to_the_bit_in_every_kind_of_loop(zeroed) -> None:
    assert len(zeroed["exact"]) == 10
    for kind, exact in zeroed["exact"].items():
        assert exact, kind


@pytest.mark.child
@pytest.mark.parametrize("kind", ["plain", "accumulating", "by_module", "second_order", "mixed"])
def test_gradients_do_go_where_nobody_looks(kind, zeroed) -> None:
    assert zeroed["went"][kind] > 2


@pytest.mark.child
def test_a_gradient_that_is_read_is_there_and_is_zeros(zeroed) -> None:
    assert zeroed["read"] == [True, 0]


@pytest.mark.child
def test_everything_is_given_back_and_copies_have_nothing_of_it(zeroed) -> None:
    assert zeroed["instance"]
    assert not zeroed["copy"]
    assert zeroed["undone"] == [False, False, False, True]


@pytest.mark.child
def test_an_optimizer_that_the_script_drops_is_gone_at_once(zeroed) -> None:
    assert zeroed["living"] == [False, False]


@pytest.mark.child
def test_the_child_sees_who_fills_gradients_with_zeros(zeroed) -> None:
    assert zeroed["traits"] == [True, False]
