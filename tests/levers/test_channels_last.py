"""channels_last: activations change their layout inside a root call, and nobody can tell."""

import pytest
import torch

from hasten.errors import LeverStopped
from hasten.instrument.live import LiveTraining
from hasten.lever import ScriptContext
from hasten.levers.channels_last import LEVER, _Roots, _takes_fast_path, apply
from hasten.records import CompilerTraits, ModelTraits, Traits
from hasten.testing import LAPTOP


def context(*, compiled=False, **model):
    traits = Traits(model=ModelTraits(**model), compiler=CompilerTraits(is_used=compiled))
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_needs_a_convolution() -> None:
    assert LEVER.settings(context(has_conv2d=True)) == (True,)
    assert LEVER.settings(context(has_conv2d=False, has_conv3d=True)) == (True,)
    assert LEVER.settings(context(has_conv2d=False, has_conv3d=False)) == ()
    assert LEVER.settings(context()) == ()
    assert LEVER.why_not(context()) == "the model has no 2-D or 3-D convolution"


def test_does_not_give_what_the_script_has_given_itself() -> None:
    laid_out = context(has_conv2d=True, has_channels_last=True)
    assert LEVER.settings(laid_out) == ()
    assert LEVER.why_not(laid_out) == "the script gives its convolutions this layout already"
    assert LEVER.settings(context(has_conv2d=True, has_channels_last=False)) == (True,)
    assert LEVER.settings(context(has_conv2d=True, compiled=True)) == ()


PROGRAM = r"""
import copy, gc, hashlib, io, pickle, warnings
import numpy as np
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

PLAN = {"channels_last": True}
laid = []  # layouts of what convolutions were given, inside
watch = Watch(measuring=False)
told = []
watch.live.excuse = lambda error: told.append(str(error))
applied = AppliedLevers(watch.live)
watch.install()
KEPT = []




class Model(nn.Module):
    def __init__(self, act=None, channels=3):
        super().__init__()
        self.one = nn.Conv2d(channels, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.two, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6 * 64, 3)
        self.drop, self.act = nn.Dropout(0.3), act

    def forward(self, x):
        h = F.relu(self.norm(self.one(x)))
        if self.act:
            h = self.act(self, h)
        h = self.two(h) + h
        return self.head(self.drop(torch.flatten(h, 1)))


def through(change):
    def act(net, h):
        change(net, h)
        return h
    return act


def writes(flat):
    def act(net, h):
        h = h * 1.0
        with torch.no_grad():
            flat(h)[:50] = 0.25
        return h
    return act


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.view(-1).mul(2).view(h.shape)

    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        KEPT.append(g.stride() == h.stride() and h.is_contiguous())
        return g.view(-1).mul(2).view(g.shape)


def contiguous(net, h):
    assert h.is_contiguous() and h.stride() == (384, 64, 8, 1)
    return h


def hooked(net, h):
    if h.requires_grad:
        h.register_hook(lambda g: KEPT.append(g.view(-1).shape[0]) or 3 * g)
    return h


def retained(net, h):
    if h.requires_grad:
        h.retain_grad()
        net.kept = h
    return h


def recomputed(net, h):
    return checkpoint(lambda t: F.dropout(net.two(t), 0.4).view(len(t), -1).view(t.shape), h,
                      use_reentrant=False)


def drawn(net, h):
    h = F.dropout(h, 0.2) + torch.dropout(h, 0.2, True) + F.alpha_dropout(h, 0.1, True)
    h = h + torch.native_dropout(h, 0.2, True)[0] + F.rrelu(h - 0.5, training=True)
    h = h + torch.randn_like(h) + torch.rand_like(h) + torch.empty_like(h).normal_()
    h = h + torch.bernoulli(h.detach().abs().clamp(0, 1)) + F.gumbel_softmax(h, dim=1)
    h = h + torch.normal(h.detach(), 0.1) + torch.poisson(h.detach().abs())
    return F.dropout2d(F.feature_alpha_dropout(h, 0.1, True), 0.3) + h.clone().bernoulli_(0.5)


def escaped(net, h):
    net.kept, slot = h, [h]
    KEPT.append(slot)
    return h


def squeezed(net, h):
    gate = F.adaptive_avg_pool2d(h, 1)
    net.kept = gate
    return h * gate.view(len(h), -1).sigmoid()[:, :, None, None].expand_as(h)


def shared(net, h):
    with torch.no_grad():
        h = F.relu(net.two(h))
        own = nn.Parameter(h, requires_grad=False)
        other = torch.from_dlpack(torch.utils.dlpack.to_dlpack(F.relu(net.two(h))))
        h.view(-1)[::3] = 2
        KEPT.append([own, other])
    return net.two(own)


INSIDE = {
    "nothing": None,
    "flatten written": writes(lambda h: h.flatten()),
    "ravel written": writes(lambda h: h.ravel()),
    "reshape written": writes(lambda h: h.reshape(-1)),
    "view written": writes(lambda h: h.view(-1)),
    "data written": writes(lambda h: h.data.view(-1)),
    "detach written": writes(lambda h: h.detach().flatten()),
    "numpy written": writes(lambda h: h.detach().numpy().reshape(-1)),
    "array written": writes(lambda h: np.asarray(h.detach()).ravel()),
    "storage written": writes(lambda h: torch.tensor([]).set_(h.detach().untyped_storage())),
    "strided written": writes(lambda h: h.as_strided((h.numel(),), (1,))),
    "contiguous written": writes(lambda h: h.contiguous().view(-1)),
    "result written": through(lambda net, h: h.data.view(-1)[::3].fill_(0)),
    "result's array written": through(lambda net, h: h.detach().numpy().fill(0.1)),
    "memory shared": shared,
    "slice written": writes(lambda h: h[0:2].flatten()),
    "chunk, then flatten": lambda net, h: (
        lambda k: (k.chunk(2)[0].flatten().detach().fill_(0.5), k)[1])(h * 1),
    "permuted": lambda net, h: F.relu(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "asserted": contiguous,
    "function": lambda net, h: Double.apply(h),
    "hooked": hooked,
    "retained": retained,
    "checkpoint": recomputed,
    "draws": drawn,
    "escaped": escaped,
    "gate": squeezed,
    "gradient inside": lambda net, h: h if not h.requires_grad else h + (
        torch.autograd.grad((h * h).sum(), h, create_graph=True)[0].view(-1).view(h.shape)),
    "into": lambda net, h: torch.mul(h, 2, out=torch.empty(h.shape)) if not h.requires_grad
        else torch.cat([h[:, :3], F.pad(h, (1, 1))[:, 3:, :, 1:-1]], 1),
    "in place": lambda net, h: (h * 1).mul_(0.5).add_(torch.ones(4, 6, 8, 8)).clamp_(0, 1),
}


def strides(value):
    if isinstance(value, torch.Tensor):
        return [list(value.shape), list(value.stride()), value.is_contiguous()]
    if isinstance(value, (list, tuple)):
        return [strides(part) for part in value]
    if isinstance(value, dict):
        return {name: strides(part) for name, part in value.items()}
    return list(value.strides) if isinstance(value, np.ndarray) else value


def numbers(value):
    if isinstance(value, torch.Tensor):
        return [value.detach().double().flatten()]
    if isinstance(value, np.ndarray):
        return [torch.from_numpy(value.copy()).double().flatten()]
    if isinstance(value, dict):
        value = list(value.values())
    return [n for part in value for n in numbers(part)] if isinstance(value, (list, tuple)) else []


def both(run):
    ends = []
    for plan in ({}, PLAN):
        KEPT.clear()
        gc.collect()  # else the models of before count
        applied.switch(plan)
        torch.manual_seed(4)
        made = run()
        ends.append((made, list(KEPT), torch.get_rng_state()))
        applied.switch({})
    (own, own_kept, own_rng), (other, kept, rng) = ends
    pairs = zip(numbers([own, own_kept]), numbers([other, kept]), strict=True)
    near = all(bool((a - b).abs().max() <= 1e-3 * (a.abs().max() + 1e-2)) for a, b in pairs)
    return [near, strides([own, own_kept]) == strides([other, kept]), torch.equal(own_rng, rng)]


def trained(act, steps=2):
    def run():
        net = Model(act)
        optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9)
        x = torch.rand(4, 3, 8, 8, requires_grad=True)
        for _ in range(steps):
            optimizer.zero_grad()
            out = net(x)
            out.square().sum().backward()
            kept = getattr(net, "kept", None)
            more = None if kept is None else (kept.detach(), kept.grad if kept.retains_grad else 0)
            optimizer.step()
        with torch.no_grad():
            net.eval()
            seen = net(x)
        pairs = [(p, p.grad) for p in net.parameters()]
        moments = [s["momentum_buffer"] for s in optimizer.state.values()]
        return [out, seen, x.grad, pairs, moments, list(net.buffers()), more]
    return run


facts["inside"] = {name: both(trained(act)) for name, act in INSIDE.items()}

facts["told"] = sorted(set(told))


# ---- observers outside

def model():
    net, x = Model(), torch.rand(4, 3, 8, 8, requires_grad=True)
    net(x).square().sum().backward()
    return net, x


def pruned():
    net, x = model()
    flat = net.one.weight.data.flatten()
    flat[flat.abs() < 0.1] = 0
    net.two.weight.detach().numpy().reshape(-1)[:20] = 0
    net.one.weight.grad.flatten()[:9] = 7
    net.two.weight.grad.ravel()[:9] = 7
    net.two.weight.detach().clone().view(-1)[:4] = 1
    return [net.one.weight, net.two.weight, net.one.weight.grad, net.two.weight.grad, net(x)]


def hashed_bytes():
    net, _ = model()
    digest = [p.detach().numpy().tobytes() for p in net.parameters()]
    return [np.frombuffer(one, dtype=np.float32) for one in digest]


def saved():
    net, x = model()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save({"state": net.state_dict(), "out": net(x), "grads": [
            p.grad for p in net.parameters()]}, file)
    file.seek(0)
    return [torch.load(file), pickle.loads(pickle.dumps(net)).state_dict()]


def utilities():
    net, x = model()
    average = AveragedModel(net)
    average.update_parameters(net)
    clone = copy.deepcopy(net)
    prune.l1_unstructured(net.one, "weight", 0.4)
    parametrizations.weight_norm(net.two)
    net.zero_grad()
    net(x).square().sum().backward()
    return [[p.grad for p in net.parameters()], list(net.buffers()),
            list(average.parameters()), clone.state_dict(), average(x).detach()]


def hooks():
    net, x = model()
    seen, stopped = [], []
    for part in (net.one, net.norm, net.two):
        part.register_forward_hook(lambda m, a, out: seen.append((a[0].view(-1).detach(), out)))
        part.register_forward_pre_hook(lambda m, a: seen.append(a[0].is_contiguous()))
    net(x)
    net.two.register_full_backward_hook(lambda m, i, o: stopped.append((i[0], o[0].view(-1))))
    net.one.weight.register_hook(lambda g: stopped.append(g.view(-1)))
    net(x).sum().backward()
    return [[part if isinstance(part, bool) else [p.detach() for p in part] for part in seen],
            [list(s) if isinstance(s, tuple) else s for s in stopped]]


def gradients():
    net, x = model()
    out = net(x)
    raw = torch.autograd.grad(out.square().sum(), [x, *net.parameters()], create_graph=True)
    penalty = raw[0].view(4, -1).norm(2, 1).sum() + raw[1].view(-1).sum()
    twice = torch.autograd.grad(penalty, list(net.parameters()), allow_unused=True)
    return [[r.detach() for r in raw], [t.contiguous() for t in twice if t is not None]]


def transforms():
    net, x = model()
    net.eval()
    named = dict(net.named_parameters())
    call = lambda w, one: torch.func.functional_call(net, w, (one[None],)).sum()
    each = torch.func.vmap(torch.func.grad(call), in_dims=(None, 0))(named, x.detach())
    tangent = torch.func.jvp(lambda t: net(t), (x.detach(),), (torch.ones_like(x),))
    return [each, list(tangent)]


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x, told):
        h = self.conv(x)
        told["h"] = h
        told["steps"] = told.get("steps", 0) + 1
        return {"same": x, "h": h, "part": h[:, :2], "turned": h.permute(0, 2, 3, 1),
                "mean": h.mean(0), "one": F.adaptive_avg_pool2d(h, 1), "list": [F.relu(h), x * 2]}


def outputs():
    net, x, told = Many(), torch.rand(4, 3, 8, 8), {}
    made = net(x, told)
    made["h"].retain_grad()
    made["h"].square().sum().backward()
    with torch.no_grad():
        made["h"].view(-1)[:7] = 5
    return [made["same"] is x, told["h"] is made["h"], made, told["h"].grad, net.conv.weight.grad]


def results():
    net, x = model()
    last, made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid()), []
    for write in (lambda h: h.data.flatten(), lambda h: h.detach().numpy().reshape(-1)):
        h = last(x)
        write(h)[::3] = 0.25
        first = torch.autograd.grad(h.square().sum(), x, create_graph=True)[0]
        first.square().sum().backward()
        made += [h.detach(), first.detach(), *(p.grad for p in last.parameters())]
    h = last(x)
    with torch.no_grad():
        h.mul_(2)
    try:
        h.sum().backward()
    except RuntimeError as error:
        made.append(str(error))
    return made


def own_layout():
    net, x = Model().to(memory_format=torch.channels_last), torch.rand(4, 3, 8, 8)
    out = Many()(x.contiguous(memory_format=torch.channels_last), {})
    net(x).sum().backward()
    return [out, list(net.parameters()), [p.grad for p in net.parameters()]]


def scripts():
    net, x = model()
    net.eval()
    traced = torch.jit.trace(net, x.detach())
    exported = torch.export.export(net, (x.detach(),)).module()
    return [traced(x), exported(x.detach()), net(x)]


def compiled():
    net, x = model()
    graph = torch.compile(net, backend="eager", fullgraph=True)
    return [graph(x), net(x)]


def inference():
    net, x = Many(), torch.rand(4, 3, 8, 8)
    with torch.inference_mode():
        seen = net(x, {})
        net(x, {})["h"].view(-1)[:3] = 1
    return [seen, [p.is_inference() for p in net.parameters()]]


OUTSIDE = [pruned, hashed_bytes, saved, utilities, hooks, gradients, transforms, outputs,
           results, own_layout, inference, scripts, compiled]
facts["outside"] = {run.__name__: both(run) for run in OUTSIDE}


# ---- whether it does anything: what a kernel is given beneath all modes

from torch.utils._python_dispatch import TorchDispatchMode

class Kernels(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            strides = args[0].stride()
            laid.append([strides[1] == 1, args[1].is_contiguous()])
        return func(*args, **(kwargs or {}))


def kernels(net, x, plan=PLAN):
    laid.clear()
    applied.switch(plan)
    inside = Kernels()
    forward = net.forward
    def within(*args):
        with inside:
            return forward(*args)
    net.forward = within
    net(x).sum().backward()
    applied.switch({})
    return list(laid)

facts["kernels"] = {
    "plain": kernels(Model(), torch.rand(4, 3, 8, 8), {}),
    "2-D": kernels(Model(), torch.rand(4, 3, 8, 8)),
    "grey": kernels(Model(channels=1), torch.rand(4, 1, 8, 8)),
    "3-D": kernels(nn.Sequential(nn.Conv3d(2, 4, 3), nn.ConvTranspose3d(4, 3, 3)),
                   torch.rand(2, 2, 6, 6, 6)),
    "after dropout": kernels(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.3), nn.Conv2d(4, 4, 3)),
        torch.rand(2, 3, 8, 8)),
    "double": kernels(Model().double(), torch.rand(4, 3, 8, 8).double()),
}

def evaluated(net, *, learns):
    # what kernels get in a call without gradients, in evaluation
    applied.switch(PLAN)
    x = torch.rand(4, 3, 8, 8)
    if learns:
        net(x).sum().backward()
    laid.clear()
    forward = net.forward
    def within(*args):
        with Kernels():
            return forward(*args)
    net.forward = within
    with torch.no_grad():
        net.eval()(x)
    applied.switch({})
    return list(laid)

facts["evaluated"] = [evaluated(Model(), learns=learns) for learns in (True, False)]
facts["back"] = torch.overrides._len_torch_function_stack() if hasattr(
    torch.overrides, "_len_torch_function_stack") else torch._C._len_torch_function_stack()
watch.detach()
"""


@pytest.fixture(scope="module")
def seen(training):
    return training(PROGRAM)


@pytest.mark.child
def test_what_a_forward_pass_does_with_its_activations_is_what_it_does_without(seen) -> None:
    assert len(seen["inside"]) == 29
    for case, (near, strides, draws) in seen["inside"].items():
        assert near, case
        assert strides, case
        assert draws, case


@pytest.mark.child
def test_models_that_look_into_the_backward_pass_are_left_alone_and_it_is_said_why(seen) -> None:
    reasons = [
        "its code has a backward pass of its own", "its code looks at gradients inside",
        "its code looks at what is saved for the backward pass",
    ]  # fmt: skip
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        del reasons[2]  # there, checkpoint begins with a backward pass of its own
    assert seen["told"] == [f"the model keeps its own layout: {reason}" for reason in reasons]


@pytest.mark.child
def test_observers_of_a_model_see_nothing_of_it(seen) -> None:
    assert len(seen["outside"]) == 13
    for case, (near, strides, draws) in seen["outside"].items():
        assert near, case
        assert strides, case
        assert draws, case


@pytest.mark.child
def test_convolutions_compute_with_channels_last_from_weights_as_they_are(seen) -> None:
    assert seen["kernels"]["plain"] == [[False, True]] * 2
    assert seen["kernels"]["2-D"] == [[True, True]] * 2
    assert seen["kernels"]["grey"] == [[True, True]] * 2
    assert seen["kernels"]["3-D"] == [[True, True]] * 2
    assert seen["kernels"]["after dropout"] == [[True, True]] * 2
    assert seen["kernels"]["double"] == [[False, True]] * 2
    assert seen["back"] == 0


@pytest.mark.child
def test_a_model_that_learns_is_evaluated_as_the_script_does_it_and_a_teacher_is_not(seen) -> None:
    assert seen["evaluated"] == [[[False, True]] * 2, [[True, True]] * 2]


class Pair:
    def __init__(self, x: torch.Tensor):
        self.x = torch.relu(x)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_class_finds_the_names_of_its_own_module() -> None:
    undo = apply(LiveTraining(), True)
    try:
        assert torch.jit.script(Pair) is Pair
    finally:
        undo()


def test_attention_in_evaluation_is_left_to_the_fast_path_of_torch() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.TransformerEncoder(layer, 1))
    assert not _takes_fast_path(net)
    assert _takes_fast_path(net.eval())
    assert not _takes_fast_path(torch.nn.Conv2d(3, 8, 3).eval())


def test_a_model_on_a_device_is_left_alone_where_the_script_names_streams(monkeypatch) -> None:
    def mention(words):
        return "train.py has Stream in train" if "Stream" in words else ""

    def call(net, x):
        return _Roots(LiveTraining()).call(net, lambda args, _: net(*args), (x,), {})

    monkeypatch.setattr(f"{_Roots.__module__}.mention", mention)
    monkeypatch.setattr(torch.jit._state, "_jit_caching_layer", {})  # of other tests
    net, x = torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8)
    assert call(net, x).is_contiguous()
    with pytest.raises(LeverStopped, match="Stream"):
        call(net.to("meta"), x.to("meta"))
