"""What stands in torch's place goes again; what a script hands to torch is found in any form."""

from types import SimpleNamespace

import pytest
import torch

from hasten.instrument.seams import Seam, differentiated

ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((ONE,), {}, (ONE,)),
        (([ONE, TWO], [ONE, TWO]), {}, (ONE, TWO)),
        ((), {"tensors": ONE}, (ONE,)),
        ((), {"outputs": (TWO, ONE), "inputs": ONE}, (TWO, ONE)),
        ((), {}, ()),
        (([ONE, "an edge of the graph"],), {}, (ONE,)),
    ],
)
def test_the_roots_of_a_backward_pass_come_in_any_way(args, kwargs, found) -> None:
    seen = differentiated(args, kwargs)
    assert [id(root) for root in seen] == [id(root) for root in found]


def placed():
    """Return a place, a seam at its `save`, and what has come by that seam."""
    seen: list[str] = []

    def make(original, seam):
        def save(name):
            if seam.on:
                seen.append(name)
            return original(name)

        return save

    place = SimpleNamespace(save=str.upper)
    seam = Seam(place, "save", make)
    seam.install()
    return place, seam, seen


def test_a_seam_leaves_the_original_behind() -> None:
    place, seam, seen = placed()
    assert place.save("a") == "A"
    seam.remove()
    seam.remove()
    assert place.save is str.upper
    seam.install()
    place.save("b")
    assert seen == ["a", "b"]


def test_what_the_script_put_over_a_seam_stays() -> None:
    place, seam, seen = placed()
    below = place.save
    place.save = atomic = lambda name: below(name) + "!"
    seam.remove()
    assert place.save is atomic
    assert place.save("a") == "A!"
    assert seen == []
    seam.install()
    assert place.save is atomic
    assert place.save("b") == "B!"
    assert seen == ["b"]
    place.save = below
    seam.remove()
    assert place.save is str.upper


NESTED = r"""
import json, pickle, warnings
import torch
from hasten.instrument import Watch

facts = {}
Watch(measuring=True).install()
softmax = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax())  # without a dim
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    softmax(torch.ones(2, 4))
facts["from"] = [one.filename.rpartition("site-packages/")[2] for one in caught]
facts["save"] = pickle.loads(pickle.dumps(torch.save)) is torch.save
"""


@pytest.mark.child
def test_a_warning_of_a_nested_module_names_the_place_that_it_names_without_us(gathered) -> None:
    facts = gathered(NESTED)
    assert facts["from"] == ["torch/nn/modules/module.py"]
    assert facts["save"]


REAL_RUN = r"""
import json, os
import torch
from torch.utils.data import DataLoader
from hasten.instrument import Watch
from hasten.instrument.loss_guard import Guard
from hasten.records import LossEnvelope

facts = {"in": [], "held": []}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
originals = torch.nn.Module.__call__, DataLoader.__iter__
watch = Watch(measuring=False)
watch.install()


def note(what):
    now = torch.nn.Module.__call__, DataLoader.__iter__
    facts["in"].append((what, *(one is not other for one, other in zip(now, originals))))


def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


note("before the first step")
steps(1)
note("no lever")
guard = Guard(watch, LossEnvelope(), astray=print, slow=print)
steps(63)
note("close look")
steps(1)
note("later")
for name, join in (
    ("root", lambda: watch.live.on_root(lambda module: None)),
    ("call", lambda: watch.live.on_call(lambda module, call, args, kwargs: call(args, kwargs))),
    ("phase", lambda: watch.live.on_phase(lambda phase: None)),
    ("loader", lambda: watch.live.on_loader(lambda loader, stock: stock())),
    ("batch", lambda: watch.live.on_next(lambda original, iterator: original(iterator))),
):
    leave = join()
    note(name)
    leave()
    note(name + " left")
late = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), 1e-3)
watch.live.on_optimizer(lambda optimizer: facts["held"].append(optimizer is late))
late.step()
child = os.fork()
if not child:
    os._exit(watch.live._stand_ins._in_loop())
facts["child"] = os.waitpid(child, 0)[1]
"""


@pytest.mark.child
def test_a_real_run_intercepts_only_what_something_needs(gathered) -> None:
    facts = gathered(REAL_RUN)
    both, none, loaders = [True, True], [False, False], [False, True]
    needed = {"before the first step": both, "no lever": none, "close look": both, "later": none}
    needed |= {"root": both, "call": both, "phase": both, "loader": loaders, "batch": loaders}
    for what, *seen in facts["in"]:
        assert (what, seen) == (what, needed.get(what, none))
    assert facts["held"] == [False, True]
    assert facts["child"] == 0


INSIDE = r"""
import json
import torch
from hasten.instrument import Watch
from hasten.instrument.loss_guard import Guard
from hasten.records import LossEnvelope


class Forces(torch.nn.Linear):
    def forward(self, place):
        energy = super().forward(place).square().sum()
        return torch.autograd.grad(energy, place, create_graph=True)[0]


model = Forces(4, 1)
watch = Watch(measuring=False)
watch.install()
guard = Guard(watch, LossEnvelope(by_hand=True), astray=print, slow=print)
for _ in range(80):
    loss = model(torch.ones(2, 4, requires_grad=True)).square().mean()
    steps = torch.autograd.grad(loss, tuple(model.parameters()))
    with torch.no_grad():
        for weight, step in zip(model.parameters(), steps):
            weight -= 1e-3 * step
facts = {"looks": watch.live.roots.looked_into, "steps": guard._health.step_count}
"""


@pytest.mark.child
def test_a_gradient_inside_a_call_is_no_loss_however_late(gathered) -> None:
    assert gathered(INSIDE) == {"looks": True, "steps": 80}
