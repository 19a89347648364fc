from dataclasses import replace
from types import SimpleNamespace

import pytest

from hasten import machine
from hasten.errors import ScriptFailed
from hasten.records import Pair, Phase, Plan, Profile
from hasten.session.threads import other_count, try_threads


def profile(step_s=0.01, **phase_s):
    phases = {Phase(phase): seconds for phase, seconds in phase_s.items()}
    return Profile(
        step_s=step_s,
        step_low_s=step_s,
        step_high_s=step_s,
        sample_unit="samples",
        sample_count=1.0,
        phase_s=phases or {Phase.FORWARD: step_s},
        step_count=20,
    )


class MadeBench:
    """A bench on which the other plan is twice as fast."""

    cycle_count = 1

    def __init__(self, *, most=1000):
        self.most, self.plans = most, ()

    def within(self, plans, count, turns):
        self.plans = plans
        if not self.most:
            raise ScriptFailed("The script failed.", remedy="Look at it.")
        times = [(0.02 + 1e-4 * (index % 3), 0.01) for index in range(min(count, self.most))]
        pairs = [
            Pair(baseline_s=slow_s, candidate_s=fast_s, baseline_first=index % 2 == 0)
            for index, (slow_s, fast_s) in enumerate(times)
        ]
        return pairs, []


@pytest.fixture
def four_cores():
    facts = machine.read(probe=lambda: None)
    budget = replace(facts.budget, core_count=4, limited_by="cores", slurm_count=None)
    return replace(facts, budget=budget)


@pytest.mark.parametrize(
    ("threads", "ranks_count", "count"),
    [(4, 1, 1), (2, 1, 1), (8, 1, 4), (1, 1, None), (1, 2, 2), (4, 2, 2), (1, 8, None)],
)
def test_the_other_count_is_what_may_be_faster(four_cores, threads, ranks_count, count) -> None:
    assert other_count(four_cores, {"threads": threads}, ranks_count) == count


def test_nothing_is_tried_where_the_cores_are_unknown_or_a_graph_was_compiled(four_cores) -> None:
    assert other_count(four_cores, {"threads": 4, "compiled": True}, 1) is None
    assert other_count(four_cores, {}, 1) is None
    lost = replace(four_cores, budget=replace(four_cores.budget, limited_by="unknown"))
    assert other_count(lost, {"threads": 4}, 1) is None
    slurm = replace(four_cores, budget=replace(four_cores.budget, slurm_count=4))
    assert other_count(slurm, {"threads": 4}, 2) == 1  # the cores are this task's alone


def test_pairs_of_steps_tell_how_much_faster_it_is() -> None:
    runner = MadeBench()
    found = try_threads(runner, Plan(), profile(), 1, seconds=1.0)
    assert runner.plans == (Plan(), Plan().with_lever("intra_op_threads", 1))
    assert found["threads.count"] == 1
    assert found["threads.low_ratio"] <= found["threads.mid_ratio"] == pytest.approx(2.01, abs=0.02)


@pytest.mark.parametrize(
    "case",
    [
        {"seen": profile(step_s=1.0)},
        {"seen": profile(data=0.009, forward=0.001)},
        {"seen": profile(forward=0.009, transfer=0.001)},
        {"plan": Plan().with_lever("intra_op_threads", 2)},
        {"most": 5},
        {"most": 0},
    ],
    ids=["long", "waits for data", "has an accelerator", "set by hand", "ends", "fails"],
)
def test_nothing_is_told_where_it_cannot_be_tried(case) -> None:
    details = SimpleNamespace(**{"seen": profile(), "plan": Plan(), "most": 1000, **case})
    runner = MadeBench(most=details.most)
    assert try_threads(runner, details.plan, details.seen, 1, seconds=1.0) == {}
