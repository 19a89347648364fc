"""batched_fetch: a table in memory is read by the batch; nothing but the time changes."""

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from hasten.instrument.traits import TraitsReader
from hasten.lever import ScriptContext
from hasten.levers.batched_fetch import LEVER, apply
from hasten.loader.sources.offers import OFFERS, why_not_batched
from hasten.records import Traits
from hasten.testing import LAPTOP, fed

TABLE = TensorDataset(torch.arange(6))


def context(traits):
    return ScriptContext(machine=LAPTOP, traits=traits)


def test_is_tried_unless_no_source_reads_such_batches() -> None:
    assert LEVER.settings(context(fed())) == (True,)
    assert LEVER.settings(context(fed(unbatched="nothing reads them"))) == ()
    ours = fed(is_pure=False, unproven="it changes")
    assert LEVER.settings(context(ours)) == (True,)


@pytest.mark.parametrize(
    ("dataset", "details", "why"),
    [
        (TABLE, {}, ""),
        (Subset(TABLE, [1, 2]), {}, ""),
        (TABLE, {"collate_fn": list}, "the loader has a collate_fn of its own"),
        (["a", "b"], {}, "only the code of list can make its items"),
        (ConcatDataset([["a"], ["b"]]), {}, "only the code of list can make its items"),
    ],
)
def test_a_loader_says_why_no_source_reads_its_batches(dataset, details, why) -> None:
    assert why_not_batched(DataLoader(dataset, **details)) == why


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        (Traits(), "no DataLoader"),
        (fed(is_map_style=False), "iterable"),
        (fed(unbatched="only the code of ImageFolder"), "code of ImageFolder"),
    ],
)
def test_says_why_there_is_nothing_to_try(traits, why) -> None:
    assert LEVER.settings(context(traits)) == ()
    assert why in LEVER.why_not(context(traits))


@pytest.mark.parametrize(("worker_count", "is_tried"), [(0, True), (2, False)])
def test_only_a_loader_with_workers_needs_a_proof(worker_count, is_tried) -> None:
    traits = fed(worker_count=worker_count, is_pure=False, unproven="it changes")
    assert bool(LEVER.settings(context(traits))) is is_tried
    assert is_tried or "it changes" in LEVER.why_not(context(traits))


class Picky(Subset):
    """A script's own view, which may do anything."""


class LiveScreen:
    """A training and its switchboard in one: notes who offers."""

    def __init__(self):
        self.offers = []

    def on_loader(self, make):
        return lambda: None

    on_next = on_loader

    def add(self, offer):
        self.offers.append(offer)
        return lambda: self.offers.remove(offer)


def test_offers_its_sources_until_it_is_undone(monkeypatch) -> None:
    engine = LiveScreen()
    monkeypatch.setattr("hasten.levers.batched_fetch.engine_for", lambda training: engine)
    undo = apply(engine, True)
    assert engine.offers == list(OFFERS)
    undo()
    assert engine.offers == []


PROGRAM = r"""
stock = Run().train().close().bits()
for name, switches in {
    "from the start": {0: True}, "in mid-epoch": {3: True}, "and back": {3: True, 6: False},
}.items():
    run = Run()

    def at(step):
        if step in switches:
            run.applied.switch({"batched_fetch": True} if switches[step] else {})

    facts[name] = run.train(at).close().bits() == stock
"""

WRITING = r"""
from hasten.loader.sources import subsets

rows, fetch = [], subsets.ByRows.fetch
subsets.ByRows.fetch = lambda self, indices: rows.append(self.light) or fetch(self, indices)


class Writing(Run):
    def __init__(self):
        super().__init__()
        self.watch.live.assumed = frozenset()

    def train(self, at=lambda step: None):
        data = self.loader.dataset.tensors[0]

        def writes(step):
            at(step)
            data[step] = -data[step]

        return super().train(writes)


Run = Writing
"""
LIGHT = r"""
facts["light alone"] = set(rows) == {True}
"""


@pytest.mark.parametrize(
    ("views", "name"),
    [
        (lambda table: table, "TensorDataset"),
        (lambda table: Subset(ConcatDataset([Subset(table, [0])]), [0]), "TensorDataset"),
        (lambda table: Picky(table, [0]), "Picky"),
    ],
)
def test_a_child_tells_which_dataset_lies_below_the_views_of_torch(views, name) -> None:
    reader = TraitsReader()
    reader.loaded(iter(DataLoader(views(TensorDataset(torch.ones(2))))), None)
    assert reader.found.loader.dataset == name


@pytest.mark.child
def test_trains_to_the_same_bits(training) -> None:
    assert set(training(PROGRAM).values()) == {True}


@pytest.mark.child
def test_trains_to_the_same_bits_where_nothing_is_proven_and_the_loop_writes(training) -> None:
    assert set(training(WRITING + PROGRAM + LIGHT).values()) == {True}
