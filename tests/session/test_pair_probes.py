from types import SimpleNamespace

import pytest

from hasten.errors import ScriptFailed
from hasten.lever import ScriptContext
from hasten.records import Pair, Phase, Plan, Profile, Traits
from hasten.session.pair_probes import probe_levers
from hasten.testing import SERVER


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

    def __init__(self, *, most=1000, repeat_count=1):
        self.pace = SimpleNamespace(cycle_count=20, repeat_count=lambda plan: repeat_count)
        self.most, self.plans, self.cleared_count = most, (), 0
        self.children = self

    def clear(self):
        self.cleared_count += 1

    def within(self, plans, count, turns):
        self.plans = plans
        if not self.most:
            raise ScriptFailed("The script failed.", remedy="Look at it.")
        times = [(0.02 + 1e-4 * (index % 3), 0.01) for index in range(min(count, self.most))]
        return [
            Pair(baseline_s=slow_s, candidate_s=fast_s, baseline_first=index % 2 == 0)
            for index, (slow_s, fast_s) in enumerate(times)
        ]


def probe(runner, plan, seen):
    context = ScriptContext(machine=SERVER, baseline=seen, traits=Traits(thread_count=4))
    return probe_levers(runner, plan, context, seconds=1.0)


def test_pairs_of_steps_tell_how_much_faster_it_is() -> None:
    runner = MadeBench()
    found = probe(runner, Plan(), profile())
    assert runner.plans == (Plan(), Plan().with_lever("intra_op_threads", 1))
    assert found["threads.setting"] == 1
    assert found["threads.low_ratio"] <= found["threads.mid_ratio"] == pytest.approx(2.01, abs=0.02)


def test_workers_that_keep_up_do_not_lengthen_the_blocks() -> None:
    assert probe(MadeBench(), Plan(), profile())
    assert not probe(MadeBench(repeat_count=20), Plan(), profile())


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
    assert probe(runner, details.plan, details.seen) == {}
    assert runner.cleared_count == (not details.most)  # nobody asks a child that died again
