"""In noise that hides small gains, what came in is not left out for want of a proof."""

from math import log

from hasten.records import LEAST_RATIO, Effect, Interval, Noise, Phase, Plan, Scope
from hasten.search import AcceptanceCriteria, Candidate, Kind, incumbent, propose
from hasten.session.races import patient, rule_of
from hasten.testing import FakeTrialRunner, steady

GAINS = {"a": 1.08, "b": 1.06, "c": 1.05, "d": 1.0}
SEEDS = range(40)
NOISE = Noise(
    bias=Interval(low_ratio=0.95, mid_ratio=1.0, high_ratio=1.05), sd_ratio=0.12,
    resolution_ratio=0.05, pair_s=1.0,
)  # fmt: skip
KNOBS = [
    Candidate(
        lever=name, phases=frozenset({Phase.FORWARD}), settings=(True,), gain_ratio=2.0,
        scope=Scope.STEP, effect=Effect.EXACT,
    )
    for name in GAINS
]  # fmt: skip


def cost(plan):
    seconds = 1.0
    for name, _ in plan.settings:
        seconds /= GAINS[name]
    return seconds


def found_share(seed, *, rule):
    """Search in noise; return the share of the log speed-up that could be had."""
    runner = FakeTrialRunner(cost=cost, noise=steady(NOISE.sd_ratio / 2**0.5), seed=seed)
    criteria, history = AcceptanceCriteria(least_ratio=0.05), []
    while proposal := propose(KNOBS, history, criteria=criteria):
        race = rule(proposal.kind, NOISE, budget_s=16.0)
        history.append(runner.race(proposal.baseline, proposal.candidate, rule=race))
    plan = incumbent(KNOBS, history, criteria=criteria)
    return -log(cost(plan)) / -log(cost(Plan(tuple((name, True) for name in GAINS))))


def test_small_gains_that_are_in_stay_in() -> None:
    shares = [found_share(seed, rule=rule_of) for seed in SEEDS]
    raised = [
        found_share(seed, rule=lambda kind, *args, **rest: rule_of(Kind.TOGGLE, *args, **rest))
        for seed in SEEDS
    ]
    assert sum(shares) / len(shares) > sum(raised) / len(raised) + 0.05


def test_only_what_is_in_is_held_to_the_least_gain() -> None:
    assert rule_of(Kind.PRUNE, NOISE, budget_s=16.0).least_ratio == LEAST_RATIO
    assert rule_of(Kind.TOGGLE, NOISE, budget_s=16.0).least_ratio > 2 * LEAST_RATIO


def test_pairs_go_on_for_half_of_the_time_of_the_launches_before_a_drop() -> None:
    rule = rule_of(Kind.TOGGLE, NOISE, budget_s=16.0)
    assert patient(rule, launched_s=0.0, pair_s=0.2).patient_count == 0
    assert patient(rule, launched_s=4.0, pair_s=0.2).patient_count == min(10, rule.pair_count)
    assert patient(rule, launched_s=400.0, pair_s=0.2).patient_count == rule.pair_count
