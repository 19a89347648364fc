"""Who draws random numbers: the items of the loader that feeds the loop, or the loop."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hasten.instrument.traits import TraitsReader  # noqa: E402

ROWS = TensorDataset(torch.arange(64.0))


class Noisy(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.randn(())


def read(loader, *, batch_count, before=None, after=None, loop_draws=False):
    """Return whether the items draw and whether the loop does, as a reader sees it.

    Args:
        loader: feeds the loop.
        batch_count: how many batches it gives, in as many passes as that takes.
        before: a loader of which one batch is looked at before.
        after: one that evaluates after each pass.
        loop_draws: the loop draws, too.
    """
    reader, left_count = TraitsReader(), batch_count
    if before is not None:
        fetch(reader, iter(before))
        torch.randn(3)  # a model is made
    while left_count:
        iterator = iter(loader)
        for _ in range(min(left_count, len(loader))):
            fetch(reader, iterator)
            reader.backward(None)
            left_count -= 1
            if loop_draws:
                torch.randn(3)
        for iterator in () if after is None else (iter(after),):
            for _ in range(len(after)):
                fetch(reader, iterator)
    found = reader.read()
    return found.loader.draws, found.loop_draws


def fetch(reader, iterator):
    reader.loading()
    reader.loaded(iterator, next(iterator))


@pytest.mark.parametrize("batch_size", [4, 32])
@pytest.mark.parametrize("loop_draws", [False, True])
@pytest.mark.parametrize("kind", [TensorDataset, Noisy])
def test_draws_of_the_items_and_of_the_loop_are_told_apart(kind, loop_draws, batch_size) -> None:
    """Passes of two batches, too: what a loader draws for a pass is neither's."""
    loader = DataLoader(kind(torch.arange(64.0)), batch_size=batch_size, shuffle=True)
    seen = read(loader, batch_count=8, loop_draws=loop_draws)
    assert seen == (kind is Noisy, loop_draws)


def test_a_batch_that_is_looked_at_before_the_training_says_nothing_of_its_loader() -> None:
    loader = DataLoader(ROWS, batch_size=4, shuffle=True)
    assert read(loader, batch_count=6, before=DataLoader(ROWS, batch_size=4)) == (False, False)
    assert read(loader, batch_count=6, before=DataLoader(Noisy(torch.ones(9)))) == (False, False)
    noisy = DataLoader(Noisy(torch.ones(64)), batch_size=4)
    assert read(noisy, batch_count=6, before=DataLoader(ROWS, batch_size=4)) == (True, False)


@pytest.mark.parametrize("kind", [TensorDataset, Noisy])
def test_a_loader_that_evaluates_between_short_passes_says_nothing_of_the_other(kind) -> None:
    other = Noisy if kind is TensorDataset else TensorDataset
    loader = DataLoader(kind(torch.ones(64)), batch_size=32, shuffle=True)
    evaluates = DataLoader(other(torch.ones(64)), batch_size=4)
    seen = read(loader, batch_count=8, after=evaluates, loop_draws=True)
    assert seen == (kind is Noisy, True)


def test_passes_of_one_batch_leave_it_open() -> None:
    assert read(DataLoader(ROWS, batch_size=64, shuffle=True), batch_count=8) == (None, None)


class Fetches:
    """A clock that has seen nothing."""

    def add(self, dataset, loader):
        return loader


@pytest.mark.parametrize("worker_count", [0, 1])
def test_what_the_code_says_of_draws_counts_only_where_nobody_has_seen(worker_count) -> None:
    loader = DataLoader(ROWS, batch_size=8, num_workers=worker_count)
    for batch_count in (1, 6):
        reader = TraitsReader(Fetches())
        reader.about_data = lambda dataset, found: replace(found, draws=True)
        iterator = iter(loader)
        for _ in range(batch_count):
            fetch(reader, iterator)
        is_seen = batch_count > 1 and not worker_count
        assert reader.read().loader.draws is (not is_seen)
