"""foreach_ema: torch's own average is recognised by its code, and every other is left alone."""

import pytest

from hasten.lever import ScriptContext
from hasten.levers.foreach_ema import LEVER
from hasten.records import Traits
from hasten.testing import LAPTOP


def test_proposes_itself_where_torchs_loop_averages_the_weights() -> None:
    averaging = ScriptContext(machine=LAPTOP, traits=Traits(averages_by_loop=True))
    assert LEVER.settings(averaging) == (True,)
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert "AveragedModel" in LEVER.why_not(ScriptContext(machine=LAPTOP))


PROGRAM = r"""
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_swa_avg_fn
from hasten.instrument.traits import TraitsReader


@torch.no_grad()
def ema_update(ema_param, current_param, num_averaged):
    return 0.5 * ema_param + 0.5 * current_param


def averaged(plan, *, average, use_buffers=False, make=Net, dtype=torch.float32):
    torch.manual_seed(0)
    net = make().to(dtype)
    model = AveragedModel(net, avg_fn=average, use_buffers=use_buffers)
    if dtype is not torch.float32:
        model.to(torch.float32)
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live)
    watch.install()
    applied.switch(plan)
    calls = []
    original = torch._foreach_lerp_
    torch._foreach_lerp_ = lambda *a, **k: (calls.append(1), original(*a, **k))[1]
    for _ in range(5):
        with torch.no_grad():
            for tensor in (*net.parameters(), *net.buffers()):
                tensor.add_(torch.ones_like(tensor))
                if tensor.is_floating_point():
                    tensor.mul_(1.1)
        model.update_parameters(net)
    torch._foreach_lerp_ = original
    applied.switch({})
    watch.detach()
    return model, bool(calls)


CASES = {
    "torch's": {"average": get_ema_avg_fn(0.9)},
    "torch's, with buffers": {"average": get_ema_avg_fn(0.99), "use_buffers": True},
    "in other numbers": {"average": get_ema_avg_fn(0.9), "dtype": torch.float64},
    "the script's": {"average": ema_update},
    "swa": {"average": get_swa_avg_fn()},
    "a lambda": {"average": lambda e, p, n: 0.9 * e + 0.1 * p},
}
facts["taken"], facts["near"], facts["keys"] = {}, {}, []
for name, case in CASES.items():
    own, _ = averaged({}, **case)
    under, facts["taken"][name] = averaged({"foreach_ema": True}, **case)
    states = own.state_dict(), under.state_dict()
    facts["near"][name] = all(
        torch.allclose(a.double(), b.double(), rtol=1e-5) for a, b in zip(
            states[0].values(), states[1].values()))
    facts["keys"].append(list(states[0]) == list(states[1]) and under.multi_avg_fn is None)
    facts["keys"].append(hashed(states[0]["n_averaged"]) == hashed(states[1]["n_averaged"]))

original = vars(AveragedModel)["__init__"]
facts["traits"] = []
for average in (get_ema_avg_fn(0.9), None, lambda e, p, n: e):
    reader = TraitsReader()
    AveragedModel(nn.Linear(2, 2), avg_fn=average)
    facts["traits"].append(reader.read().averages_by_loop)
facts["back"] = vars(AveragedModel)["__init__"] is original
"""


@pytest.fixture(scope="module")
def averaged(training):
    return training(PROGRAM)


@pytest.mark.child
def test_takes_over_torchs_own_average_and_no_other(averaged) -> None:
    assert averaged["taken"] == {
        "torch's": True, "torch's, with buffers": True, "in other numbers": False,
        "the script's": False, "swa": False, "a lambda": False,
    }  # fmt: skip


@pytest.mark.child
def test_the_averages_are_the_same_but_for_rounding(averaged) -> None:
    for case, near in averaged["near"].items():
        assert near, case


@pytest.mark.child
def test_checkpoints_and_the_model_itself_have_nothing_of_it(averaged) -> None:
    assert all(averaged["keys"])


@pytest.mark.child
def test_the_child_sees_such_an_average_and_leaves_nothing_behind(averaged) -> None:
    assert averaged["traits"] == [True, False, False]
    assert averaged["back"]
