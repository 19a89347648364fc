"""Which source makes the batches of a loader: each offer is asked once for a decision."""

import pytest
import torch
from torch.utils.data import DataLoader

from hasten.loader import random_states
from hasten.loader.notices import Notices
from hasten.loader.proofs import ItemFacts, Permit
from hasten.loader.sources.offered import OfferedSources
from hasten.loader.sources.source import Stock

ROWS = [torch.full((2,), float(index)) for index in range(8)]


class Source:
    """Makes the batches in another way."""

    name = "other"
    pure = False

    def __init__(self, loader, *, light):
        self.light = light
        self._stock = Stock(loader)

    def fetch(self, indices):
        return self._stock.fetch(list(indices))


def offered(**permit):
    return OfferedSources(ItemFacts(permit=Permit(**permit)), Notices())


@pytest.mark.parametrize("light", [True, False])
def test_an_offer_is_made_once_for_a_decision(light) -> None:
    asked = []

    def offer(loader):
        asked.append(loader)
        return Source(loader, light=light)

    loader = DataLoader(ROWS, batch_size=4)
    found = offered().choose(loader, [offer])
    assert [one is not None for one in found] == [light, not light]
    assert asked == [loader]


class Wrong(Source):
    def fetch(self, indices):
        return super().fetch(indices) + 1


class Raising(Source):
    def fetch(self, indices):
        raise ValueError("not such a batch")


@pytest.mark.parametrize(("kind", "is_told"), [(Wrong, True), (Raising, False), (Source, False)])
def test_the_user_is_told_of_a_source_that_was_wrong(kind, is_told) -> None:
    told, notices = [], Notices()
    notices.tell = told.append
    loader = DataLoader(ROWS, batch_size=4)
    sources = OfferedSources(ItemFacts(permit=Permit()), notices)
    _, found = sources.choose(loader, [lambda one: kind(one, light=False)])
    found.fetch([0, 1, 2, 3])
    assert bool(told) is is_told
    assert bool(notices.notes) is (kind is not Source)


def test_the_user_is_told_why_a_source_is_offered_no_more() -> None:
    answers = [Source(DataLoader(ROWS), light=False), "the dataset changes from pass to pass"]
    told, notices = [], Notices()
    notices.tell = told.append
    sources = OfferedSources(ItemFacts(permit=Permit()), notices)

    def offer(loader):
        return answers.pop(0) if answers else ""

    loader = DataLoader(ROWS, batch_size=4)
    sources.choose(loader, [offer])
    assert not told
    sources.choose(loader, [offer])
    assert told == ["other is given up: the dataset changes from pass to pass"]


@pytest.mark.parametrize(("worker_count", "light", "there"), [
    (0, True, True), (0, False, False), (2, True, False), (2, False, False),
])  # fmt: skip
def test_what_is_not_proven_has_a_source_of_the_main_process_alone(
    worker_count, light, there
) -> None:
    loader = DataLoader(ROWS, batch_size=4, num_workers=worker_count)
    found = offered(is_unchanged=False).choose(loader, [lambda one: Source(one, light=light)])
    assert any(found) is there


@pytest.mark.parametrize(("draws", "is_read"), [(False, False), (None, True), (True, True)])
def test_generators_are_read_where_items_may_draw(monkeypatch, draws, is_read) -> None:
    loader = DataLoader(ROWS, batch_size=4)
    checked, _ = offered(draws=draws).choose(loader, [lambda one: Source(one, light=True)])
    for _ in range(2):  # the first ones are compared
        checked.fetch([0, 1, 2, 3])
    reads, read = [], random_states.read
    monkeypatch.setattr(random_states, "read", lambda: reads.append(1) or read())
    checked.fetch([0, 1, 2, 3])
    assert bool(reads) is is_read
