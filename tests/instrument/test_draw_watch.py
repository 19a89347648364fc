"""Who draws random numbers: the items of the loader that feeds the loop, or the loop."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hasten.instrument.traits import TraitsReader  # noqa: E402

ROWS = TensorDataset(torch.arange(64.0))


class Noisy(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.randn(())


def read(loader, *, batch_count, before=None, loop_draws=False):
    """Return whether the items draw and whether the loop does, as a reader sees it."""
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


def test_passes_of_one_batch_leave_it_open() -> None:
    assert read(DataLoader(ROWS, batch_size=64, shuffle=True), batch_count=8) == (None, None)
