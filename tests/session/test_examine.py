"""What a closer look says beside its findings."""

from types import SimpleNamespace

import pytest

from hasten.records import Phase, Plan, Step, Traits
from hasten.session import examine
from hasten.session.pair_probes import Probed
from hasten.testing import LAPTOP, sample_profile

WALL_S = 2.0
KERNEL = {
    "processors.wall_s": WALL_S,
    "processors.cpus_count": 4,
    "processors.own_run_s": 2.0 * WALL_S,
    "processors.own_wait_s": 0.0,
    "processors.busy_s": 3.0 * WALL_S,
}


def examined(monkeypatch, found):
    steps = [Step(phase_ns={Phase.FORWARD: 100_000_000}, sample_count=1)] * 20
    monkeypatch.setattr(examine, "_look", lambda *_: (steps, dict(found)))
    monkeypatch.setattr(examine, "probe_levers", lambda *_, **__: Probed())
    runner = SimpleNamespace(
        pace=SimpleNamespace(repeat_count=lambda plan: 1),
        facts=lambda plan: SimpleNamespace(traits=Traits()),
    )
    return examine.examine(runner, Plan(()), sample_profile(), LAPTOP, seconds=1.0)


@pytest.mark.parametrize(("found", "others"), [(KERNEL, 1.0), ({}, None)])
def test_it_says_how_many_cpus_others_kept_busy(monkeypatch, found, others) -> None:
    assert examined(monkeypatch, found).others_ratio == others


@pytest.mark.parametrize(("run_s", "has_team"), [(0.5, True), (0.001, False), (None, None)])
def test_it_says_whether_threads_shared_operations(monkeypatch, run_s, has_team) -> None:
    found = KERNEL | ({} if run_s is None else {"processors.team_run_s": run_s})
    assert examined(monkeypatch, found).has_team is has_team


@pytest.mark.parametrize(("steps_ratio", "speed"), [(1.0, 0.5), (0.02, None), (-0.5, None)])
def test_it_says_what_operations_show_to_cost_time(monkeypatch, steps_ratio, speed) -> None:
    lost_s = [-steps_ratio * sample_profile().mean_step_s] * 3
    slower = examined(monkeypatch, {"operations.layout_s": lost_s}).slower
    assert slower == ({"channels_last": (True, pytest.approx(speed))} if speed else {})
