"""Made cases: thresholds, and what needs several devices or ranks."""

import sys
from dataclasses import replace

import pytest

from hasten.diagnose import Case, Symptom, diagnose
from hasten.diagnose.families import bookkeeping, compiling, devices, pauses
from hasten.records import (
    CheckpointTraits,
    Finding,
    HotLine,
    Phase,
    Place,
    Profile,
    Step,
    Traits,
)

STEP_S = 0.1


@pytest.fixture
def case(machine_of):
    profile = Profile(
        step_s=STEP_S, step_low_s=STEP_S, step_high_s=STEP_S, sample_unit="samples",
        sample_count=8.0, phase_s={Phase.FORWARD: STEP_S}, step_count=9,
    )  # fmt: skip
    step = Step(phase_ns={Phase.FORWARD: int(STEP_S * 1e9)})
    return Case(machine=machine_of(2), profile=profile, steps=(step,) * 8)


def with_found(case, **found):
    return replace(case, found={key.replace("__", "."): value for key, value in found.items()})


def find(case, family, name):
    return next(one for one in family.SYMPTOMS if one.name == name).find(case)


def test_copies_to_several_devices_are_found_by_their_time(case) -> None:
    sick = with_found(case, parallel__device_count=4, parallel__moving_s=[0.03] * 8)
    assert find(sick, devices, "data-parallel").share.mid_ratio == pytest.approx(0.3)
    one = with_found(case, parallel__device_count=1, parallel__moving_s=[0.03] * 8)
    assert find(one, devices, "data-parallel") is None
    cheap = with_found(case, parallel__device_count=4, parallel__moving_s=[0.001] * 8)
    assert find(cheap, devices, "data-parallel") is None


SEARCH = {
    "parallel__searches": True, "parallel__unused_count": 0, "parallel__search_s": [0.004] * 8,
}  # fmt: skip


def test_one_collection_may_be_chance_and_several_are_none(case) -> None:
    once = with_found(case, pauses__collections_s=[0.04, *[0.0] * 7])
    assert find(once, pauses, "gc-pauses") is None
    often = with_found(case, pauses__collections_s=[0.01, 0.0] * 4)
    assert find(often, pauses, "gc-pauses").share.mid_ratio == pytest.approx(0.05)


def test_an_evaluation_beside_the_steps_is_told_as_a_share_of_all_time(case) -> None:
    """Beside a step of 0.1 s, an evaluation of 0.3 s takes three quarters of the time."""
    step = Step(phase_ns={Phase.FORWARD: 100_000_000, Phase.EVALUATION: 300_000_000})
    sick = with_found(case, evaluation__unused_s=[0.3] * 8, evaluation__unused_count=8)
    found = find(replace(sick, steps=(step,) * 8), pauses, "eval-with-grad")
    assert found.share.mid_ratio == pytest.approx(0.75)
    assert found.is_of_all
    assert "they take 75% of the time" in found.message


@pytest.mark.parametrize(("caught_up_ratio", "is_found"), [(None, True), (0.9, True), (0.2, False)])
def test_work_of_the_host_costs_nothing_while_an_accelerator_is_behind(
    case, caught_up_ratio, is_found
) -> None:
    often = with_found(case, pauses__collections_s=[0.01, 0.0] * 4)
    often = replace(often, profile=replace(case.profile, caught_up_ratio=caught_up_ratio))
    assert ("gc-pauses" in {finding.name for finding in diagnose(often)}) == is_found


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({}, True),
        ({"parallel__unused_count": 3}, False),
        ({"parallel__unused_count": None}, False),
        ({"parallel__searches": False}, False),
        ({"parallel__search_s": [0.001] * 8}, False),
    ],
)
def test_a_search_is_found_where_all_were_used_and_it_costs(case, change, is_found) -> None:
    seen = with_found(case, **{**SEARCH, **change})
    assert (find(seen, devices, "unused-parameters-search") is not None) == is_found


EXCHANGE = {
    "parallel__rank_count": 8, "parallel__syncs": [4] * 8, "parallel__exchange_s": 0.01,
    "parallel__exchange_bytes": 2**20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({}, True),
        ({"parallel__rank_count": 1}, False),
        ({"parallel__syncs": [1] * 8}, False),
        ({"parallel__exchange_s": 0.0001}, False),
    ],
)
def test_exchanges_in_every_microstep_are_found_by_their_time(case, change, is_found) -> None:
    seen = find(with_found(case, **{**EXCHANGE, **change}), devices, "sync-every-microstep")
    assert (seen is not None) == is_found
    if seen is not None:
        assert seen.share.mid_ratio == pytest.approx(0.3)
        assert "3.0 MiB more" in seen.message


def test_guards_count_against_compiling_only_where_they_are_a_good_part(case) -> None:
    def seen(count, break_count=0):
        facts = with_found(
            case, compiling__break_count=break_count, stacks__sample_count=300,
            stacks__compiler_sample_count=count, stacks__break_sample_count=count,
            compiling__break_places=[["/a.py", 3]], compiling__break_reason="item()",
        )  # fmt: skip
        return {name: find(facts, compiling, name) for name in ("compile-no-gain", "graph-breaks")}

    assert seen(90)["compile-no-gain"].share.mid_ratio == pytest.approx(0.3)
    assert seen(30)["compile-no-gain"] is None
    assert seen(90, 2)["compile-no-gain"] is None
    assert seen(90, 2)["graph-breaks"].places == (Place(path="/a.py", line=3),)
    assert seen(3, 2)["graph-breaks"] is None
    assert find(case, compiling, "compile-no-gain") is None


def test_steps_that_go_on_compiling_are_found_by_their_share(case) -> None:
    facts = {"compiling__recompile_count": 3, "compiling__recompile_s": 2.0}
    ongoing = with_found(case, **facts, compiling__step_s=[0.05] * 8)
    assert find(ongoing, compiling, "recompiles").share.mid_ratio == pytest.approx(0.5)
    over = with_found(case, **facts, compiling__step_s=[0.0] * 8)
    assert find(over, compiling, "recompiles") is None


@pytest.mark.parametrize(
    ("seconds", "period_s", "is_found"),
    [([0.5, 0.7], 6.0, True), ([0.05, 0.07], 6.0, False), ([0.5], 6.0, False)],
)
def test_checkpoints_are_weighed_against_their_period(case, seconds, period_s, is_found) -> None:
    written = CheckpointTraits(each_s=tuple(seconds), period_s=period_s, period_step_count=60.0)
    traits = Traits(checkpoints=written)
    seen = find(replace(case, traits=traits), pauses, "checkpoint-stall")
    assert (seen is not None) == is_found
    if seen is not None:
        assert "600 ms every 60 steps" in seen.message
        assert seen.share.low_ratio < seen.share.mid_ratio == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("turn_count", "call_count", "phase", "is_found"),
    [
        (512, 2048, "loss", True),
        (24, 2048, "loss", False),  # layers
        (512, 40, "loss", False),  # 750 µs each: real work
        (512, 2048, "data", False),  # a loop over samples is what a data set is
    ],
)
def test_only_many_tiny_calls_are_a_loop(case, turn_count, call_count, phase, is_found) -> None:
    place = Place(path="/train.py", line=7)
    line = {"path": "/train.py", "line": 7, "turn_count": turn_count, "call_count": call_count}
    seen = with_found(
        replace(case, hot_lines=(HotLine(place=place, share_ratio=0.3, phase=phase),)),
        loops__lines=[line], stacks__sample_count=300, stacks__training_sample_count=300,
    )  # fmt: skip
    assert (find(seen, bookkeeping, "python-loops") is not None) == is_found


def test_a_symptom_that_raises_leaves_the_others_alone(case, monkeypatch) -> None:
    def breaks(case):
        raise ZeroDivisionError

    told = Finding(name="told", message="It is slow.", remedy="Make it fast.")
    symptoms = [
        Symptom(name="broken", find=breaks),
        Symptom(name="told", find=lambda case: told),
    ]
    # The package has a function of the name of this module.
    module = sys.modules[diagnose.__module__]
    monkeypatch.setattr(module, "discover", lambda: {one.name: one for one in symptoms})
    assert diagnose(case) == (told,)
