"""What makes launches alike stays in a plan that it does not slow down."""

from functools import partial

import pytest

from hasten.compare import launches_margin
from hasten.records import Comparison, Effect, Interval, Phase, Plan, Scope, Verdict
from hasten.search import Candidate, gained_ratio, incumbent, last_about, propose, rows
from hasten.search.proposal import LAUNCHES_LOG


def candidate(lever, **details):
    return Candidate(
        lever=lever, phases=frozenset({Phase.FORWARD}), settings=(True,), effect=Effect.EXACT,
        scope=Scope.LAUNCH, gain_ratio=5.0, phases_ratio=0.9, **details,
    )  # fmt: skip


def gives_way(setting, plan):
    return "another is loaded" if "other" in dict(plan.settings) else ""


def raced(baseline, candidate, ratio, verdict, *, by=0.03):
    ends = Interval(low_ratio=(1 - by) * ratio, mid_ratio=ratio, high_ratio=(1 + by) * ratio)
    return Comparison(baseline=baseline, candidate=candidate, verdict=verdict, speedup=ends)


def search(gains, *, end=None):
    """Search with `keep`, which steadies, and `fast`; return the candidates and the races."""
    candidates = [
        candidate(
            lever, steadies=lever == "keep", named_ratio=0.3 if lever == "keep" else 0.0
        )
        for lever in gains
    ]  # fmt: skip

    def cost(plan):
        seconds = 1.0
        for lever, _ in plan.settings:
            seconds /= gains[lever]
        return seconds

    history = []
    while (asked := propose(candidates, history)) and (end is None or len(history) < end):
        ratio = cost(asked.baseline) / cost(asked.candidate)
        is_clear = 0.97 * ratio > 1.02
        verdict = Verdict.WIN if is_clear else Verdict.DROP if ratio < 1.02 else Verdict.UNDECIDED
        history.append(raced(asked.baseline, asked.candidate, ratio, verdict))
    return candidates, history


@pytest.mark.parametrize(
    ("keep", "fast", "found"),
    [
        (1.0, 1.5, {"keep", "fast"}),  # no gain of its own in the launches that were raced
        (1.3, 1.5, {"keep", "fast"}),
        (0.99, 1.5, {"keep", "fast"}),  # not shown to cost
        (0.93, 1.5, {"keep", "fast"}),  # by no more than two launches of one script may differ
        (0.9, 1.5, {"fast"}),  # it costs
        (1.0, 1.0, set()),  # alone it is no gain
        (1.3, 1.0, {"keep"}),
    ],
)
def test_it_stays_beside_others_unless_it_costs(keep, fast, found) -> None:
    candidates, history = search({"keep": keep, "fast": fast})
    assert set(dict(incumbent(candidates, history).settings)) == found


def test_what_was_never_raced_does_not_come_in() -> None:
    candidates, _ = search({"keep": 1.0, "fast": 1.5}, end=0)
    plan = Plan().with_lever("fast", True)
    alone = Comparison(
        baseline=Plan(), candidate=plan, verdict=Verdict.WIN,
        speedup=Interval(low_ratio=1.4, mid_ratio=1.5, high_ratio=1.6),
    )  # fmt: skip
    assert incumbent(candidates, [alone]) == plan


def test_the_report_says_why_it_stays() -> None:
    candidates, history = search({"keep": 1.0, "fast": 1.5})
    told = {row.lever: row for row in rows(candidates, history)}
    assert told["keep"].outcome == "kept"
    assert told["keep"].why.endswith("kept because launches may differ less with it")
    assert "launches" not in told["fast"].why


def test_what_does_nothing_beside_the_newcomer_leaves_the_plan() -> None:
    candidates = [
        candidate(
            "keep", steadies=True, named_ratio=0.3, bundled=False, redundant_with=gives_way
        ),
        candidate("other", bundled=False),
    ]  # fmt: skip
    history = []
    while asked := propose(candidates, history):
        ratio = 1.3 ** (len(asked.candidate.settings) - len(asked.baseline.settings))
        if "other" in asked.baseline.differing(asked.candidate):
            ratio = 1.5
        history.append(raced(asked.baseline, asked.candidate, ratio, Verdict.WIN))
    assert set(dict(incumbent(candidates, history).settings)) == {"other"}
    told = {row.lever: row for row in rows(candidates, history)}["keep"]
    assert (told.outcome, told.why) == ("dropped", "another is loaded: other=True came in")


def test_what_left_for_a_newcomer_comes_back_when_that_leaves_too() -> None:
    """`other` gives nothing without `keep`, in launches that happen to be alike."""
    candidates = [
        candidate("keep", steadies=True, redundant_with=gives_way),
        candidate("fast"),
        candidate("other", steadies=True, bundled=False),
    ]
    history = []
    while len(history) < 3 and (asked := propose(candidates, history)):
        came = asked.baseline.differing(asked.candidate)
        ratio = 1.5 if came == {"keep", "fast"} else 1.04 if asked.baseline.settings else 1.0
        if asked.kind == "prune":
            ratio = 0.9 if came == {"other"} else 1.5
        verdict = Verdict.WIN if ratio > 1.2 else Verdict.UNDECIDED if ratio > 1.0 else Verdict.DROP
        history.append(raced(asked.baseline, asked.candidate, ratio, verdict, by=0.05))
        if came == {"other"} and asked.kind == "prune":
            break
    assert history[-1].baseline == Plan().with_lever("fast", True)
    assert set(dict(incumbent(candidates, history).settings)) == {"keep", "fast"}


def test_by_how_much_launches_may_differ_is_what_a_confirmation_takes_for_one() -> None:
    assert pytest.approx(launches_margin([0.0]), abs=5e-4) == LAUNCHES_LOG


def test_what_a_second_race_of_the_whole_refuted_does_not_come_back() -> None:
    """A plan of two that wins no more is left with `fast`, which has won alone."""
    fast, both = Plan().with_lever("fast", True), Plan(settings=(("fast", True), ("keep", True)))
    seen = partial(raced, by=0.02)
    history = [
        seen(Plan(), Plan().with_lever("keep", True), 1.03, Verdict.UNDECIDED),
        seen(Plan().with_lever("keep", True), both, 1.04, Verdict.WIN),
        seen(fast, both, 1.02, Verdict.UNDECIDED),
        seen(both, Plan(), 1.0, Verdict.DROP),
        seen(fast, Plan(), 0.95, Verdict.DROP),
    ]
    candidates, _ = search({"keep": 1.0, "fast": 1.5}, end=0)
    assert incumbent(candidates, history[:3]) == both
    assert incumbent(candidates, history) == fast


def test_the_race_of_a_plan_is_that_of_its_largest_part() -> None:
    fast = Plan().with_lever("fast", True)
    both = fast.with_lever("keep", True)
    _, history = search({"keep": 1.0, "fast": 1.5})
    assert last_about(both, history).candidate == both
    alone = [one for one in history if "keep" not in dict(one.candidate.settings)]
    assert last_about(both, alone) == (alone[-1] if alone else None)
    assert last_about(Plan(), history) is None


def test_the_gain_of_a_plan_is_that_of_all_races_that_led_to_it() -> None:
    """The last race shows only what came on top."""
    empty, fast = Plan(), Plan().with_lever("fast", True)
    both = fast.with_lever("keep", True)
    history = [
        raced(empty, fast, 2.0, Verdict.WIN),
        raced(fast, both, 1.1, Verdict.WIN),
        raced(both, fast, 0.9, Verdict.DROP),
    ]
    assert gained_ratio(both, history) == pytest.approx(2.2)
    assert gained_ratio(both, history[:1]) == pytest.approx(2.0)
    assert gained_ratio(empty, history) == gained_ratio(both, []) == 1.0
