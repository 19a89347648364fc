"""idle_clip: equal bits whether the norm is reached or not, and no pass where it is not."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.idle_clip import LEVER, _clip
from hasten.records import Traits
from hasten.testing import LAPTOP


def context(ratio=None):
    return ScriptContext(machine=LAPTOP, traits=Traits(idle_clip_ratio=ratio))


def test_proposes_itself_where_clipping_seldom_acts() -> None:
    assert LEVER.settings(context(0.9)) == (True,)
    assert LEVER.settings(context(0.0)) == ()
    assert LEVER.settings(context()) == ()


def test_says_with_the_figure_how_often_clipping_acts() -> None:
    assert (
        LEVER.why_not(context(0.05)) == "95% of the calls of clip_grad_norm_ do scale the gradients"
    )
    assert LEVER.why_not(context()) == "no call of torch's clip_grad_norm_ was seen"


PROGRAM = r"""
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_  # by name, before the pull
from hasten.instrument.traits import TraitsReader

SEAM = getattr(clip_grad, "_clip_grads_with_norm_", None)
facts["has seam"] = SEAM is not None


def gradients(kind):
    torch.manual_seed(0)
    made = [torch.randn(50), torch.randn(4, 5), torch.tensor([-0.0, 1e-40, -1e-45, 1.5])]
    if kind == "half":
        made = [g.bfloat16() for g in made]
    if kind == "complex":
        made.append(torch.complex(torch.tensor([-0.0, 1.0]), torch.tensor([-1.0, -0.0])))
    if kind == "strange":
        made.append(torch.tensor([float("inf"), float("nan")]))
    return made


def clipped(kind, max_norm, plan, norm_type=2.0):
    parameters = []
    for gradient in gradients(kind):
        parameters.append(nn.Parameter(torch.zeros_like(gradient)))
        parameters[-1].grad = gradient
    parameters.append(nn.Parameter(torch.zeros(2)))
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live)
    watch.install()
    applied.switch(plan)
    torch.set_flush_denormal(kind == "flushed")
    norm = clip_grad_norm_(iter(parameters), max_norm, norm_type)
    before = [p.grad._version for p in parameters[:-1]]
    torch.set_flush_denormal(False)
    if kind != "complex":
        clip_grad_value_(parameters, 1.0)
    applied.switch({})
    watch.detach()
    values = [norm, *(p.grad for p in parameters if p.grad is not None)]
    values = [v.reshape(-1).view(torch.uint8) for v in values]
    return hashed(values), sum(before)


facts["equal"], facts["passes"] = {}, {}
for kind in ("float", "half", "complex", "strange", "flushed"):
    for max_norm in (1e-3, 1e6):
        for norm_type in (2.0, float("inf")):
            own, _ = clipped(kind, max_norm, {}, norm_type)
            under, count = clipped(kind, max_norm, {"idle_clip": True}, norm_type)
            facts["equal"][f"{kind} {max_norm} {norm_type}"] = own == under
            facts["passes"][f"{kind} {max_norm} {norm_type}"] = count
facts["back"] = getattr(clip_grad, "_clip_grads_with_norm_", None) is SEAM

reader = TraitsReader()
watch = Watch(measuring=True)
watch.observers.append(reader)
watch.install()
layer = nn.Linear(3, 3)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    optimizer.zero_grad()
    layer(torch.ones(3)).sum().backward()
    clip_grad_norm_(layer.parameters(), 1e6 if step else 1e-6)
    optimizer.step()
facts["ratio"] = reader.read().idle_clip_ratio
facts["watch back"] = getattr(clip_grad, "_clip_grads_with_norm_", None) is SEAM
"""


@pytest.fixture(scope="module")
def clipped(training):
    facts = training(PROGRAM)
    if not facts["has seam"]:
        pytest.skip("torch before 2.6 clips in one function")
    return facts


@pytest.mark.child
def test_norms_and_gradients_are_equal_to_the_bit(clipped) -> None:
    for case, equal in clipped["equal"].items():
        assert equal, case


@pytest.mark.child
def test_gradients_are_written_only_where_clipping_acts(clipped) -> None:
    passes = clipped["passes"]
    assert passes["float 1000000.0 2.0"] == passes["half 1000000.0 2.0"] == 0
    for kind in ("float 0.001 2.0", "complex 1000000.0 2.0", "strange 1000000.0 2.0"):
        assert passes[kind] > 0, kind


@pytest.mark.child
def test_denormal_numbers_that_count_as_zeros_are_flushed_as_before(clipped) -> None:
    assert clipped["passes"]["flushed 1000000.0 2.0"] > 0


@pytest.mark.child
def test_the_child_counts_how_often_clipping_acts_and_leaves_nothing_behind(clipped) -> None:
    assert clipped["ratio"] == 0.75
    assert clipped["back"]
    assert clipped["watch back"]


@pytest.mark.parametrize(
    ("norm", "is_left_out"),
    [(0.5, True), (0.99, True), (1.0, False), (1.0001, False), (1.005, False), (2.0, False)],
)
def test_the_pass_is_left_out_only_where_the_factor_is_one(norm, is_left_out) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    made = []
    _clip(lambda *args: made.append(args), [weight], 1.0, torch.tensor(norm))
    assert (not made) is is_left_out
