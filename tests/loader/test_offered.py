"""Which source makes the batches of a loader: each offer is asked once for a decision."""

import pytest
import torch
from torch.utils.data import DataLoader

from hasten.loader import random_states
from hasten.loader.item_facts import ItemFacts
from hasten.loader.notices import Notices
from hasten.loader.proofs import Permit
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
