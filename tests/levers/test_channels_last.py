"""channels_last: weights, gradients, moments and inputs change layout together, and back."""

import pytest

from upshift.lever import Scene
from upshift.levers.channels_last import LEVER
from upshift.testing import LAPTOP


def test_needs_a_convolution() -> None:
    assert LEVER.settings(Scene(machine=LAPTOP, traits={"model.conv": True})) == (True,)
    assert LEVER.settings(Scene(machine=LAPTOP, traits={"model.conv": False})) == ()
    assert LEVER.settings(Scene(machine=LAPTOP)) == ()


PROGRAM = r"""
PLAN = {"channels_last": True}
NHWC = torch.channels_last


def layouts(run):
    weight = run.net.conv.weight
    state = run.optimizer.state[weight]
    tensors = [weight, weight.grad, *(state[name] for name in sorted(state) if name != "step")]
    return [t.is_contiguous(memory_format=NHWC) and not t.is_contiguous() for t in tensors]


run, seen = Run(), {}

def at(step):
    if step == 2:
        run.pulled.switch(PLAN)
        seen["pulled"] = layouts(run)
    if step == 4:
        seen["after steps"] = layouts(run)
        seen["activations"] = (
            run.net.seen.is_contiguous(memory_format=NHWC) and not run.net.seen.is_contiguous())
        run.pulled.switch({})
        seen["back"] = layouts(run)

run.train(at, count=5).close()
facts.update(seen)

run = Run()
run.net.to(memory_format=NHWC)  # the script's own choice
run.train(lambda step: run.pulled.switch(PLAN if step in (1, 2) else {}), count=5)
run.close()
facts["own layout"] = layouts(run)

class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)
    def forward(self, batch, more):
        batch["seen"] = True
        more.append(batch["image"].shape[0])
        return self.conv(batch["image"]).mean()

watch = Watch(measuring=False)
pulled = Pulled(watch.live)
watch.install()
pulled.switch(PLAN)
more, image = [], torch.rand(2, 3, 5, 5)
net = Writes()
net(dict(image=image), more)
facts["image untouched"] = image.is_contiguous()
facts["list written"] = more == [2]
mask = torch.ones(2, 3, 5, 5, dtype=torch.long)

class Echo(nn.Module):
    def forward(self, *parts):
        return parts

parts = Echo()(mask, image[0], "word", None)
facts["others"] = parts[0] is mask and parts[1].stride() == image[0].stride()
pulled.switch({})
watch._detach()
"""


@pytest.fixture(scope="module")
def layouts(training):
    return training(PROGRAM)


@pytest.mark.child
def test_weights_gradients_and_moments_are_converted_and_stay_so(layouts) -> None:
    assert layouts["pulled"] == [True] * 4
    assert layouts["after steps"] == [True] * 4


@pytest.mark.child
def test_inputs_are_converted_so_activations_are_too(layouts) -> None:
    assert layouts["activations"]


@pytest.mark.child
def test_everything_is_laid_out_as_before_afterwards(layouts) -> None:
    assert layouts["back"] == [False] * 4


@pytest.mark.child
def test_a_layout_that_the_script_chose_is_left_as_it_is(layouts) -> None:
    assert layouts["own layout"] == [True] * 4


@pytest.mark.child
def test_the_scripts_own_tensors_and_lists_stay_its_own(layouts) -> None:
    assert layouts["image untouched"]
    assert layouts["list written"]
    assert layouts["others"]
