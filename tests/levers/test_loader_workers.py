"""loader_workers: as many as hide the fetching; samples, order and draws stay."""

from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers.loader_workers import LEVER
from hasten.records import Phase
from hasten.testing import LAPTOP, SERVER, fed, sample_profile


def context(data_ratio=0.5, machine=SERVER, **loader):
    profile = sample_profile({Phase.DATA: data_ratio, Phase.FORWARD: 1 - data_ratio})
    return ScriptContext(machine=machine, baseline=profile, traits=fed(**loader))


@pytest.mark.parametrize(("data_ratio", "first"), [(0.1, 1), (0.5, 2), (0.7, 3), (0.88, 9)])
def test_proposes_first_as_many_as_hide_the_fetching(data_ratio, first) -> None:
    assert LEVER.settings(context(data_ratio))[0] == first


def test_workers_that_are_there_already_count_in() -> None:
    assert LEVER.settings(context(0.7, worker_count=2))[0] == 8


def test_never_proposes_more_than_cores_to_items_that_compute() -> None:
    assert LEVER.settings(context(0.99, machine=LAPTOP)) == (4, 3)
    waiting = context(0.99, machine=LAPTOP, fetch_cpu_ratio=0.1)
    assert LEVER.settings(waiting)[0] > 8


def test_keeping_workers_between_epochs_is_worth_a_trial_of_its_own() -> None:
    assert 2 in LEVER.settings(context(0.3, worker_count=2))
    assert 2 not in LEVER.settings(context(0.01, worker_count=2, is_persistent=True))[2:]


def test_says_why_there_is_nothing_to_try() -> None:
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP))
        == "the loop takes its batches from no DataLoader"
    )
    assert "iterable" in LEVER.why_not(context(is_map_style=False))
    unseen = replace(context(machine=LAPTOP), baseline=None)
    assert LEVER.settings(unseen) == ()
    assert "no profile" in LEVER.why_not(unseen)


def test_proposes_only_numbers_whose_batches_are_the_script_s_own() -> None:
    in_turn = context(0.7, draws=True, has_own_order=False)
    assert LEVER.settings(in_turn)
    in_turn = replace(in_turn, traits=replace(in_turn.traits, loop_draws=True))
    assert LEVER.settings(in_turn) == ()
    assert "alternate with the loop's" in LEVER.why_not(in_turn)
    assert LEVER.settings(context(0.7, has_own_order=True)) == ()
    assert max(LEVER.settings(context(0.7, worker_count=2, draws=True))) == 2
    fixed = context(0.7, worker_count=2, draws=True, is_persistent=True)
    assert LEVER.settings(fixed) == ()
    assert (
        LEVER.why_not(fixed) == "more workers than the script has would draw other random numbers"
    )


def test_a_loop_that_does_not_wait_costs_no_trial() -> None:
    assert LEVER.settings(context(0.01)) == ()
    assert "not the bottleneck" in LEVER.why_not(context(0.01))


def test_foretells_what_a_number_gives() -> None:
    assert LEVER.forecast(context(0.5), 2) == pytest.approx(2.0, rel=0.01)


PROGRAM = r"""
stock = Run().train().close().bits()
for name, switches in {
    "from the start": {0: 2}, "in mid-epoch": {3: 2}, "and back": {3: 1, 6: None, 9: 2},
}.items():
    run = Run()

    def at(step):
        if step in switches:
            count = switches[step]
            run.applied.switch({"loader_workers": count} if count else {})

    facts[name] = run.train(at).close().bits() == stock
"""


@pytest.mark.child
def test_a_dataset_that_draws_nothing_trains_to_the_same_bits(training) -> None:
    assert set(training(PROGRAM).values()) == {True}
