"""What a closer look says beside its findings."""

from dataclasses import replace
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


def examined(monkeypatch, found, *, step_s=0.01, told=None):
    steps = [Step(phase_ns={Phase.FORWARD: 100_000_000}, sample_count=1)] * 20

    def look(*details):
        if told is not None:
            told.append(details)
        return steps, dict(found)

    monkeypatch.setattr(examine, "_look", look)
    monkeypatch.setattr(examine, "probe_levers", lambda *_, **__: Probed())
    runner = SimpleNamespace(
        pace=SimpleNamespace(repeat_count=lambda plan: 1),
        facts=lambda plan: SimpleNamespace(traits=Traits()),
    )
    seen = replace(sample_profile(), step_s=step_s)
    return examine.examine(runner, Plan(()), seen, LAPTOP, seconds=1.0)


@pytest.mark.parametrize(("found", "others"), [(KERNEL, 1.0), ({}, None)])
def test_it_says_how_many_cpus_others_kept_busy(monkeypatch, found, others) -> None:
    assert examined(monkeypatch, found).others_ratio == others


@pytest.mark.parametrize(("step_s", "least_count"), [(0.01, 8), (0.35, 8), (0.4, 5), (3.0, 5)])
def test_a_few_long_steps_are_enough(monkeypatch, step_s, least_count) -> None:
    told = []
    examined(monkeypatch, KERNEL, step_s=step_s, told=told)
    ((*_, told_count, _),) = told
    assert told_count == least_count


@pytest.mark.parametrize(("run_s", "has_team"), [(0.5, True), (0.001, False), (None, None)])
def test_it_says_whether_threads_shared_operations(monkeypatch, run_s, has_team) -> None:
    found = KERNEL | ({} if run_s is None else {"processors.team_run_s": run_s})
    assert examined(monkeypatch, found).has_team is has_team
