"""What is published: rounds of fresh launches that show the gain together, or nothing."""

import importlib.util
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from hasten import session
from hasten.compare import Confirmation, resolution
from hasten.errors import OutOfTime
from hasten.lever import Lever
from hasten.records import (
    Effect,
    Entry,
    Interval,
    Pair,
    Phase,
    Plan,
    Scope,
    Verdict,
    Workload,
)
from hasten.session.races import Races, TooFewPairs, confirmed_race
from hasten.testing import FakeScript, RecordingWatcher, plant, steady
from hasten.trials.deadline import Deadline
from hasten.trials.plan_statistics import PlanStatistics, ScriptRhythm
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

# The simulated tunings of test_budget.py.
_spec = importlib.util.spec_from_file_location(
    "budget", Path(__file__).with_name("test_budget.py")
)  # fmt: skip
budget = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(budget)
tuned = budget.tuned

WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/nowhere", python="python")
FASTER, APPLIED = Plan().with_lever("brisk", True), Plan().with_lever("calm", True)
NOTHING, STEP_S = Plan(), 0.01


class Notebook(RecordingWatcher):
    """Keeps the races of a confirmation."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.grown, self.rounds, self.children = [], [], [], []

    def race_begins(self, baseline, candidate) -> None:
        self.begun.append((baseline, candidate))

    def race_grows(self, pairs, speedup) -> None:
        self.grown += pairs

    def race_ends(self, seen) -> None:
        self.rounds.append(seen)


def exactly(ratio):
    return Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio)


@pytest.fixture
def confirmed(monkeypatch):
    """Confirm a plan on a script whose gain may differ from launch to launch."""
    levers = {
        name: Lever(
            name=name, phases=frozenset({Phase.FORWARD}), effect=Effect.EXACT, scope=switch,
            settings=lambda context: (True,), gain_ratio=2.0, snippet=str,
            why_not=lambda context: "",
        )
        for name, switch in (("brisk", Scope.STEP), ("calm", Scope.LAUNCH))
    }  # fmt: skip
    plant(monkeypatch, levers)

    def run(
        gain, *, applied=NOTHING, until_s=30.0, sd_ratio=0.01, seed=0, start_s=1.0, step_s=STEP_S,
        launches_ratio=1.0, faults=lambda launch: 0.0, fault_s=None, late_s=0.0, left_s=inf,
        life_count=None, count=1,
    ):  # fmt: skip
        def cost(plan):
            taken_s = step_s if "calm" not in dict(plan.settings) else 0.8 * step_s
            return taken_s / (gain(script.launch_count) if plan.settings == fast else 1.0)

        script = FakeScript(
            cost=cost, start_s=start_s, noise=steady(sd_ratio), seed=seed, faults=faults,
            life_count=life_count,
        )  # fmt: skip
        fast = (
            FASTER.settings if not applied.settings else applied.with_lever("brisk", True).settings
        )
        view, ends_s = Notebook(), [inf]

        def begun(*args, **details):
            deadline = Deadline(ends_s[0], clock=script.clock)
            view.children.append(script.trial(*args, **details, deadline=deadline))
            return view.children[-1]

        with TrialRunner(
            WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=begun,
        ) as runner:  # fmt: skip
            runner.steps(applied, 50)
            options = session.Options(budget_s=60.0, applied=applied)
            races = Races(runner, options, view, fault_s=fault_s, clock=script.clock)
            noise, bias = races.measure_noise(), exactly(launches_ratio)
            monkeypatch.setattr(races, "_launches_noise", lambda **_: replace(noise, bias=bias))
            races.measure_noise()
            view.rounds.clear()
            view.grown.clear()
            view.begun.clear()
            view.children.clear()
            script.start_s += late_s
            before, begun_s = script.launch_count, script.spent_s
            ends_s[0] = begun_s + left_s
            for _ in range(count):
                seen = races.confirm(FASTER, until_s=script.spent_s + until_s)
            return seen, view, script.launch_count - before, script.spent_s - begun_s

    return run


@pytest.mark.parametrize(("until_s", "round_count"), [(-50.0, 2), (13.0, 3), (17.0, 5), (99.0, 6)])
def test_each_round_of_a_confirmation_has_children_of_its_own(
    confirmed, until_s, round_count
) -> None:
    _, view, launch_count, _ = confirmed(lambda launch: 1.1, until_s=until_s)
    assert len(view.rounds) == round_count
    assert launch_count == len(view.children) == 2 * round_count
    turns = [Plan(), FASTER, FASTER, Plan()]
    assert [child.plan for child in view.children] == (3 * turns)[: 2 * round_count]
    steps = [child.step_count for child in view.children]
    assert min(steps) > 0.8 * max(steps)  # each of them has taken its turns


def test_a_round_that_the_deadline_cuts_off_does_not_undo_those_before(confirmed) -> None:
    _, whole, _, whole_s = confirmed(lambda launch: 1.1, until_s=13.0)
    seen, view, launch_count, _ = confirmed(lambda launch: 1.1, until_s=13.0, left_s=whole_s - 0.5)
    assert len(view.rounds) == len(whole.rounds) - 1 == 2
    assert launch_count == 6
    assert seen.verdict is Verdict.WIN
    with pytest.raises(OutOfTime):
        confirmed(lambda launch: 1.1, until_s=13.0, left_s=0.5 * whole_s)


def test_which_plan_waits_for_its_loader_is_known_before_its_steps_are_forgotten(
    confirmed, monkeypatch
) -> None:
    calls, know, forget = [], ScriptRhythm.know_late, PlanStatistics.forget_steps

    def known(self, plan, phase_s):
        calls.append(plan)
        know(self, plan, phase_s)

    def forgotten(self):
        calls.append("forgotten")
        forget(self)

    monkeypatch.setattr(ScriptRhythm, "know_late", known)
    monkeypatch.setattr(PlanStatistics, "forget_steps", forgotten)
    confirmed(lambda launch: 1.1)
    at = calls.index("forgotten")
    assert calls[at - 2 : at] == [NOTHING, FASTER]


@pytest.mark.parametrize("life_count", [60, 120, 300])
def test_a_script_that_soon_ends_is_confirmed_in_the_same_time(confirmed, life_count) -> None:
    """Each new start of it takes as long as hundreds of its steps."""
    seen, view, _, spent_s = confirmed(
        lambda launch: 1.4, until_s=20.0, step_s=0.004, sd_ratio=0.3, life_count=life_count
    )
    assert len(view.rounds) >= 2
    assert spent_s <= 25.0
    assert seen.verdict is Verdict.WIN


def test_a_gain_that_one_launch_of_two_shows_is_not_confirmed(confirmed) -> None:
    """Far fewer pairs of the second would drown among those of the first."""
    seen, view, _, _ = confirmed(lambda launch: 1.2 if launch <= 4 else 0.99, until_s=-50.0)
    lucky, plain = view.rounds
    assert lucky.speedup.is_gain
    assert not plain.speedup.is_gain
    assert seen.verdict is Verdict.UNDECIDED
    assert seen.speedup.low_ratio < 1.0


@pytest.mark.parametrize("launches_ratio", [1.1, 0.9])
def test_a_gain_that_launches_of_the_script_differ_by_is_not_confirmed(
    confirmed, launches_ratio
) -> None:
    assert confirmed(lambda launch: 1.05, until_s=-50.0)[0].verdict is Verdict.WIN
    seen, *_ = confirmed(lambda launch: 1.05, until_s=-50.0, launches_ratio=launches_ratio)
    assert seen.verdict is Verdict.UNDECIDED
    assert confirmed(lambda launch: 1.2, launches_ratio=1.1)[0].verdict is Verdict.WIN


def test_no_gain_is_an_answer_where_there_is_time(confirmed) -> None:
    seen, view, *_ = confirmed(lambda launch: 1.0, until_s=300.0, step_s=0.5, sd_ratio=0.02)
    assert seen.verdict is not Verdict.WIN
    assert len(view.rounds) > 2


def test_rounds_that_do_not_fit_any_more_are_not_begun(confirmed) -> None:
    _, view, _, spent_s = confirmed(lambda launch: 1.1, until_s=30.0, late_s=5.0)
    assert len(view.rounds) < 6
    assert spent_s < 30.0


@pytest.mark.parametrize("fault_s", [1e-6, None])
def test_launches_that_fault_more_pages_in_widen_the_interval(confirmed, fault_s) -> None:
    """Two of four spend a fifth of their steps on faults, though no race shows it here."""
    coin = {"faults": lambda launch: 0.0 if launch % 3 else 2000.0, "fault_s": fault_s}
    seen, *_ = confirmed(lambda launch: 1.1, until_s=-50.0, **coin)
    assert seen.verdict is (Verdict.WIN if fault_s is None else Verdict.UNDECIDED)
    seen, *_ = confirmed(lambda launch: 1.8, until_s=-50.0, **coin)
    assert seen.verdict is Verdict.WIN
    alike = {"faults": lambda launch: 2000.0, "fault_s": fault_s}
    assert confirmed(lambda launch: 1.1, until_s=-50.0, **alike)[0].verdict is Verdict.WIN


def test_a_confirmation_that_is_cut_off_at_once_leaves_the_interval_of_the_one_before(
    confirmed,
) -> None:
    coin = {"faults": lambda launch: 0.0 if launch % 3 else 2000.0, "fault_s": 1e-6}
    first, _, _, spent_s = confirmed(lambda launch: 1.1, until_s=-50.0, **coin)
    again, view, *_ = confirmed(
        lambda launch: 1.1, until_s=-50.0, count=2, left_s=spent_s + 0.5, **coin
    )
    assert first.verdict is Verdict.UNDECIDED
    assert len(view.rounds) == 2
    assert again.speedup == first.speedup


def test_a_small_gain_needs_more_than_two_launches(confirmed) -> None:
    assert confirmed(lambda launch: 1.03, until_s=-50.0)[0].verdict is Verdict.UNDECIDED
    assert confirmed(lambda launch: 1.03, until_s=30.0)[0].verdict is Verdict.WIN


@pytest.mark.parametrize("later", [1.05, 1.4])
def test_the_published_interval_holds_what_each_round_shows(confirmed, later) -> None:
    seen, view, _, _ = confirmed(lambda launch: 1.2 if launch <= 4 else later, until_s=-50.0)
    ratios = [one.speedup.mid_ratio for one in view.rounds]
    assert seen.speedup.low_ratio <= min(ratios) <= max(ratios) <= seen.speedup.high_ratio
    assert len(seen.pairs) == sum(len(one.pairs) for one in view.rounds) == len(view.grown)


def test_a_confirmation_shows_the_gain_of_the_candidate_over_the_script(confirmed) -> None:
    seen, view, _, _ = confirmed(lambda launch: 1.25)
    assert view.begun == [(Plan(), FASTER)] * len(view.rounds)
    assert seen.speedup.mid_ratio == pytest.approx(1.25, rel=0.01)
    assert seen.means_ratio == pytest.approx(1.25, rel=0.01)
    assert all(len(one.pairs) >= 10 for one in view.rounds)
    slower, *_ = confirmed(lambda launch: 0.8)
    assert slower.verdict is Verdict.DROP
    nothing, *_ = confirmed(lambda launch: 1.0)
    assert nothing.verdict is not Verdict.WIN


def test_what_the_user_applied_is_in_both_arms_of_the_confirmation(confirmed) -> None:
    seen, *_ = confirmed(lambda launch: 1.25, applied=APPLIED)
    assert seen.speedup.mid_ratio == pytest.approx(1.25, rel=0.01)


def test_a_confirmation_takes_the_time_it_is_given_and_no_more(confirmed) -> None:
    for until_s in (20.0, 40.0):
        *_, spent_s = confirmed(lambda launch: 1.1, until_s=until_s, sd_ratio=0.2)
        assert 0.75 * until_s <= spent_s <= 1.1 * until_s
    *_, spent_s = confirmed(lambda launch: 1.1, until_s=40.0, sd_ratio=0.2, start_s=5.0)
    assert 0.75 * 40.0 <= spent_s <= 1.1 * 40.0  # four launches are in it
    *_, spent_s = confirmed(lambda launch: 1.1, until_s=80.0, sd_ratio=0.2, step_s=1.0)
    assert spent_s <= 80.0  # and the pairs that tell their length
    *_, late_s = confirmed(lambda launch: 1.1, until_s=-50.0)
    assert late_s < 15.0
    *_, long_s = confirmed(lambda launch: 1.1, until_s=10_000.0, sd_ratio=0.2)
    assert 50.0 < long_s < 75.0


def test_a_round_with_little_time_is_shorter_and_still_tells_the_gain(confirmed) -> None:
    seen, view, *_ = confirmed(lambda launch: 1.3, until_s=-50.0, step_s=0.5, sd_ratio=0.02)
    assert [len(one.pairs) for one in view.rounds] == [6, 6]
    steps = [child.step_count for child in view.children]
    assert max(steps) <= 6 * 2  # no pair is thrown away
    assert seen.verdict is Verdict.WIN
    with pytest.raises(TooFewPairs) as few:
        confirmed(lambda launch: 1.0, until_s=-50.0, step_s=0.5, sd_ratio=0.02)
    assert few.value.seen.speedup.mid_ratio == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("quickly", "pair_count"), [(True, 3), (False, 8)])
def test_a_hurried_tuning_races_the_script_against_itself_three_times(quickly, pair_count) -> None:
    script, view = FakeScript(cost=lambda plan: 2.0, start_s=1.0), Notebook()
    with TrialRunner(
        WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial
    ) as runner:
        runner.steps(NOTHING, 3)  # too few to be neighbours of one another
        races = Races(runner, session.Options(budget_s=60.0), view, clock=script.clock)
        races.measure_noise(quickly=quickly)
    assert [len(one.pairs) for one in view.rounds] == [pair_count]


def test_where_whole_passes_are_too_few_shorter_blocks_tell_the_noise_of_a_hurried_tuning() -> None:
    script, view = FakeScript(
        cost=lambda plan: 0.04, start_s=1.0, pass_count=32, pause_s=lambda plan: 0.5,
        noise=steady(0.05),
    ), Notebook()  # fmt: skip
    with TrialRunner(
        WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial
    ) as runner:
        steps, _ = runner.steps(NOTHING, 100)
        runner.rhythm.pass_count = 32
        runner.rhythm.watched(NOTHING, steps)
        assert runner.pace.shape(NOTHING, NOTHING, apart=True).block_count == 32
        races = Races(runner, session.Options(budget_s=60.0), view, clock=script.clock)
        seen_s, noise = script.clock(), races.measure_noise(quickly=True)
    assert not view.rounds
    assert script.clock() == seen_s
    assert 0.0 < noise.sd_ratio < 1.0


def made(low, mid, high, *, means=None, best=None) -> Confirmation:
    means = mid if means is None else means
    return Confirmation(
        speedup=Interval(low_ratio=low, mid_ratio=mid, high_ratio=high), means_ratio=means,
        usual_means_ratio=means if best is None else best, wall_s=1.0,
        pairs=(Pair(baseline_s=mid, candidate_s=1.0, baseline_first=True),) * 20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (made(0.99, 1.05, 1.11), Verdict.UNDECIDED),
        (made(1.0, 1.05, 1.11), Verdict.UNDECIDED),
        (made(0.80, 0.85, 0.90), Verdict.DROP),
    ],
)
def test_only_a_gain_is_published(tuned, monkeypatch, seen, verdict) -> None:
    assert seen.verdict is verdict
    monkeypatch.setattr(Races, "confirm", lambda self, plan, *, until_s: seen)
    found = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert (found.plan, found.speedup, found.confirmed) == (Plan(), None, None)
    told = (
        "launches of the script may differ by as much"
        if seen.speedup.mid_ratio > 1
        else "no measur"
    )
    assert any(told in note for note in found.notes)
    assert not any(row.outcome == "kept" for row in found.levers)


def test_steps_that_stall_are_not_published_whatever_the_median_says(tuned, monkeypatch) -> None:
    stalling = made(1.1, 1.2, 1.3, means=0.8, best=0.9)
    monkeypatch.setattr(Races, "confirm", lambda self, plan, *, until_s: stalling)
    found = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert (found.plan, found.speedup) == (Plan(), None)
    assert any("some stall" in note for note in found.notes)


@pytest.mark.parametrize("ratio", [0.97, 1.01, 1.1])
def test_what_too_few_pairs_show_stays_unconfirmed_only_where_it_may_be_a_gain(
    tuned, monkeypatch, ratio
) -> None:
    def confirm(self, plan, *, until_s):
        raise TooFewPairs(made(0.8 * ratio, ratio, 1.2 * ratio))

    monkeypatch.setattr(Races, "confirm", confirm)
    found = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert (found.speedup, found.confirmed) == (None, None)
    may_be = ratio > 1.02
    assert bool(found.plan.settings) == found.unfinished == may_be
    told = f"gave {ratio:.2f}x, in too few pairs" if may_be else f"{ratio:.2f}x: no measurable gain"
    assert sum(told in note for note in found.notes) == 1


def test_what_is_published_is_what_was_confirmed(tuned, monkeypatch) -> None:
    plans, seen = [], made(1.1, 1.2, 1.3, means=1.15)

    def confirm(self, plan, *, until_s):
        plans.append(plan)
        return seen

    monkeypatch.setattr(Races, "confirm", confirm)
    found = tuned(600.0, step_s=0.1, start_s=2.0).tuning
    assert [found.plan] == plans
    assert (found.speedup, found.means_ratio) == (seen.speedup, seen.means_ratio)
    assert found.confirmed == confirmed_race(found.plan, seen)
    assert found.confirmed.baseline == Plan()


@pytest.mark.parametrize("seed", [1, 2, 4, 7])  # of noise in which some of the guesses stay
def test_where_a_plan_is_not_confirmed_the_part_that_won_alone_has_its_chance(
    tuned, monkeypatch, seed
) -> None:
    asked = []

    def confirm(self, plan, *, until_s):
        asked.append(plan)
        return made(0.9, 1.0, 1.1) if len(asked) == 1 else made(1.1, 1.2, 1.3)

    monkeypatch.setattr(Races, "confirm", confirm)
    gains = {**budget.FASTER, "early": 1.015, "dawdle": 1.015}  # too little to win a race
    found = tuned(600.0, step_s=0.1, start_s=2.0, gains=gains, seed=seed).tuning
    whole, part = asked
    assert found.plan == part == whole.only(frozenset({"brisk", "crowd"}))
    lost = whole.differing(part)
    assert lost
    whys = {row.why for row in found.levers if row.lever in lost}
    assert whys == {"the gain was not seen on fresh launches"}


def test_a_second_confirmation_counts_the_rounds_of_the_first(confirmed) -> None:
    seen, view, *_ = confirmed(lambda launch: 1.1, until_s=-50.0, count=2)
    assert len(view.rounds) == 4
    assert len(seen.pairs) == sum(len(one.pairs) for one in view.rounds)


def test_a_plan_in_noise_has_as_many_pairs_as_half_of_its_gain_needs(confirmed) -> None:
    loud, view, *_ = confirmed(lambda launch: 1.1, until_s=-50.0, sd_ratio=0.05)
    assert all(len(one.pairs) >= 10 for one in view.rounds)
    assert loud.wall_s == pytest.approx(sum(one.wall_s for one in view.rounds))


@pytest.mark.parametrize("quickly", [True, False])
def test_what_is_said_to_be_detectable_counts_the_pairs_that_every_confirmation_has(quickly):
    script = FakeScript(cost=lambda plan: 2.0, start_s=1.0, noise=steady(0.05))
    with TrialRunner(
        WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial
    ) as runner:
        runner.steps(NOTHING, 3)
        options = session.Options(budget_s=60.0)
        races = Races(runner, options, Notebook(), clock=script.clock)
        noise = races.measure_noise(quickly=quickly)
    assert noise.resolution_ratio == resolution(noise.sd_ratio, pair_count=20)
