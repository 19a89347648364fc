"""What scripts do to a watch: steps that raise or lie inside passes, modules that are no tables."""

import pytest

PROGRAM = r"""
import gc, json, os, sys, threading
from dataclasses import dataclass
import torch
from torch import nn
from hasten.instrument import Watch
from hasten.instrument.traits import TraitsReader
from hasten.instrument.ledger import INDEX
from hasten.records import Phase

facts = {}
x = torch.ones(4, 2)


def watched(script, **options):
    watch = Watch(**{"measuring": True} | options)
    ends, applied = [], []
    watch.on_step = lambda phases_ns, count: ends.append(count)
    watch.live.on_optimizer(lambda optimizer: applied.append(type(optimizer).__name__))
    watch.live.on_root(lambda module: applied.append(type(module).__name__))
    watch.observers.append(TraitsReader())
    watch.install()
    try:
        found = script(watch, ends)
    finally:
        watch.detach()
    return found if found is not None else [len(ends), applied]


def train(model, optimizer, count=3):
    for _ in range(count):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise MemoryError


def out_of_memory(watch, ends):
    model = nn.Linear(2, 1)
    for kind in (Failing, Failing, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=0.1)
        try:
            train(model, optimizer, 30)
        except MemoryError as error:
            kept = error  # its traceback keeps the frames
        del optimizer
        gc.collect()


class Around(torch.optim.SGD):
    def __init__(self, parameters, inner):
        super().__init__(parameters, lr=0.1)
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


def around(watch, ends):
    model = nn.Linear(2, 1)
    inner = torch.optim.Adam(model.parameters())
    train(model, Around(model.parameters(), inner), 30)


facts["raised"] = watched(out_of_memory)
facts["around"] = watched(around)


@dataclass
class Unhashable(nn.Module):
    width: int

    def __post_init__(self):
        super().__init__()
        self.__dict__["layer"] = nn.Linear(self.width, 1)

    def forward(self, x):
        return self.layer(x)


class Listed(nn.Linear):
    buffers = [1, 2]


class Asking(nn.Linear):
    def parameters(self, rate):
        return [{"params": super().parameters(), "lr": rate}]


class Equal(nn.Linear):
    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


def strange(watch, ends):
    one = Unhashable(2)
    train(one, torch.optim.SGD(one.layer.parameters(), lr=0.1))
    two = Listed(2, 1)
    train(two, torch.optim.SGD(two.parameters(), lr=0.1))
    three = Asking(2, 1)
    train(three, torch.optim.SGD(three.parameters(0.2), lr=0.1))


def equal(watch, ends):
    models = nn.Linear(2, 2), Equal(2, 2), Equal(2, 1)
    for model in models:
        model(x)


facts["strange"] = [watched(strange, measuring=timed)[1] for timed in (True, False)]
facts["equal"] = [watched(equal, measuring=timed)[1] for timed in (True, False)]


def in_backward(watch, ends):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
        inside.append(len(ends))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    counts = []
    for number in range(4):
        inside = []
        if number == 2:
            watch.pause()
        model(x).sum().backward()
        counts.append([*sorted(set(inside)), len(ends)])
    return counts


facts["in backward"] = watched(in_backward)


def in_a_thread_of_autograd(watch, ends):
    model, own, backward_id = nn.Linear(2, 1), watch.thread, watch._ends.backward_id
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    watch._ends.backward_id = lambda: backward_id() if threading.get_ident() == own else 7

    def step(parameter):
        thread = threading.Thread(target=optimizers[parameter].step)
        thread.start(), thread.join()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(x).sum().backward()
    return [len(ends), watch.thread == own]


facts["in a thread of autograd"] = watched(in_a_thread_of_autograd)


def accumulating(watch, ends):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for _ in range(3):
        for _ in range(128):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(len(ends))
    return counts


def inner_steps(watch, ends):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        weight = model.weight
        for _ in range(100):
            model(x)
            loss = (x @ weight.t()).square().sum()
            weight = weight - 1e-3 * torch.autograd.grad(loss, weight, create_graph=True)[0]
        (x @ weight.t()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


facts["accumulating"] = watched(accumulating)
facts["inner steps"] = watched(inner_steps)[0]


class Batch(dict):
    def values(self, kind):
        return []


def odd(watch, ends):
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    seen = [list(torch.utils.data.DataLoader([0], collate_fn=lambda _, b=b: b))[0] is b
            for b in (rows, Batch())]

    class Total(nn.Module):
        def forward(self, batch):
            return batch

    total, kernel = Total(), nn.Conv2d(1, 1, 2)
    seen += [total(rows) is rows, total(Batch()) == {}]
    weights = torch.ones(3, 1, 1, 2, 2)

    def convolve(weight, image):
        return torch.func.functional_call(kernel, {"weight": weight}, (image,))

    image = torch.ones(1, 1, 2, 2)
    seen.append(list(torch.func.vmap(convolve, (0, None))(weights, image).shape))
    return [*seen, watch.tracker.samples._loaded_waiting]


facts["odd"] = watched(odd)


def validated(watch, ends):  # it forgets `model.eval()`
    rows = torch.utils.data.TensorDataset(torch.ones(64, 2))
    batches, check = (torch.utils.data.DataLoader(rows, batch_size=size) for size in (16, 32))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (batch,) in batches:
            model(batch).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for (batch,) in check:
                model(batch)
    return ends


facts["validated"] = watched(validated)


def taught(watch, ends):
    rows = torch.utils.data.TensorDataset(torch.ones(32, 2))
    model, teacher = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labelled, others = (iter(torch.utils.data.DataLoader(rows, batch_size=8)) for _ in range(2))
    for _ in range(4):
        (one,) = next(labelled)
        with torch.no_grad():
            teacher(one)
        (other,) = next(others)
        (model(one) + model(other)).sum().backward()
        optimizer.step()
    return ends


facts["taught"] = watched(taught)


def compiled(watch, ends):
    import warnings

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            step()
    return len(ends)


facts["compiled"] = watched(compiled)


def accelerated(watch, ends):
    model = nn.Linear(2, 1)
    optimizer, during = torch.optim.SGD(model.parameters(), lr=0.1), []
    stock = torch.Tensor.to
    for begun in (False, True):
        torch.cuda.is_initialized = lambda: begun
        torch.cuda.is_current_stream_capturing = lambda: False
        train(model, optimizer, 1)
        during.append("to" in vars(torch.Tensor) and vars(torch.Tensor)["to"] is not stock)
    return during


def forbidden():
    raise AssertionError("asked the driver")


kept = [torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing]
torch.cuda.is_available = forbidden
if hasattr(torch, "accelerator"):
    torch.accelerator.is_available = forbidden
facts["accelerated"] = watched(accelerated)
"""


@pytest.fixture(scope="module")
def facts(gathered):
    return gathered(PROGRAM)


@pytest.mark.child
def test_an_optimizer_after_one_that_raised_has_its_levers_and_its_steps(facts) -> None:
    assert facts["raised"] == [30 - 7, ["Linear", "Failing", "Failing", "SGD"]]


@pytest.mark.child
def test_an_optimizer_inside_the_step_of_another_is_no_step_of_its_own(facts) -> None:
    steps, applied = facts["around"]
    assert applied == ["Linear", "Around"]
    assert steps == 30  # the inner one has the same parameters, and never makes a step


@pytest.mark.child
def test_modules_without_a_hash_or_with_other_attributes_are_called_plainly(facts) -> None:
    assert facts["strange"] == [["SGD"] * 3] * 2


@pytest.mark.child
def test_modules_that_are_equal_are_still_two(facts) -> None:
    assert facts["equal"] == [["Linear", "Equal", "Equal"]] * 2


@pytest.mark.child
def test_optimizers_inside_a_backward_pass_end_the_step_behind_it(facts) -> None:
    assert facts["in backward"] == [[0, 1], [1, 2], [2, 3], [3, 4]]


@pytest.mark.child
def test_a_thread_of_autograd_does_not_become_that_of_the_loop(facts) -> None:
    assert facts["in a thread of autograd"] == [3, True]


@pytest.mark.child
def test_many_passes_before_the_first_update_are_one_step(facts) -> None:
    assert facts["accumulating"] == [1, 2, 3]
    assert facts["inner steps"] == 2


@pytest.mark.child
def test_a_validation_without_gradients_is_no_step_whatever_the_mode_of_the_model(facts) -> None:
    assert facts["validated"] == [16] * 8
    assert facts["taught"] == [16] * 4


@pytest.mark.child
def test_a_compiled_step_of_an_optimizer_is_counted_without_a_warning(facts) -> None:
    assert facts["compiled"] == 2


@pytest.mark.child
def test_batches_and_weights_that_nobody_can_look_at_leave_the_script_alone(facts) -> None:
    assert facts["odd"] == [True, True, True, True, [3, 1, 1, 1, 1], 2]


@pytest.mark.child
def test_the_driver_is_not_asked_and_transfers_count_once_it_runs(facts) -> None:
    assert facts["accelerated"] == [False, True]
