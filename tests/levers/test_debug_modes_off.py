"""debug_modes_off: off while pulled, and at undo as the script last wished."""

import pytest

from upshift.lever import Scene
from upshift.levers.debug_modes_off import LEVER
from upshift.testing import LAPTOP


def scene(anomaly_ratio, profiler_ratio):
    return Scene(
        machine=LAPTOP,
        traits={
            "debug.anomaly_ratio": anomaly_ratio,
            "debug.profiler_ratio": profiler_ratio,
        },
    )


@pytest.mark.parametrize("ratios", [(1.0, 0.0), (0.25, 0.0), (0.0, 1.0)])
def test_is_tried_where_a_mode_was_left_on(ratios) -> None:
    assert LEVER.settings(scene(*ratios)) == (True,)
    assert "no traceback shows the forward pass" in LEVER.remark(scene(*ratios))


def test_leaves_a_profiler_with_a_schedule_alone() -> None:
    scheduled = scene(0.0, 0.06)
    assert LEVER.settings(scheduled) == ()
    assert LEVER.remark(scheduled) == ""
    assert LEVER.why_not(scheduled) == (
        "anomaly detection is on in none of the backward passes, a profiler in 6% of them"
    )
    assert LEVER.why_not(Scene(machine=LAPTOP)) == "no backward pass was seen"


ANOMALY = r"""
import warnings
from torch.autograd import detect_anomaly, set_detect_anomaly

warnings.simplefilter("ignore")
set_real, is_real = torch.set_anomaly_enabled, torch.is_anomaly_enabled
nan = torch.is_anomaly_check_nan_enabled


def diverge():
    x = torch.zeros(2, requires_grad=True)
    (x.sqrt() * 0).sum().backward()


def raises():
    try:
        diverge()
    except RuntimeError:
        return True
    return False


run = Run(measuring=False)
set_detect_anomaly(True, check_nan=False)
run.pulled.switch({"debug_modes_off": True})
facts["off"] = not is_real()
facts["told what it wished"] = torch.is_anomaly_enabled()
facts["and how"] = not torch.is_anomaly_check_nan_enabled()
with detect_anomaly():
    facts["quiet inside"] = not is_real() and torch.is_anomaly_enabled() and not raises()
    with set_detect_anomaly(False):
        facts["nested"] = not torch.is_anomaly_enabled()
    facts["nested back"] = torch.is_anomaly_enabled()
facts["outside again"] = torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
run.pulled.switch({})
facts["back"] = is_real() and not nan() and torch.set_anomaly_enabled is set_real
set_detect_anomaly(False)

run.pulled.switch({"debug_modes_off": True})
with detect_anomaly():
    run.pulled.switch({})
    facts["on at the way back"] = is_real() and raises()
    run.pulled.switch({"debug_modes_off": True})
    facts["and off again"] = not raises()
run.pulled.switch({})
facts["left"] = not is_real()
torch.use_deterministic_algorithms(True)
run.pulled.switch({"debug_modes_off": True})
facts["a wish, no mode"] = torch.are_deterministic_algorithms_enabled()
run.close()
"""


PROFILER = r"""
from contextlib import nullcontext
from torch.autograd.profiler import emit_itt
from torch.profiler import ProfilerActivity, itt, profile


def recorded(prof):
    return sum(event.key.startswith("aten::") for event in prof.key_averages())


def train(pulled, switch_at=None):
    run = Run(measuring=False)
    run.pulled.switch({"debug_modes_off": True} if pulled else {})

    def at(step):
        if step == switch_at:
            run.pulled.switch({} if pulled else {"debug_modes_off": True})

    with profile(activities=[ProfilerActivity.CPU]) as prof:
        run.train(at, count=4)
    table = prof.key_averages().table()
    run.close()
    return recorded(prof), isinstance(table, str), torch.autograd._profiler_enabled()


facts["stock"] = train(False)
facts["pulled"] = train(True)
facts["pulled late"] = train(False, 2)
facts["put back"] = train(True, 2)
facts["stock again"] = train(False)

run = Run(measuring=False)
run.pulled.switch({"debug_modes_off": True})
with torch.autograd.profiler.profile() as prof:
    run.train(count=1)
facts["old"] = recorded(prof)
# The markers of other tools are not started at all.
with emit_itt() if itt.is_available() else nullcontext():
    facts["marked"] = torch.autograd._profiler_enabled()
run.close()
"""


@pytest.fixture(scope="module")
def told(training):
    return training(f"{ANOMALY}\nmodes, facts = facts, dict()\n{PROFILER}\nfacts['modes'] = modes")


@pytest.mark.child
def test_anomaly_detection_is_off_however_the_script_asks_for_it(told) -> None:
    assert told["modes"] == dict.fromkeys(told["modes"], True)
    assert len(told["modes"]) == 12


@pytest.mark.child
def test_a_profiler_starts_and_ends_as_before_and_records_next_to_nothing(told) -> None:
    stock = told["stock"][0]
    assert stock > 10
    assert told["stock again"][0] == stock
    assert told["pulled"][0] < stock / 4
    assert told["pulled late"][0] > 10
    assert told["put back"][0] > 10
    assert all(told[name][1:] == [True, False] for name in ("stock", "pulled", "put back"))
    assert told["old"] < stock / 4
    assert not told["marked"]
