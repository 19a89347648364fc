from types import SimpleNamespace

import pytest

from hasten.errors import ScriptFailed
from hasten.lever import ScriptContext
from hasten.records import Pair, Phase, Plan, Profile, Traits
from hasten.session.pair_probes import Probed, probe_levers
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
    """A bench on which the other plan is twice as fast, unless told otherwise."""

    def __init__(self, *, most=1000, repeat_count=1, fast_s=0.01):
        self.pace = SimpleNamespace(cycle_count=20, repeat_count=lambda plan: repeat_count)
        self.most, self.plans, self.cleared_count = most, (), 0
        self.children, self.fast_s, self.pair_count = self, fast_s, 0

    def clear(self):
        self.cleared_count += 1

    def within(self, plans, count, turns):
        self.plans = plans
        if not self.most:
            raise ScriptFailed("The script failed.", remedy="Look at it.")
        count = min(count, self.most - self.pair_count)
        self.pair_count += count
        times = [(0.02 + 1e-4 * (index % 3), self.fast_s) for index in range(count)]
        return [
            Pair(baseline_s=slow_s, candidate_s=fast_s, baseline_first=index % 2 == 0)
            for index, (slow_s, fast_s) in enumerate(times)
        ]


def probe(runner, plan, seen):
    context = ScriptContext(machine=SERVER, baseline=seen, traits=Traits(thread_count=4))
    return probe_levers(runner, plan, context, seconds=1.0)


def test_pairs_of_steps_tell_how_much_faster_it_is() -> None:
    runner = MadeBench()
    found = probe(runner, Plan(), profile()).found
    assert runner.plans == (Plan(), Plan().with_lever("intra_op_threads", 1))
    assert found["threads.setting"] == 1
    assert found["threads.low_ratio"] <= found["threads.mid_ratio"] == pytest.approx(2.01, abs=0.02)


def test_workers_that_keep_up_do_not_lengthen_the_blocks() -> None:
    assert probe(MadeBench(), Plan(), profile()).found
    assert not probe(MadeBench(repeat_count=20), Plan(), profile()).found


def test_a_few_pairs_of_long_steps_tell_a_clear_loss_and_nothing_else() -> None:
    slow, even, fast = (MadeBench(fast_s=fast_s) for fast_s in (0.03, 0.0201, 0.01))
    long = profile(step_s=0.2)
    assert probe(slow, Plan(), long) == Probed(
        slower={"intra_op_threads": (1, pytest.approx(0.67, abs=0.01))}
    )
    assert slow.pair_count == 2
    mild = MadeBench(fast_s=0.023)
    assert probe(mild, Plan(), long).slower
    assert mild.pair_count == 3
    much_slower = MadeBench(fast_s=1.5)
    assert probe(much_slower, Plan(), long) == Probed()
    assert much_slower.pair_count == 1  # two more would take longer than the race that they save
    assert probe(even, Plan(), long) == probe(fast, Plan(), long) == Probed()
    assert probe(MadeBench(fast_s=0.03, most=1), Plan(), long) == Probed()
    assert probe(MadeBench(fast_s=0.023, most=2), Plan(), long) == Probed()


def test_one_slow_pair_of_a_few_is_no_clear_loss() -> None:
    runner = MadeBench()
    pairs = [
        Pair(baseline_s=0.02, candidate_s=s, baseline_first=True) for s in (0.05, 0.03, 0.0201)
    ]
    runner.within = lambda *_: [pairs.pop()]
    assert probe(runner, Plan(), profile(step_s=0.2)) == Probed()


def test_pairs_that_show_no_loss_are_followed_by_enough_if_they_are_short() -> None:
    runner = MadeBench()
    found = probe(runner, Plan(), profile(step_s=0.06)).found
    assert found["threads.mid_ratio"] == pytest.approx(2.01, abs=0.02)
    assert runner.pair_count == 3 + 12
    slow = MadeBench(fast_s=0.03)
    assert not probe(slow, Plan(), profile(step_s=0.06)).found
    assert slow.pair_count == 2


def test_many_pairs_tell_a_clear_loss_too() -> None:
    probed = probe(MadeBench(fast_s=0.03), Plan(), profile())
    assert probed.slower == {"intra_op_threads": (1, pytest.approx(0.67, abs=0.01))}
    assert probed.found["threads.mid_ratio"] == pytest.approx(0.67, abs=0.01)
    assert not probe(MadeBench(fast_s=0.0205), Plan(), profile()).slower


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
    assert probe(runner, details.plan, details.seen) == Probed()
    assert runner.cleared_count == (not details.most)  # nobody asks a child that died again
