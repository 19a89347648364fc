"""Levers of one state are raced in it with and without each other, and in each other's place."""

from dataclasses import replace

import pytest

from hasten.records import Comparison, Effect, Interval, Phase, Plan, Reason, Scope, Verdict
from hasten.search import AcceptanceCriteria, Candidate, guesses, incumbent, propose, rows
from hasten.search.proposal import is_taken_whole, is_unpaid

OF_TEN_PASSES = AcceptanceCriteria(pass_count=10)
SETTINGS = {"workers": (2, 1), "cache": (True,), "fetch": (True,)}
# Seconds of a step by what is in; `fetch` decides alone where it is in.
SCRIPTS = {
    "the cache alone": {"": 1.0, "cache": 0.2, "workers": 0.5, "cache workers": 0.33},
    "the cache alone, nothing beside workers": {
        "": 1.0, "cache": 0.2, "workers": 0.5, "cache workers": 0.55,
    },
    "both": {"": 1.0, "cache": 0.5, "workers": 0.5, "cache workers": 0.3},
    "workers alone": {"": 1.0, "cache": 0.9, "workers": 0.4, "cache workers": 0.5},
    "fetch, whatever is beside it": {
        "": 1.0, "cache": 0.5, "workers": 0.5, "cache workers": 0.4,
        "fetch": 0.2, "cache fetch": 0.2, "fetch workers": 0.2, "cache fetch workers": 0.2,
    },
    "fetch, but not beside workers": {
        "": 1.0, "cache": 0.5, "workers": 0.5, "cache workers": 0.4,
        "fetch": 0.2, "cache fetch": 0.2, "fetch workers": 0.45, "cache fetch workers": 0.45,
    },
}  # fmt: skip


def search(script, named, *, filling_s=0.0):
    """Search a script to its end; return the candidates and the races.

    It runs for ten passes of one step; in the first, the cache takes `filling_s` longer.
    """
    levers = [lever for lever in SETTINGS if any(lever in key.split() for key in script)]
    candidates = [
        Candidate(
            lever=lever, phases=frozenset({Phase.DATA}), settings=SETTINGS[lever],
            effect=Effect.EXACT, scope=Scope.PROCESS, gain_ratio=50.0, phases_ratio=0.9,
            named_ratio=named.get(lever, 0.0),
        )
        for lever in levers
    ]  # fmt: skip

    def cost(plan):
        seconds = script[" ".join(sorted(dict(plan.settings)))]
        return seconds * (1.1 if dict(plan.settings).get("workers") == 1 else 1.0)

    def first_pass_ratio(plan, baseline):
        return filling_s * ("cache" in plan.levers) / cost(baseline)

    history = []
    while asked := propose(candidates, history, criteria=OF_TEN_PASSES):
        ratio = cost(asked.baseline) / cost(asked.candidate)
        history.append(
            Comparison(
                baseline=asked.baseline, candidate=asked.candidate,
                verdict=Verdict.WIN if ratio > 1.01 else Verdict.DROP,
                speedup=Interval(low_ratio=0.99 * ratio, mid_ratio=ratio, high_ratio=1.01 * ratio),
                first_pass_ratio=first_pass_ratio(asked.candidate, asked.baseline),
                baseline_first_pass_ratio=first_pass_ratio(asked.baseline, asked.baseline),
            )
        )  # fmt: skip
    return candidates, history, cost


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    "named",
    [{}, {"workers": 0.6}, {"cache": 0.6}, {"workers": 0.6, "cache": 0.3}, {"fetch": 0.5}],
    ids=" ".join,
)
def test_the_fewest_levers_that_give_most_are_found_in_few_races(name, named) -> None:
    candidates, history, cost = search(SCRIPTS[name], named)
    found, script = incumbent(candidates, history), SCRIPTS[name]
    best = min(script, key=lambda key: (script[key], len(key.split())))
    assert " ".join(sorted(dict(found.settings))) == best
    assert cost(found) == script[best]
    assert len(history) <= 12


@pytest.mark.parametrize("named", [{"fetch": 0.5, "cache": 0.5}, {"cache": 0.6, "fetch": 0.3}])
@pytest.mark.parametrize(
    ("filling_s", "best"), [(0.0, "cache"), (0.5, "cache"), (1.5, "fetch"), (9.0, "fetch")]
)
def test_a_longer_first_pass_counts_over_the_whole_training(named, filling_s, best) -> None:
    script = {"": 1.0, "cache": 0.5, "fetch": 0.58, "cache fetch": 0.57}
    candidates, history, _ = search(script, named, filling_s=filling_s)
    assert incumbent(candidates, history, criteria=OF_TEN_PASSES).levers == {best}


def test_a_lever_that_is_in_for_its_shorter_first_pass_is_no_guess() -> None:
    script = {"": 1.0, "cache": 0.5, "fetch": 0.58, "cache fetch": 0.57}
    candidates, history, _ = search(script, {"cache": 0.6, "fetch": 0.3}, filling_s=1.5)
    at = next(
        at for at in range(len(history))
        if incumbent(candidates, history[:at], criteria=OF_TEN_PASSES).levers == {"fetch"}
    )  # fmt: skip
    assert history[at - 1].verdict is Verdict.DROP  # its steps are slower
    assert not guesses(candidates, history[:at], criteria=OF_TEN_PASSES)
    told = {row.lever: row for row in rows(candidates, history[:at], criteria=OF_TEN_PASSES)}
    assert told["fetch"].why.endswith("its first pass is shorter")


def test_what_costs_more_in_the_first_pass_than_it_saves_later_is_left_out_and_told() -> None:
    script = {"": 1.0, "cache": 0.5}
    candidates, history, _ = search(script, {}, filling_s=6.0)
    assert incumbent(candidates, history, criteria=OF_TEN_PASSES) == Plan()
    (told,) = rows(candidates, history, criteria=OF_TEN_PASSES)
    assert told.reason is Reason.FIRST_PASS
    assert "its first pass takes longer: 0.91x for the whole training" in told.why
    together = replace(history[0], candidate=history[0].candidate.with_lever("workers", 2))
    assert not is_taken_whole(together, OF_TEN_PASSES)
    assert is_taken_whole(replace(together, first_pass_ratio=3.0), OF_TEN_PASSES)
    # A longer training repays it, by the same races.
    assert incumbent(candidates, history, criteria=AcceptanceCriteria(pass_count=100)).settings


def test_what_passes_outside_of_steps_does_not_shrink_with_them() -> None:
    script = {"": 1.0, "cache": 0.9}
    _, (seen, *_), _ = search(script, {}, filling_s=0.8)
    assert seen.whole_ratio(10) == pytest.approx(10 / 9.8)
    assert replace(seen, outside_ratio=1.0).whole_ratio(10) == pytest.approx(20 / 19.8)
    assert is_unpaid(replace(seen, outside_ratio=1.0), OF_TEN_PASSES)


def test_what_a_first_pass_costs_is_not_taken_for_hidden_nor_joined_to_others() -> None:
    candidates = [
        Candidate(
            lever=lever, phases=frozenset({Phase.DATA}), settings=(True,), effect=Effect.EXACT,
            scope=Scope.PROCESS, gain_ratio=50.0, phases_ratio=0.9, bundled=False,
        )
        for lever in ("cache", "fetch", "order")
    ]  # fmt: skip
    history = []
    while asked := propose(candidates, history, criteria=OF_TEN_PASSES):
        fills = "cache" in asked.candidate.levers - asked.baseline.levers
        middle = 1.3 if fills else 1.0
        history.append(
            Comparison(
                baseline=asked.baseline, candidate=asked.candidate, verdict=Verdict.UNDECIDED,
                speedup=Interval(low_ratio=0.8, mid_ratio=middle, high_ratio=2.0),
                first_pass_ratio=3.0 * fills,
            )
        )  # fmt: skip
    assert incumbent(candidates, history, criteria=OF_TEN_PASSES) == Plan()
    assert not [race for race in history if "cache" in race.baseline.levers]
    assert not [race for race in history if race.candidate.levers > {"cache"}]


def test_what_another_lever_took_the_place_of_says_so() -> None:
    script = SCRIPTS["the cache alone, nothing beside workers"]
    candidates, history, _ = search(script, {"workers": 0.6, "cache": 0.3})
    swap = next(
        at for at, race in enumerate(history)
        if dict(race.baseline.settings) == {"workers": 2}
        and dict(race.candidate.settings) == {"cache": True}
    )  # fmt: skip
    told = {row.lever: row for row in rows(candidates, history[: swap + 1])}
    assert (told["cache"].outcome, told["workers"].outcome) == ("kept", "dropped")
    assert told["workers"].why.startswith("cache=True in its place: 2.50x")
    assert told["workers"].setting == 2


@pytest.mark.parametrize("winner", ["cast", "wide"])
def test_a_lever_of_other_phases_is_not_raced_in_the_place_of_another(winner) -> None:
    candidates = [
        Candidate(
            lever=lever, phases=phases, settings=(True,), effect=Effect.EXACT, scope=Scope.STEP,
            gain_ratio=50.0 if lever == winner else 4.0, bundled=False,
        )
        for lever, phases in {
            "cast": frozenset({Phase.FORWARD}),
            "fuse": frozenset({Phase.OPTIMIZER}),
            "wide": frozenset({Phase.FORWARD, Phase.BACKWARD}),
        }.items()
    ]  # fmt: skip
    history = []
    while asked := propose(candidates, history):
        gain = 1.5 if winner in asked.baseline.differing(asked.candidate) else 1.0
        history.append(
            Comparison(
                baseline=asked.baseline, candidate=asked.candidate,
                verdict=Verdict.WIN if gain > 1 else Verdict.DROP,
                speedup=Interval(low_ratio=0.99 * gain, mid_ratio=gain, high_ratio=1.01 * gain),
            )
        )  # fmt: skip
    assert history[0].candidate == Plan().with_lever(winner, True)
    assert not [
        race for race in history
        if set(dict(race.baseline.settings)) - set(dict(race.candidate.settings))
        and race.candidate != Plan()
    ]  # fmt: skip
