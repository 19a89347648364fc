"""What a bench has seen of the script as it is."""

import pytest

from hasten import compare
from hasten.protocol import CostsRead
from hasten.records import Phase, Plan, Step
from hasten.testing import fed
from hasten.trials.plan_statistics import PlanStatistics, ScriptRhythm, StartCosts, pauses


def step(seconds):
    return Step(phase_ns={Phase.FORWARD: int(seconds * 1e9)}, sample_count=2)


def test_neighbours_stand_in_both_orders_and_in_whole_blocks() -> None:
    rhythm = ScriptRhythm()
    rhythm.watched(Plan(), [step(seconds) for seconds in (1.0, 2.0, 3.0, 4.0, 5.0)])
    found = [(pair.baseline_s, pair.candidate_s) for pair in rhythm.neighbours(1)]
    assert found == [(0.5, 1.0), (1.0, 0.5), (1.5, 2.0), (2.0, 1.5)]
    (pair, other) = rhythm.neighbours(2)
    assert (pair.baseline_s, pair.candidate_s) == (0.75, 1.75)
    assert pair.log_ratio == -other.log_ratio
    assert not rhythm.neighbours(3)


def test_steps_that_are_dear_and_cheap_in_turns_are_noise_step_by_step_only() -> None:
    rhythm = ScriptRhythm()
    rhythm.watched(Plan(), [step(0.1 if at % 2 else 0.2) for at in range(64)])
    single, double = (compare.spread(rhythm.neighbours(count)) for count in (1, 2))
    assert single > 0.69
    assert double == pytest.approx(0.0)


def passes(*waits_s, step_s=0.01):
    """Return steps of which each waits so long for its batch."""
    own = int(step_s * 1e9)
    return [Step(phase_ns={Phase.FORWARD: own, Phase.DATA: int(1e9 * s)}) for s in waits_s]


HEAD = [0.02, *[0.0] * 9]


@pytest.mark.parametrize(
    ("steps", "pass_count", "has"),
    [
        (passes(*HEAD * 2), 10, True),
        (passes(*[*HEAD[5:], *HEAD, *HEAD[:5]]), 10, True),  # wherever the first one was
        (passes(*HEAD * 2)[:-1], 10, False),
        (passes(*HEAD * 2), 0, False),
        (passes(*HEAD, *[0.0] * 10), 10, False),  # once is no rule
        (passes(*[0.006, *[0.0] * 9] * 2), 10, True),
        (passes(*[0.005, *[0.0] * 9] * 2), 10, False),  # less than a twentieth
        (passes(*[0.02, 0.0, 0.0, 0.0] * 10), 20, False),  # workers that come too late
        (passes(*HEAD * 2, step_s=0.19), 10, False),
        (passes(*[0.2, *[0.0] * 9] * 2, step_s=0.17), 10, True),
        (passes(*[0.2, *[0.0] * 9] * 2, step_s=0.19), 10, False),  # no budget holds them
    ],
)
def test_a_pause_at_the_head_of_each_short_pass_is_seen(steps, pass_count, has) -> None:
    assert pauses(steps, pass_count) is has


def test_what_is_found_later_does_not_change_how_the_script_is_raced() -> None:
    rhythm = ScriptRhythm()
    rhythm.pass_count = fed(pass_batch_count=20, step_batch_count=2).pass_step_count
    rhythm.watched(Plan(), passes(*HEAD * 4))
    assert rhythm.pause_count == 10
    rhythm.watched(Plan().with_lever("stays", True), passes(*[0.0] * 40))
    assert rhythm.pause_count == 10
    rhythm.watched(Plan(), passes(*[0.0] * 40))
    assert rhythm.pause_count == 1


def test_what_passes_outside_of_steps_is_a_mean_over_all_plans() -> None:
    statistics = PlanStatistics()
    assert statistics.outside_s(Plan(), Plan()) == (0.0, 0.0)
    evaluated = Step(phase_ns={Phase.FORWARD: 10**8, Phase.EVALUATION: 4 * 10**9})
    statistics.saw([step(0.1)] * 9 + [evaluated])
    statistics.ran(Plan().with_lever("a", True), [step(0.1)] * 10)
    statistics.forget_steps()
    assert statistics.outside_s(Plan(), Plan()) == pytest.approx((0.2, 0.2))


def test_whole_passes_that_were_watched_say_what_passes_between_them() -> None:
    statistics, other = PlanStatistics(), Plan().with_lever("a", True)
    evaluated = Step(phase_ns={Phase.FORWARD: 10**8, Phase.EVALUATION: 4 * 10**9})
    statistics.ran(Plan(), [step(0.1)] * 30)  # of trials that ended before the pass did
    statistics.watched(other, [step(0.1)] * 9, 10)
    statistics.watched(other, [*[step(0.1)] * 19, evaluated], 10)  # not after each pass
    assert statistics.outside_s(Plan(), other) == pytest.approx((4.0 / 59,) * 2)
    statistics.watched(Plan(), [step(0.1)] * 12 + [evaluated], 10)
    assert statistics.outside_s(Plan(), other) == pytest.approx((0.4, 0.4))
    slow = Step(phase_ns={Phase.FORWARD: 10**8, Phase.EVALUATION: 6 * 10**9})
    statistics.watched(other, [slow, *[step(0.1)] * 9, slow, *[step(0.1)] * 9], 10)
    assert statistics.outside_s(Plan(), other) == pytest.approx((0.4, 0.6))


def test_where_code_is_kept_a_later_start_is_that_of_a_run_which_begins_with_it() -> None:
    compiled, starts = Plan().with_lever("torch_compile", "default"), StartCosts()

    def told(child, compile_s, plan=compiled):
        costs = CostsRead(compile_s=compile_s, first_pass_s=(0.0, 0.0))
        starts.paid_once(plan, child, costs)
        return [starts.later_s(Plan(), compiled) for starts.is_kept in (False, True)]

    first, second, third = object(), object(), object()
    assert told(first, 18.0) == [18.0, 18.0]
    assert told(first, 20.0) == [18.0, 18.0]  # the same child, another graph
    assert told(first, 20.0) == [18.0, 18.0]
    assert told(second, 0.0, Plan()) == [18.0, 18.0]
    assert told(second, 5.0) == [18.0, 5.0]
    assert told(third, 4.0) == [18.0, 5.0]


@pytest.mark.parametrize(("every", "times", "expected_s"), [(300, 100, 0.0033), (300, 10, 0.0)])
def test_rare_long_steps_that_blocks_do_not_hold_add_to_a_mean_step(
    every, times, expected_s
) -> None:
    rhythm = ScriptRhythm()
    rhythm.watched(Plan(), [step(0.01 * (1 if i % every else times)) for i in range(900)])
    rare_s, off_s = rhythm.rare_s(4)
    assert rare_s == pytest.approx(expected_s, abs=1e-4)
    assert off_s == pytest.approx(rare_s / 3)  # three were seen: there may be two, or four
    assert rhythm.rare_s(300) == (0.0, 0.0)
