"""Levers are told of the phases: under the clock and without it, nested, and on the way out."""

import pytest

PROGRAM = r"""
import json, time
import torch
from torch import nn
from hasten.instrument import Watch
from hasten.instrument.ledger import PHASES

facts = {}
stock = torch.autograd.backward, torch.autograd.grad


def loop(watch, broken=False):
    told = []

    def enter(phase):
        told.append(f"{phase}")
        return lambda: told.append(f"/{phase}")

    undo = watch.live.on_phase(enter)
    model, loss = nn.Linear(2, 1), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x, y = torch.ones(4, 2), torch.zeros(4, 1)

    def closure():
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        if broken:
            raise KeyError
        return value

    try:
        optimizer.step(closure)
    except KeyError:
        broken = False
        optimizer.step(closure)
    undo()
    model(x)
    return told


for kind, watch in (("timed", Watch(measuring=True)), ("plain", Watch(measuring=False))):
    watch.install()
    facts[f"{kind} absent"] = (torch.autograd.backward is stock[0]) == (kind == "plain")
    facts[kind] = loop(watch)
    facts[f"{kind} left"] = (torch.autograd.backward is stock[0]) == (kind == "plain")
    watch.detach()
    facts[f"{kind} gone"] = (torch.autograd.backward, torch.autograd.grad) == stock

watch = Watch(measuring=False)
watch.install()
facts["raised"] = loop(watch, broken=True)
seen = []
undo = watch.live.on_phase(seen.append)
x = torch.ones(1, requires_grad=True)
torch.autograd.grad(x * 2, x)
facts["grad"] = [str(phase) for phase in seen]
watch.pause()
torch.autograd.grad(x * 2, x)
facts["paused"] = len(seen)
watch.resume()
(x * 2).backward(inputs=[x])
facts["resumed"] = [len(seen), x.grad.item()]
watch.detach()


def phases_of(train):
    watch, steps = Watch(measuring=True), []
    watch.on_step = lambda phases_ns, count: steps.append(dict(zip(map(str, PHASES), phases_ns)))
    watch.install()
    model, teacher = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, teacher).backward()
        optimizer.step()
    watch.detach()
    return {phase: ns / sum(steps[-1].values()) for phase, ns in steps[-1].items()}


def play(model, teacher):
    for _ in range(2):
        with torch.no_grad():
            model(x)
        time.sleep(0.1)  # what the model chose is played; much longer than others take turns
    return model(x).sum()


def distil(model, teacher):
    seen = model(x)
    with torch.no_grad():
        wanted = teacher(x)
    time.sleep(0.2)
    return (seen - wanted).square().sum()


x = torch.ones(4, 2)
facts["played"], facts["distilled"] = phases_of(play), phases_of(distil)

# ---- an average of the weights is validated; the model itself before it is trained

import copy
from torch.utils.data import DataLoader, TensorDataset
from hasten.instrument.traits import TraitsReader


def validated(net, valid):
    with torch.no_grad():
        for (x,) in valid:
            net(x)
            time.sleep(0.02)


def epochs_of(first):
    watch, steps = Watch(measuring=True), []
    reader = TraitsReader(watch.fetches)
    watch.observers.append(reader)
    watch.on_step = lambda phases_ns, count: steps.append(
        [dict(zip(map(str, PHASES), phases_ns)), count])
    watch.install()
    data = TensorDataset(torch.ones(24, 2))
    train, valid = DataLoader(data, 8), DataLoader(data, 4)
    model = nn.Linear(2, 1)
    ema = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if first:
        validated(model.eval(), valid)
        model.train()
    for _ in range(2):
        for (x,) in train:
            model(x).sum().backward()
            optimizer.step()
        validated(ema, valid)
    watch.detach()
    phases, count = steps[3]  # behind the first validation
    shares = {phase: ns / sum(phases.values()) for phase, ns in phases.items()}
    return shares, count, reader.read().loader.pass_batch_count


facts["averaged"], facts["evaluated first"] = epochs_of(False), epochs_of(True)
"""

CLOSURE = ["forward", "/forward", "forward", "/forward", "backward", "/backward"]


@pytest.fixture(scope="module")
def phases(gathered):
    return gathered(PROGRAM)


@pytest.mark.child
@pytest.mark.parametrize("kind", ["timed", "plain"])
def test_phases_inside_one_another_are_told_on_the_way_in_and_out(kind, phases) -> None:
    assert phases[kind] == ["optimizer", *CLOSURE, "/optimizer"]


@pytest.mark.child
@pytest.mark.parametrize("kind", ["timed", "plain"])
def test_gradients_are_touched_only_while_the_time_or_a_lever_asks(kind, phases) -> None:
    assert phases[f"{kind} absent"]
    assert phases[f"{kind} left"]
    assert phases[f"{kind} gone"]


@pytest.mark.child
def test_a_step_that_raised_is_left_before_the_next_one(phases) -> None:
    assert phases["raised"][:7] == ["optimizer", *CLOSURE]
    assert phases["raised"][7:] == ["/optimizer", "optimizer", *CLOSURE, "/optimizer"]


@pytest.mark.child
def test_gradients_that_a_script_asks_for_itself_are_backward(phases) -> None:
    assert phases["grad"] == ["backward"]
    assert phases["paused"] == 1
    assert phases["resumed"] == [2, 2.0]


@pytest.mark.child
def test_what_a_model_chose_without_gradients_is_not_followed_by_a_loss(phases) -> None:
    assert phases["played"]["other"] > 0.5
    assert phases["played"]["loss"] < 0.2


@pytest.mark.child
def test_what_follows_a_teacher_is_the_loss_of_its_student(phases) -> None:
    assert phases["distilled"]["loss"] > 0.5


@pytest.mark.child
@pytest.mark.parametrize("order", ["averaged", "evaluated first"])
def test_the_validation_of_an_average_is_evaluation_and_its_loader_feeds_no_training(
    order, phases
) -> None:
    shares, sample_count, batch_count = phases[order]
    assert shares["evaluation"] > 0.5
    assert shares["forward"] + shares["data"] < 0.3
    assert sample_count == 8
    assert batch_count == 3
