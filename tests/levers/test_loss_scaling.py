"""autocast in float16: the script sees unscaled gradients, and what overflows moves no weight."""

from types import SimpleNamespace

import pytest

from hasten.instrument.lever_calls import Updates

PROGRAM = r"""
import warnings
import torch.utils.checkpoint
from hasten.root_calls import loss_scaling

warnings.simplefilter("ignore")
PLAN, told = {"autocast": "float16"}, []
F = nn.functional


class Model(nn.Module):
    checkpoints = False

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.kinds = []

    def block(self, x):
        y = self.first(x)
        self.kinds.append(str(y.dtype).removeprefix("torch."))
        return y.relu()

    def forward(self, x):
        if self.checkpoints:
            return self.last(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=True))
        return self.last(self.block(x))


class Script:
    # A loop whose loss is multiplied by `size`, under a plan or not.

    def __init__(self, plan=PLAN, make=lambda p: torch.optim.Adam(p, lr=0.01), live=True):
        torch.manual_seed(0)
        self.watch = Watch(measuring=False)
        self.applied = AppliedLevers(self.watch.live, lambda *why: told.append(str(why[2])))
        if live:
            self.applied.switch(plan)
        self.watch.install()
        self.model = Model()
        self.optimizer = make(self.model.parameters())
        self.x, self.y = torch.randn(6, 8), torch.randint(0, 4, (6,))

    def loss(self, size=1.0):
        return size * F.cross_entropy(self.model(self.x), self.y)

    @property
    def scale(self):
        return float(loss_scaling.scaling_for(self.watch.live)._scale)

    @property
    def grads(self):
        return [p.grad for p in self.model.parameters()]

    @property
    def counted(self):
        return [self.watch.live.updates.useless_count, self.watch.live.updates.step_count]

    def close(self):
        self.applied.switch({})
        self.watch.detach()


def gradients(act, **kwargs):
    # How far gradients are from those of the script as it is, relative to their size.
    found = []
    for plan in ({}, PLAN):
        script = Script(plan, **kwargs)
        tensors = act(script)
        found.append(torch.cat([t.detach().flatten() for t in tensors]))
        script.close()
    return float((found[0] - found[1]).norm() / found[0].norm())


def passes(count, size=1.0):
    def act(script):
        for _ in range(count):
            script.loss(size).backward()
        return script.grads
    return act


def inputs(script):
    script.x.requires_grad_()
    script.loss().backward()
    return [script.x.grad]


def penalty(script):
    loss = script.loss() + 0.1 * sum(p.square().sum() for p in script.model.parameters())
    loss.backward()
    return script.grads


def loose(script):
    factor = torch.ones(4, requires_grad=True)
    F.cross_entropy(script.model(script.x) * factor, script.y).backward()
    return [factor.grad, *script.grads]


def given(script):
    out = script.model(script.x)
    out.backward(torch.linspace(-1, 1, 24).reshape(6, 4))
    return script.grads


def several(script):
    torch.autograd.backward([script.loss(), script.loss(3.0)])
    return script.grads


def some(script):
    script.loss().backward(inputs=[script.model.first.weight])
    assert script.model.last.weight.grad is None
    return [script.model.first.weight.grad]


def checkpointed(script):
    script.model.checkpoints = True
    script.x.requires_grad_()
    script.loss().backward()
    script.loss().backward()
    return script.grads


def clipped(script):
    script.loss().backward()
    norm = nn.utils.clip_grad_norm_(script.model.parameters(), 0.1)
    return [norm, *script.grads]


def interrupted(script):
    script.loss().backward()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("mine")

    try:
        Fails.apply(script.model(Fails.apply(script.x.requires_grad_()))).sum().backward()
    except ValueError:
        pass
    return script.grads


scenes = (inputs, penalty, loose, given, several, some, checkpointed, clipped, interrupted)
facts["apart"] = {scene.__name__: gradients(scene) for scene in scenes}
facts["apart"]["one pass"] = gradients(passes(1))
facts["apart"]["three passes"] = gradients(passes(3))
facts["apart"]["tiny"] = gradients(passes(1, 1e-7))
FIRST, loss_scaling._FIRST = loss_scaling._FIRST, 1.0
facts["unscaled tiny"] = gradients(passes(1, 1e-7))
loss_scaling._FIRST = FIRST

script = Script()
value = script.loss()
value.backward()
facts["inside"] = script.model.kinds
facts["loss"] = str(value.dtype)
script.optimizer.step()
facts["saved"] = sorted({str(v.dtype) for v in script.model.state_dict().values()})
script.close()

HUGE = 1e30  # nothing of it fits into float16


def overflow(make=lambda p: torch.optim.Adam(p, lr=0.01), between=lambda script: None):
    # A good step, one that overflows, and a good one; what each did to weights and state.
    script = Script(make=make)
    schedule = torch.optim.lr_scheduler.StepLR(script.optimizer, 1, 0.5)
    moved, steps, scales, held = [], [], [], []
    for size in (1.0, HUGE, 1.0):
        before = [p.detach().clone() for p in script.model.parameters()]
        script.optimizer.zero_grad()
        script.loss(size).backward()
        between(script)
        script.optimizer.step()
        schedule.step()
        after = script.model.parameters()
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, after)))
        state = script.optimizer.state[script.model.first.weight]
        steps.append(float(state.get("step", 0)))
        scales.append(script.scale / FIRST)
        held.append(all(gradient is not None for gradient in script.grads))
    finite = all(bool(p.isfinite().all()) for p in script.model.parameters())
    rate = script.optimizer.param_groups[0]["lr"] / script.optimizer.param_groups[0]["initial_lr"]
    left = "found_inf" in vars(script.optimizer)
    found = [moved, steps, scales, finite, rate, left, script.counted, held]
    script.close()
    return found


def clip_values(script):
    nn.utils.clip_grad_value_(script.model.parameters(), 1.0)


def add_good_passes(script):
    script.loss().backward()
    script.loss().backward()


facts["overflow"] = {
    "loop": overflow(),
    "fused": overflow(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)),
    "clipped by value": overflow(between=clip_values),
    "accumulated": overflow(between=add_good_passes),
}

# Two optimizers, of which one overflows.
script = Script(make=lambda p: torch.optim.SGD(p, lr=0.1))
other = Model()
rival = torch.optim.SGD(other.parameters(), lr=0.1)
moved = []
for size in (1.0, HUGE, 1.0):
    before = [script.model.last.bias.detach().clone(), other.last.bias.detach().clone()]
    script.optimizer.zero_grad(); rival.zero_grad()
    script.loss(size).backward()
    script.optimizer.step()
    F.cross_entropy(other(script.x), script.y).backward()
    rival.step()
    after = [script.model.last.bias, other.last.bias]
    moved.append([not torch.equal(a, b) for a, b in zip(before, after)])
facts["two optimizers"] = moved
script.close()

loss_scaling._GROWTH_PASSES_COUNT = 3
script = Script()
scales = []
for size in (1, 1, 1, 1, 1, 1, HUGE, 1, 1, 1):
    script.optimizer.zero_grad()
    script.loss(size).backward()
    script.optimizer.step()
    scales.append(script.scale / FIRST)
facts["grows"] = scales
script.applied.switch({})
script.applied.switch(PLAN)
script.loss().backward()
facts["kept while off"] = script.scale / FIRST
script.close()
loss_scaling._GROWTH_PASSES_COUNT = 2000


def left_out(act):
    told.clear()
    script = Script()
    answer = act(script)
    kinds = list(script.model.kinds)
    script.close()
    return [answer, list(told), kinds[-1]]


def closure(script):
    def step():
        script.optimizer.zero_grad()
        loss = script.loss()
        loss.backward()
        return loss
    for _ in range(2):
        script.optimizer.step(step)
    return True


def hooked(script):
    seen = []
    hook = getattr(script.model.first.weight, "register_" + "hook")
    hook(lambda g: seen.append(float(g.norm())))
    for _ in range(2):
        script.optimizer.zero_grad()
        script.loss().backward()
    return abs(seen[0] / float(script.grads[0].norm()) - 1) < 0.1


def late_hooked(script):
    seen = []
    hook = getattr(script.model.last.weight, "register_post_" + "accumulate_grad_hook")
    hook(lambda p: seen.append(float(p.grad.norm())))
    for _ in range(2):
        script.optimizer.zero_grad()
        script.loss().backward()
    return abs(seen[1] / float(script.model.last.weight.grad.norm()) - 1) < 1e-6


def module_hooked(script):
    seen = []
    hook = getattr(script.model.last, "register_full_" + "backward_hook")
    hook(lambda m, i, o: seen.append(float(o[0].abs().max())))
    for _ in range(2):
        script.loss().backward()
    return max(seen) < 1.0


def named(script):
    exec(compile("def watch(x):\n    x.retain_grad()", "own.py", "exec"), globals())
    script.loss().backward()
    return True


def asking(script):
    own = "def slope(y, x):\n    return torch.autograd.grad(y, x)"
    exec(compile(own, "own.py", "exec"), globals())
    script.loss().backward()
    del globals()["slope"]
    return True


def asking_in_a_library(script):
    script.loss().backward()
    getattr(torch.autograd, "gr" + "ad")(script.loss(), list(script.model.parameters()))
    script.loss().backward()
    return True


def by_anomaly(script):
    with torch.autograd.set_detect_anomaly(True):
        script.loss().backward()
    return True


for act in (
    closure, hooked, late_hooked, module_hooked, by_anomaly, asking, asking_in_a_library, named
):
    facts[act.__name__] = left_out(act)
"""


@pytest.fixture(scope="module")
def scaled(training):
    return training(PROGRAM)


@pytest.mark.child
def test_the_model_computes_in_float16_and_everything_else_is_float32(scaled) -> None:
    assert scaled["inside"] == ["float16"]
    assert scaled["loss"] == "torch.float32"
    assert scaled["saved"] == ["torch.float32"]


@pytest.mark.child
def test_gradients_are_unscaled_wherever_the_script_gets_them(scaled) -> None:
    wrong = {scene: apart for scene, apart in scaled["apart"].items() if not apart < 0.01}
    assert not wrong


@pytest.mark.child
def test_gradients_vanish_where_they_are_not_scaled(scaled) -> None:
    assert scaled["unscaled tiny"] > 0.1


@pytest.mark.child
@pytest.mark.parametrize("way", ["loop", "fused", "clipped by value", "accumulated"])
def test_a_step_that_overflows_changes_nothing_and_the_scale_is_halved(scaled, way) -> None:
    moved, steps, scales, finite, rate, left, counted, held = scaled["overflow"][way]
    assert moved == [True, False, True]
    assert steps == [1, 1, 2]
    assert scales == [1, 0.5, 0.5]
    assert finite
    assert not left
    assert held == [True, True, True]
    assert rate == 0.125  # the schedule goes on
    assert counted == [1, 3]


@pytest.mark.child
def test_an_optimizer_steps_where_another_overflows(scaled) -> None:
    assert scaled["two optimizers"] == [[True, True], [False, True], [True, True]]


@pytest.mark.child
def test_the_scale_grows_and_is_kept_while_the_lever_is_off(scaled) -> None:
    assert scaled["grows"] == [1, 1, 2, 2, 2, 4, 2, 2, 2, 4]
    assert scaled["kept while off"] == 4


@pytest.mark.child
@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("closure", "a closure"),
        ("hooked", "hooks"),
        ("late_hooked", "hooks"),
        ("module_hooked", "backward hooks"),
        ("asking", "own.py has autograd.grad in slope"),
        ("asking_in_a_library", "a library asks for gradients"),
        ("named", "own.py has retain_grad in watch"),
    ],
)
def test_a_script_that_would_see_the_scale_goes_on_in_float32(scaled, act, why) -> None:
    unharmed, told, kind = scaled[act]
    assert unharmed
    assert len(told) == 1
    assert why in told[0]
    assert kind == "float32"


@pytest.mark.child
def test_nothing_is_scaled_while_torch_looks_for_anomalies(scaled) -> None:
    assert scaled["by_anomaly"] == [True, [], "float32"]


class Flag:
    """A number on a device, which like torch's is added to no number of another device."""

    def __init__(self, device, value=1):
        self.device, self.value = device, value

    def __add__(self, other):
        assert self.device == other.device
        return Flag(self.device, self.value + other.value)

    def __radd__(self, zero):
        return self

    def __int__(self):
        return self.value


def test_steps_on_several_devices_that_overflow_are_counted_together() -> None:
    updates = Updates()
    updates.judges.append(lambda optimizer, has_closure: optimizer.flag)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        updates.begin(SimpleNamespace(_step_supports_amp_scaling=True, flag=Flag(device)), ())
    assert (updates.useless_count, updates.step_count) == (3, 3)
