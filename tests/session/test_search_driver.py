"""Whether a tuning goes on after a first answer."""

from contextlib import nullcontext
from dataclasses import replace
from math import inf
from types import SimpleNamespace

from hasten.compare import Rule
from hasten.records import Comparison, Effect, Phase, Plan, Reason, Scope, Verdict
from hasten.search import Candidate, Journal, Price, propose
from hasten.session import Options
from hasten.session.search_driver import SearchDriver
from hasten.testing import FakeTrialRunner, RecordingWatcher, steady

WORKERS, CACHE = Plan().with_lever("workers", True), Plan().with_lever("cache", True)


def candidate(lever, *, scope=Scope.PROCESS, bundled=False):
    return Candidate(
        lever=lever, phases=frozenset({Phase.DATA}), settings=(True,), gain_ratio=4.0,
        scope=scope, effect=Effect.EXACT, bundled=bundled,
    )  # fmt: skip


def cost(plan):
    """A cache gives more than workers, and nothing beside them."""
    return {WORKERS: 0.6, CACHE: 0.3}.get(plan, 0.6 if plan.settings else 1.0)


TWO = (candidate("workers"), candidate("cache"))
TOGETHER = (
    *(candidate(name, scope=Scope.STEP, bundled=True) for name in ("one", "other")),
    candidate("alone"),
)


def driver_after(race_count, candidates=TWO, cost=cost, answer_s=10.0, proof_s=lambda plan: 5.0):
    """A search after some of its races: of two levers, one takes the other one's place."""
    runner = FakeTrialRunner(cost=cost, noise=steady(0.01), seed=0)
    history = []
    while len(history) < race_count and (asked := propose(candidates, history)):
        history.append(
            runner.race(asked.baseline, asked.candidate, rule=Rule(pair_count=40, sd_ratio=0.02))
        )
    races = SimpleNamespace(least_ratio=0.02, pass_count=10, price=lambda asked: Price(wall_s=1.0))
    return SearchDriver(
        candidates, SimpleNamespace(history=tuple(history)), races=races,
        options=Options(budget_s=300.0), view=RecordingWatcher(), note=[].append,
        costs=lambda plan: SimpleNamespace(
            answer_s=answer_s(plan) if callable(answer_s) else answer_s, confirm_pairs_s=0.0,
            proof_s=proof_s(plan),
        ),
        spent_s=lambda: 80.0, deadline=SimpleNamespace(left_s=inf), doubtful=lambda plan: {},
    )  # fmt: skip


def answer(*rows):
    return SimpleNamespace(plan=Plan(), speedup=None, levers=rows)


def test_in_a_short_budget_nothing_is_pruned_after_the_first_gain() -> None:
    """Proof and confirmation need what is left, however much findings name of the levers in."""
    named = [
        replace(candidate(name), named_ratio=0.5, phases=frozenset({phase}))
        for name, phase in (("one", Phase.DATA), ("two", Phase.OPTIMIZER))
    ]
    driver = driver_after(1, named, lambda plan: 0.9 ** len(plan.settings))
    assert driver.best.levers == {"one", "two"}
    assert not driver.is_over
    driver.short = True
    assert driver.is_over


def test_in_a_short_budget_a_bundle_gives_way_where_its_proof_comes_too_late() -> None:
    """One that rounds takes four recorded runs, one that is exact takes two."""
    named = [
        replace(candidate(name), named_ratio=share, phases=frozenset({phase}))
        for name, share, phase in (("exact", 0.5, Phase.DATA), ("rounds", 0.2, Phase.OPTIMIZER))
    ]
    for proof_s, levers in ((219.0, {"exact", "rounds"}), (219.5, {"exact"})):
        driver = driver_after(
            0, named, proof_s=lambda plan, late=proof_s: late if "rounds" in plan.levers else 10.0
        )
        driver.short = True
        assert driver._propose().candidate.levers == levers


def test_what_a_lost_lever_had_displaced_is_worth_an_answer_of_its_own() -> None:
    driver = driver_after(inf)
    assert driver.best == CACHE
    assert driver.goes_on(answer())
    assert driver.best == WORKERS


def test_a_race_that_only_prunes_does_not_end_a_search_that_has_others() -> None:
    driver = driver_after(1, TOGETHER, lambda plan: 0.8 ** len(plan.settings))
    found = SimpleNamespace(plan=driver.best, speedup=1.5, levers=())
    driver.end_s = 80.0
    assert len(driver.best.settings) == 2
    assert driver.goes_on(found)


def test_races_that_do_not_pay_for_another_answer_end_the_search() -> None:
    found = SimpleNamespace(plan=Plan(), speedup=1.5, levers=())
    late = {WORKERS: 1e6}  # the race that comes first; another pays for its answer
    for answer_s, goes_on in ((10.0, True), (1e6, False), (lambda p: late.get(p, 10.0), True)):
        driver = driver_after(0, answer_s=answer_s)
        driver.end_s = 80.0
        assert driver.goes_on(found) is goes_on
        assert bool(driver.passed_over) is not goes_on


def test_where_nothing_is_left_of_a_lost_plan_there_is_no_second_answer() -> None:
    driver = driver_after(inf)
    driver.leave(frozenset({"workers"}))
    assert not driver.goes_on(answer())
    assert driver.best == Plan()


def test_where_nothing_can_be_proved_the_search_is_over() -> None:
    assert driver_after(1).goes_on(answer())
    driver = driver_after(1)
    assert not driver.goes_on(answer(SimpleNamespace(reason=Reason.UNPROVED)))


def test_the_noise_of_a_late_race_takes_time_of_that_race() -> None:
    spent_s, most = [200.0], []

    def measure_noise(*, quickly):
        races.noise = quickly
        spent_s[0] += 30.0

    def race(asked, share_s, *, most_s):
        most.append(most_s)
        spent_s[0] = 300.0
        return Comparison(
            baseline=asked.baseline, candidate=asked.candidate, verdict=Verdict.UNDECIDED
        )

    races = SimpleNamespace(
        noise=None, least_ratio=0.02, pass_count=10, confirm_s=10.0,
        measure_noise=measure_noise, race=race,
        price=lambda asked: Price(wall_s=1.0), prepare_s=lambda asked: 0.0,
    )  # fmt: skip
    driver = SearchDriver(
        TWO, Journal(), races=races, options=Options(budget_s=300.0), view=RecordingWatcher(),
        costs=lambda plan: SimpleNamespace(answer_s=10.0, confirm_pairs_s=0.0, proof_s=5.0),
        spent_s=lambda: spent_s[0], note=[].append, doubtful=lambda plan: {},
        deadline=SimpleNamespace(sooner=lambda left_s: nullcontext()),
    )  # fmt: skip
    driver.run()
    assert most == [50.0]  # of 70, an answer takes 20


def test_in_a_short_budget_a_lever_has_to_promise_more_than_all_that_is_gained() -> None:
    """Two levers have taken more than half of a step, the second one less than a third of it."""
    three = [replace(candidate(name), named_ratio=0.5) for name in ("one", "two", "three")]
    seconds = {1: 0.7, 2: 0.42}
    driver = driver_after(2, three, lambda plan: seconds.get(len(plan.settings), 1.0))
    assert driver.best.levers == {"one", "two"}
    assert not driver.is_over
    driver.short = True
    assert driver.is_over
