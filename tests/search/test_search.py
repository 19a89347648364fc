import itertools
import random
import re
from dataclasses import replace
from math import inf, log, log2

import pytest

from hasten.compare import Rule
from hasten.errors import ChildLost
from hasten.records import (
    Comparison,
    Effect,
    Interval,
    Pair,
    Phase,
    Plan,
    Reason,
    Scope,
    Verdict,
)
from hasten.search import (
    BudgetLimits,
    Candidate,
    Journal,
    Kind,
    Price,
    guesses,
    incumbent,
    propose,
    rows,
)
from hasten.search.gain_estimator import GainEstimator
from hasten.testing import FakeTrialRunner, steady

RULE = Rule(pair_count=40, sd_ratio=0.02)
LAUNCHES = 25


def candidate(lever, *settings, scope=Scope.LAUNCH, gain_ratio=2.0):
    return Candidate(
        lever=lever,
        phases=frozenset({Phase.FORWARD}),
        settings=settings or (True,),
        gain_ratio=gain_ratio,
        scope=scope,
        effect=Effect.EXACT,
    )


def searched(candidates, cost, *, launches=LAUNCHES, seed=0, noise=None):
    """Run a whole search; return the proposals and the comparisons."""
    runner = FakeTrialRunner(cost=cost, noise=noise or steady(0.02 / 2**0.5), seed=seed)
    asked, history = [], []
    while proposal := propose(
        candidates, history, limits=BudgetLimits(launches_left=launches - runner.launch_count)
    ):
        asked.append(proposal)
        history.append(runner.race(proposal.baseline, proposal.candidate, rule=RULE))
    return asked, history


def saving(**factors):
    """Return a cost in which each applied lever divides the time by its factor."""

    def cost(plan):
        seconds = 1.0
        for lever, setting in plan.settings:
            factor = factors[lever]
            seconds /= factor[setting] if isinstance(factor, dict) else factor
        return seconds

    return cost


def crashing(cost, *together):
    def checked(plan):
        if set(together) <= {lever for lever, _ in plan.settings}:
            raise ChildLost(f"The child died under {' and '.join(together)}.", remedy="Skip it.")
        return cost(plan)

    return checked


# --- simulated machines: planted main effects, interactions and a bottleneck ---------------

PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.TRANSFER)
LADDER = (1, 2, 4, 8)


def planted_lever(coin, name):
    """Return a candidate, the phases it acts on and its factor at each setting."""
    first = coin.choices(PHASES, [3, 2, 2, 1, 1])[0]
    wide = first is Phase.FORWARD and coin.random() < 0.7
    phases = {Phase.FORWARD, Phase.BACKWARD} if wide else {first}
    luck = coin.choices(["good", "idle", "bad"], [0.55, 0.2, 0.25])[0]
    if coin.random() < 0.35:
        best = coin.choice(LADDER)
        gain = coin.uniform(1.2, 2.5) if luck == "good" else 1.0
        guess = coin.choice([s for s in LADDER if 0.5 <= s / best <= 2])
        factors = {s: gain * (1 - 0.25 * abs(log2(s / best))) for s in LADDER}
        settings = tuple(sorted(LADDER, key=lambda s: abs(log2(s / guess))))
    else:
        gain = {"good": coin.uniform(1.05, 2), "idle": 1.0, "bad": coin.uniform(0.7, 0.98)}[luck]
        factors, settings = {True: gain}, (True,)
    promise = max(1.1, *factors.values(), 0.0) * coin.uniform(0.8, 1.3)
    return candidate(name, *settings, gain_ratio=max(1.1, promise)), phases, factors


def planted_machine(seed):
    """Return candidates in the order of a rough prior, and the cost of a plan."""
    coin = random.Random(seed)
    base = {
        Phase.DATA: coin.uniform(0.1, 1.2),
        Phase.FORWARD: coin.uniform(0.2, 0.5),
        Phase.BACKWARD: coin.uniform(0.3, 0.8),
        Phase.OPTIMIZER: coin.uniform(0.03, 0.2),
        Phase.TRANSFER: coin.uniform(0.02, 0.15),
    }
    planted = [planted_lever(coin, f"lever_{index}") for index in range(coin.randint(5, 8))]
    effects = {turned.lever: (phases, factors) for turned, phases, factors in planted}
    clashes = [(*coin.sample(sorted(effects), 2), coin.uniform(0.85, 1.15)) for _ in range(2)]
    overlap = coin.random()  # 1: the loader hides behind the compute, as with workers

    def cost(plan):
        seconds = dict(base)
        for lever, setting in plan.settings:
            phases, factors = effects[lever]
            for phase in phases:
                seconds[phase] /= factors[setting]
        data = seconds.pop(Phase.DATA)
        compute = sum(seconds.values())
        total = overlap * max(data, compute) + (1 - overlap) * (data + compute)
        applied = {lever for lever, _ in plan.settings}
        for one, other, factor in clashes:
            total /= factor if {one, other} <= applied else 1.0
        return total

    def promise(item):
        turned, phases, _ = item
        share = sum(base[phase] for phase in phases) / sum(base.values())
        return -share * (1 - 1 / turned.gain_ratio)

    return [item[0] for item in sorted(planted, key=promise)], cost


def cheapest(candidates, cost):
    plans = itertools.product(*[(None, *turned.settings) for turned in candidates])
    return min(
        cost(Plan(tuple(sorted((k.lever, s) for k, s in zip(candidates, plan, strict=True) if s))))
        for plan in plans
    )


def test_reaches_the_exhaustive_optimum_on_planted_machines() -> None:
    shares, gained, possible = [], 0.0, 0.0
    for seed in range(25):
        candidates, cost = planted_machine(seed)
        asked, history = searched(candidates, cost, seed=7 * seed + 1)
        assert len(asked) <= LAUNCHES
        best = log(cost(Plan()) / cheapest(candidates, cost))
        got = log(cost(Plan()) / cost(incumbent(candidates, history)))
        gained, possible = gained + got, possible + best
        shares.append(got / best if best > log(1.02) else 1.0)
    assert gained / possible >= 0.95
    assert sorted(shares)[12] >= 0.99
    assert sum(shares) / 25 >= 0.93


def test_where_nothing_helps_nothing_is_applied() -> None:
    candidates = [candidate(name) for name in "abcdef"]
    for seed in range(8):
        cost = saving(**dict.fromkeys("abcdef", 1.0 - 0.01 * (seed % 3)))
        _, history = searched(candidates, cost, seed=3 * seed)
        assert incumbent(candidates, history) == Plan()
        assert {row.outcome for row in rows(candidates, history)} == {"dropped"}


def test_a_crash_in_the_bundle_is_bisected_and_quarantined() -> None:
    candidates = [candidate(name) for name in "abcde"]
    cost = crashing(saving(**dict.fromkeys("abcde", 1.2)), "d")
    asked, history = searched(candidates, cost)
    assert [proposal.kind for proposal in asked[:2]] == [Kind.BUNDLE, Kind.BISECT]
    assert dict(incumbent(candidates, history).settings).keys() == set("abce")
    row = {row.lever: row for row in rows(candidates, history)}["d"]
    assert row.outcome == "failed"
    assert "died under d" in row.why


def test_a_failed_bundle_is_bisected_beside_the_incumbent() -> None:
    """What fails beside a lever that is in already does not fail without it."""
    named = replace(candidate("first"), named_ratio=0.5, bundled=False)
    candidates = [named, *map(candidate, "wxyz")]
    cost = crashing(saving(first=2.0, **dict.fromkeys("wxyz", 1.2)), "first", "x")
    _, history = searched(candidates, cost)
    found = {row.lever: row for row in rows(candidates, history)}
    assert [name for name, row in found.items() if row.outcome == "failed"] == ["x"]
    assert dict(incumbent(candidates, history).settings).keys() == {"first", *"wyz"}


def test_the_next_race_for_speed_comes_after_those_that_only_prune() -> None:
    alone = replace(candidate("alone"), bundled=False)
    candidates = [*(candidate(name, scope=Scope.STEP) for name in "ab"), alone]
    runner = FakeTrialRunner(cost=saving(a=1.2, b=1.2, alone=1.2), noise=steady(0.01), seed=0)
    bundle = propose(candidates, [])
    history = [runner.race(bundle.baseline, bundle.candidate, rule=RULE)]
    assert propose(candidates, history).kind is Kind.PRUNE
    asked = propose(candidates, history, limits=BudgetLimits(for_speed=True))
    assert (asked.kind, asked.lever) == (Kind.TOGGLE, "alone")


@pytest.mark.parametrize(("answer_s", "asked_count"), [(0.0, 1), (5.0, 1), (20.0, 0)])
def test_a_race_may_have_to_pay_for_an_answer_of_its_own(answer_s, asked_count) -> None:
    candidates = [candidate("a")]
    saved_s, price_s = 60.0, 50.0
    ratio = propose(candidates, []).expected_ratio
    limits = BudgetLimits(
        price=lambda asked: Price(wall_s=price_s), answer_s=lambda asked: answer_s,
        weighed_s=saved_s / (1.0 - 1.0 / ratio),
    )  # fmt: skip
    asked = propose(candidates, [], limits=limits)
    assert (asked is not None) is bool(asked_count)


def test_two_levers_that_only_crash_together_lose_one() -> None:
    candidates = [candidate(name) for name in "abcd"]
    cost = crashing(saving(**dict.fromkeys("abcd", 1.2)), "b", "c")
    _, history = searched(candidates, cost)
    assert len(incumbent(candidates, history).settings) == 3


def test_a_single_lever_needs_no_bundle_and_no_prune() -> None:
    asked, history = searched([candidate("a")], saving(a=1.2))
    assert [proposal.kind for proposal in asked] == [Kind.TOGGLE]
    assert str(incumbent([candidate("a")], history)) == "a=True"


def test_passengers_of_a_bundle_are_pruned() -> None:
    candidates = [candidate(name) for name in "abc"]
    _, history = searched(candidates, saving(a=1.3, b=1.0, c=0.95))
    assert str(incumbent(candidates, history)) == "a=True"
    assert [row.outcome for row in rows(candidates, history)] == ["kept", "dropped", "dropped"]


def test_levers_that_hide_each_others_gain_are_tried_together() -> None:
    def cost(plan):
        applied = dict(plan.settings)
        slow = 1.5 if "harm" in applied else 1.0
        return slow * max(0.5 if "load" in applied else 1.0, 0.5 if "math" in applied else 1.0)

    candidates = [candidate("harm"), candidate("load"), candidate("math")]
    quick = lambda plan: cost(plan) ** 0.5  # noqa: E731  the bundle alone must not win
    _, history = searched(candidates, quick)
    assert set(dict(incumbent(candidates, history).settings)) == {"load", "math"}


def test_whole_numbers_climb_to_the_better_neighbour() -> None:
    speed = {1: 1.0, 2: 1.2, 4: 1.4, 8: 1.25, 16: 1.1}
    for guess, best in ((2, 4), (8, 4), (4, 4)):
        turned = candidate("threads", guess, *[s for s in speed if s != guess])
        _, history = searched([turned], saving(threads=speed))
        assert dict(incumbent([turned], history).settings) == {"threads": best}


def test_a_setting_that_was_moved_is_told_by_a_race_of_its_own() -> None:
    threads = candidate("threads", 2, 1, 4, 8, scope=Scope.STEP)
    candidates = [threads]
    cost = saving(threads={1: 0.9, 2: 1.2, 4: 1.5, 8: 1.1})
    asked, history = searched(candidates, cost)
    assert incumbent(candidates, history) == Plan().with_lever("threads", 4)
    own = [
        one
        for one in asked
        if (one.baseline, one.candidate) == (Plan(), Plan().with_lever("threads", 4))
    ]
    assert [one.kind for one in own] == [Kind.PRUNE]
    (row,) = rows(candidates, history)
    assert row.speedup.mid_ratio == pytest.approx(1.5, abs=0.1)
    moved = [seen for seen in history if Plan() not in (seen.baseline, seen.candidate)]
    (row,) = rows(candidates, [history[0], *moved])
    assert (row.setting, row.speedup) == (4, None)
    assert "over 2; not measured alone" in row.why


def test_without_launches_only_cheap_switches_are_proposed() -> None:
    candidates = [
        candidate("a"),
        candidate("b", scope=Scope.STEP),
        candidate("c", scope=Scope.PROCESS),
    ]
    asked, history = searched(candidates, saving(a=1.2, b=1.2, c=1.2), launches=0)
    assert asked
    assert all(proposal.scope is not Scope.LAUNCH for proposal in asked)
    assert set(dict(incumbent(candidates, history).settings)) == {"b", "c"}
    assert rows(candidates, history)[0].outcome == "skipped"


def test_any_prefix_of_the_history_gives_the_same_next_proposal() -> None:
    candidates, cost = planted_machine(6)
    asked, history = searched(candidates, cost)
    for index, proposal in enumerate(asked):
        assert (
            propose(
                candidates, history[:index], limits=BudgetLimits(launches_left=LAUNCHES - index)
            )
            == proposal
        )
    left = LAUNCHES - len(asked)
    assert (
        propose(candidates, list(reversed(history)), limits=BudgetLimits(launches_left=left))
        is None
    )


def test_a_search_goes_on_from_a_torn_journal(tmp_path) -> None:
    candidates, cost = planted_machine(6)
    asked, history = searched(candidates, cost)
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path, {"script": "a"})
    for seen in history[:5]:
        journal.append(seen)
    journal.close()
    path.write_bytes(path.read_bytes()[:-9])

    journal = Journal.open(path, {"script": "a"})
    assert (
        propose(candidates, journal.history, limits=BudgetLimits(launches_left=LAUNCHES - 4))
        == asked[4]
    )
    for seen in history[4:]:
        journal.append(seen)
    assert incumbent(candidates, journal.history) == incumbent(candidates, history)
    assert rows(candidates, journal.history) == rows(candidates, history)


def test_the_best_so_far_is_known_at_any_time() -> None:
    candidates, cost = planted_machine(1)
    _, history = searched(candidates, cost)
    for index in range(len(history) + 1):
        plan = incumbent(candidates, history[:index])
        assert cost(plan) <= cost(Plan()) * 1.02
        assert len(rows(candidates, history[:index])) == len(candidates)


@pytest.mark.parametrize("sd_ratio", [0.02, 0.10])
def test_each_row_says_one_sentence_with_its_figure(sd_ratio) -> None:
    candidates = [candidate("a"), candidate("b"), candidate("c")]
    _, history = searched(candidates, saving(a=1.25, b=1.0, c=0.8), noise=steady(sd_ratio))
    for row in rows(candidates, history):
        assert "x" in row.why
        assert "pair" in row.why
        assert "\n" not in row.why
        assert row.setting is True


@pytest.mark.parametrize(
    ("faster_count", "slower_count", "mid_ratio", "verdict", "is_guess"),
    [
        (4, 0, 1.5, Verdict.UNDECIDED, True),
        (5, 0, 1.5, Verdict.UNDECIDED, False),
        (6, 2, 1.5, Verdict.UNDECIDED, True),
        (7, 1, 1.5, Verdict.UNDECIDED, False),
        (40, 0, 1.08, Verdict.UNDECIDED, True),
        (4, 0, 1.08, Verdict.WIN, False),
    ],
)
def test_what_most_pairs_do_not_show_is_a_guess(
    faster_count, slower_count, mid_ratio, verdict, is_guess
) -> None:
    candidate_s = [1.0 / mid_ratio] * faster_count + [1.1] * slower_count
    seen = Comparison(
        baseline=Plan(),
        candidate=Plan().with_lever("a", True),
        verdict=verdict,
        speedup=Interval(low_ratio=0.01, mid_ratio=mid_ratio, high_ratio=100.0),
        pairs=tuple(
            Pair(baseline_s=1.0, candidate_s=seconds, baseline_first=False)
            for seconds in candidate_s
        ),
    )
    candidates = [candidate("a")]
    assert incumbent(candidates, [seen]).levers == {"a"}
    assert guesses(candidates, [seen]) == ({"a"} if is_guess else set())


@pytest.mark.parametrize("verdict", [Verdict.WIN, Verdict.UNDECIDED])
def test_what_came_in_with_a_bundle_that_won_is_no_guess(verdict) -> None:
    candidates = [candidate("a"), candidate("b")]
    both = Plan().with_lever("a", True).with_lever("b", True)
    large = Interval(low_ratio=1.1, mid_ratio=1.3, high_ratio=1.5)
    small = Interval(low_ratio=0.9, mid_ratio=1.03, high_ratio=1.2)
    lost = Interval(low_ratio=0.6, mid_ratio=0.8, high_ratio=1.1)
    history = [Comparison(baseline=Plan(), candidate=both, verdict=verdict, speedup=large)]
    while proposal := propose(candidates, history):
        assert proposal.kind is Kind.PRUNE  # with one lever of the two, or with neither
        history.append(
            Comparison(
                baseline=proposal.baseline,
                candidate=proposal.candidate,
                verdict=Verdict.UNDECIDED,
                speedup=small if proposal.candidate == both else lost,
            )
        )
    assert incumbent(candidates, history) == both
    assert guesses(candidates, history) == (set() if verdict is Verdict.WIN else both.levers)


def test_an_undecided_race_says_noise() -> None:
    undecided = Rule(pair_count=12, win_ratio=inf, drop_ratio=inf)
    runner = FakeTrialRunner(cost=saving(a=1.0))
    seen = runner.race(Plan(), Plan().with_lever("a", True), rule=undecided)
    assert seen.verdict is Verdict.UNDECIDED
    (row,) = rows([candidate("a")], [seen])
    assert row.why.endswith("after 12 pairs: no measurable gain")
    assert row.outcome == "dropped"


@pytest.mark.parametrize(
    ("mid_ratio", "high_ratio", "reason", "told"),
    [
        (1.02, 1.1, None, "worth a lever"),
        (1.01, 9.0, None, "no measurable gain"),
        (1.02, 9.0, Reason.HIDDEN, "noise hides whether that is a gain"),
    ],
)
def test_a_short_race_among_noise_does_not_claim_that_there_is_no_gain(
    mid_ratio, high_ratio, reason, told
) -> None:
    runner, rule = FakeTrialRunner(cost=saving(a=1.0)), Rule(pair_count=8)
    seen = runner.race(Plan(), Plan().with_lever("a", True), rule=rule)
    interval = Interval(low_ratio=0.9, mid_ratio=mid_ratio, high_ratio=high_ratio)
    (row,) = rows([candidate("a")], [replace(seen, verdict=Verdict.DROP, speedup=interval)])
    assert told in row.why
    assert row.reason is reason


@pytest.mark.parametrize(
    ("mid_ratio", "high_ratio", "taken"),
    [(1.19, 1.62, True), (1.12, 1.15, False), (1.05, 9.0, False)],
)
@pytest.mark.parametrize(("names", "kind"), [("ab", Kind.BUNDLE), ("a", Kind.TOGGLE)])
def test_what_shows_much_among_noise_comes_in(mid_ratio, high_ratio, taken, names, kind) -> None:
    candidates = [candidate(name) for name in names]
    asked = propose(candidates, [])
    assert asked is not None
    assert asked.kind is kind
    seen = FakeTrialRunner(cost=saving(a=1.0, b=1.0)).race(
        asked.baseline, asked.candidate, rule=Rule(pair_count=8)
    )
    interval = Interval(low_ratio=0.74, mid_ratio=mid_ratio, high_ratio=high_ratio)
    dropped = replace(seen, verdict=Verdict.DROP, speedup=interval)
    assert bool(incumbent(candidates, [dropped]).settings) is taken


@pytest.mark.parametrize(("again_ratio", "taken"), [(0.93, True), (1.0, False)])
def test_what_noise_may_have_hidden_is_raced_again_where_nothing_came_in(
    again_ratio, taken
) -> None:
    candidates, plan = [candidate("a")], Plan().with_lever("a", True)
    seen = FakeTrialRunner(cost=saving(a=1.0)).race(Plan(), plan, rule=Rule(pair_count=8))
    interval = Interval(low_ratio=0.74, mid_ratio=1.08, high_ratio=1.62)
    hidden = replace(seen, verdict=Verdict.DROP, speedup=interval)
    asked = propose(candidates, [hidden])
    assert asked is not None
    assert (asked.baseline, asked.candidate) == (plan, Plan())
    assert not incumbent(candidates, [hidden]).settings
    ends = Interval(low_ratio=0.8, mid_ratio=again_ratio, high_ratio=1.2)
    again = replace(
        hidden, baseline=plan, candidate=Plan(), verdict=Verdict.UNDECIDED, speedup=ends
    )
    assert propose(candidates, [hidden, again]) is None
    assert bool(incumbent(candidates, [hidden, again]).settings) is taken


def test_a_few_numbers_cost_a_few_races() -> None:
    law = {1: 1.1, 3: 1.5, 4: 1.9, 6: 1.92}
    for best in (law, {**law, 4: 1.0, 3: 1.0, 6: 1.0, 1: 1.0}):
        asked, _ = searched([candidate("workers", 4, 3, 6, 1)], saving(workers=best))
        assert len(asked) <= 4


def test_what_does_nothing_beside_the_incumbent_is_not_tried_around_it_and_that_is_said() -> None:
    def redundant_with(setting, plan):
        return "it does nothing beside whole" if "whole" in dict(plan.settings) else ""

    part = replace(
        candidate("part", scope=Scope.STEP), redundant_with=redundant_with, bundled=False
    )
    candidates = [candidate("whole", gain_ratio=3.0), part]
    asked, history = searched(candidates, saving(whole=1.5, part=1.0))
    assert incumbent(candidates, history) == Plan().with_lever("whole", True)
    around = [race for race in asked if "whole" in dict(race.baseline.settings)]
    assert not any("part" in dict(race.candidate.settings) for race in around)
    first = [seen for seen in history if "part" not in dict(seen.candidate.settings)]
    told = {row.lever: row.why for row in rows(candidates, first, limits=BudgetLimits(ended=True))}
    assert told["part"] == "not tried: it does nothing beside whole"


def test_what_was_predicted_stands_beside_what_was_measured_alone() -> None:
    guessed = replace(candidate("a", 2), forecasts={2: 1.8})
    runner = FakeTrialRunner(cost=saving(a={2: 1.5}, b=1.1))
    alone = runner.race(Plan(), Plan().with_lever("a", 2), rule=RULE)
    (row,) = rows([guessed], [alone])
    assert row.why.endswith("; predicted 1.80x")
    below = Plan().with_lever("b", True)
    seen = [
        runner.race(Plan(), below, rule=RULE),
        runner.race(below, below.with_lever("a", 2), rule=RULE),
    ]
    row = {row.lever: row for row in rows([candidate("b"), guessed], seen)}["a"]
    assert "predicted" not in row.why


def test_guesses_that_do_not_win_together_leave_what_has_won() -> None:
    candidates = [candidate("guess"), candidate("other"), candidate("proved")]
    proof, whole = (
        saving(guess=1.15, other=1.15, proved=1.04),
        saving(guess=0.97, other=0.97, proved=1.04),
    )
    benches = {
        proof: FakeTrialRunner(cost=proof, noise=steady(0.01)),
        whole: FakeTrialRunner(cost=whole, noise=steady(0.01)),
    }
    undecided = Rule(pair_count=12, win_ratio=inf, drop_ratio=inf)
    history, last = [], []
    while proposal := propose(candidates, history, limits=BudgetLimits(launches_left=LAUNCHES)):
        last.append(proposal)
        ends = proposal.candidate == Plan() or proposal.kind is Kind.BUNDLE
        runner = benches[whole if ends else proof]
        rule = RULE if {"proved"} == proposal.baseline.differing(proposal.candidate) else undecided
        history.append(runner.race(proposal.baseline, proposal.candidate, rule=rule))
    doubts = [str(p.baseline) for p in last if p.candidate == Plan()]
    assert doubts == ["guess=True, other=True, proved=True", "proved=True"]
    assert str(incumbent(candidates, history)) == "proved=True"
    told = {row.lever: row for row in rows(candidates, history)}
    assert told["proved"].outcome == "kept"
    assert "in a second race: no gain worth a lever here" in told["guess"].why


def beside_a_winner(again_ratio, *, steadies=False, is_over=False):
    """Search where a lever of 1.3x wins, and one is a guess of 1.04x that a second race tells."""
    guess = replace(candidate("guess"), bundled=False, steadies=steadies)
    candidates = [replace(candidate("proved"), bundled=False), guess]
    undecided = Rule(pair_count=12, win_ratio=inf, drop_ratio=inf)
    history, again_count = [], 0
    while proposal := propose(candidates, history):
        own, other = proposal.baseline, proposal.candidate
        is_again = own.without("guess") == other
        again_count += is_again
        if is_again and is_over:
            break
        gain_ratio = again_ratio if is_again else 1.04
        runner = FakeTrialRunner(cost=saving(proved=1.3, guess=gain_ratio), noise=steady(0.002))
        rule = undecided if "guess" in own.differing(other) else RULE
        history.append(runner.race(own, other, rule=rule))
    row = next(row for row in rows(candidates, history) if row.lever == "guess")
    return incumbent(candidates, history), row, again_count


def test_a_guess_beside_what_has_won_stays_only_where_it_is_faster_again() -> None:
    plan, row, _ = beside_a_winner(1.0)
    assert str(plan) == "proved=True"
    assert row.outcome == "dropped"
    assert "1.00x after 12 pairs in a second race: no gain worth a lever here" in row.why
    plan, row, _ = beside_a_winner(1.05)
    assert str(plan) == "guess=True, proved=True"
    assert row.outcome == "kept"


def test_what_may_make_launches_alike_is_no_guess() -> None:
    assert beside_a_winner(1.05)[2] == 1
    assert beside_a_winner(1.0, steadies=True)[2] == 0


def test_a_kept_lever_that_has_proved_nothing_is_told_as_part_of_the_winning_set() -> None:
    for is_over in (True, False):
        _, row, _ = beside_a_winner(1.05, is_over=is_over)
        assert re.fullmatch(
            r"part of the winning set, not proven alone: 1\.04x \[.*\] after 12 pairs", row.why
        )
        assert row.speedup is None


# --- what a closer look has shown -----------------------------------------------------------


def test_a_setting_that_slowed_the_script_down_is_raced_beside_others_at_most() -> None:
    threads = replace(candidate("threads", 1, scope=Scope.STEP), slower=(1, 0.65))
    other = candidate("other")
    alone, history = searched([threads], saving(threads=0.65))
    assert not alone
    (row,) = rows([threads], history)
    assert row.why == "not tried: 0.65x under 1 in the closer look before the search"
    asked, _ = searched([threads, other], saving(threads={1: 0.65}, other=1.5))
    raced = [proposal for proposal in asked if "threads" in proposal.candidate.levers]
    assert raced
    assert all("other" in proposal.baseline.levers for proposal in raced)


def test_another_setting_than_the_slower_one_is_raced() -> None:
    threads = replace(candidate("threads", 4, 1, scope=Scope.STEP), slower=(1, 0.65))
    asked, history = searched([threads], saving(threads={1: 0.65, 4: 1.5}))
    assert asked[0].candidate == Plan().with_lever("threads", 4)
    assert incumbent([threads], history) == asked[0].candidate


def test_a_slower_setting_says_nothing_of_another_one() -> None:
    known = replace(candidate("threads", 8, 1, scope=Scope.STEP), slower=(1, 0.65))
    estimator = GainEstimator(least_ratio=0.02)
    assert estimator.expected_log(known, 8) == estimator.expected_log(
        replace(known, slower=None), 8
    )
    assert estimator.expected_log(known, 1) < estimator.expected_log(known, 8)
    assert estimator.best_seen(known) == 8


def test_a_setting_that_a_finding_names_is_not_raced_where_it_slowed_the_script_down() -> None:
    threads = replace(candidate("threads", 4, scope=Scope.STEP), slower=(4, 0.65), named_ratio=0.2)
    asked, _ = searched([threads], saving(threads=0.65))
    assert not asked


def test_a_setting_that_slowed_the_script_down_is_in_no_bundle() -> None:
    threads = replace(candidate("threads", 1, scope=Scope.STEP), slower=(1, 0.65))
    asked, _ = searched(
        [threads, candidate("one"), candidate("two")], saving(threads=0.65, one=1.2, two=1.2)
    )
    assert asked[0].candidate.levers == {"one", "two"}
