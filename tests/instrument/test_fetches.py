"""How long a batch takes, also in the workers of the script's own loader."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.instrument.fetches import FetchClock
from hasten.records import LoaderTraits

LOADER = LoaderTraits(worker_count=0, is_map_style=True)


class Fetcher:
    def __init__(self, dataset, inner=None):
        self.dataset, self.inner = dataset, inner

    def fetch(self, indices):
        return self.inner.fetch(indices) if self.inner else sum(indices)


@pytest.fixture
def clock(monkeypatch):
    clock = FetchClock()
    monkeypatch.setattr(Fetcher, "fetch", clock.timed(Fetcher.fetch))
    return clock


def test_knows_nothing_of_a_dataset_that_nobody_read(clock) -> None:
    assert clock.add(id(clock), LOADER) == LOADER


def test_tells_seconds_of_a_batch_and_the_share_that_was_computed(clock) -> None:
    data, other = [1], [2]
    assert Fetcher(data).fetch([1, 2]) == 3
    first = clock.add(id(data), LOADER)
    assert first.fetch_s > 0
    assert 0 <= first.fetch_cpu_ratio <= 1
    Fetcher(other).fetch([1])
    assert clock.add(id(data), LOADER) == first
    Fetcher(data).fetch(range(100_000))
    assert clock.add(id(data), LOADER).fetch_s != first.fetch_s  # only the warm one


def test_a_dataset_that_reads_another_one_is_charged_with_it(clock) -> None:
    inner, outer = [1], [2]
    assert Fetcher(outer, Fetcher(inner)).fetch([4]) == 4
    assert clock.add(id(inner), LOADER) == LOADER
    assert clock.add(id(outer), LOADER).fetch_s


def test_a_batch_that_raised_is_not_counted(clock) -> None:
    data = [1]
    with pytest.raises(TypeError):
        Fetcher(data).fetch(None)
    assert clock.add(id(data), LOADER) == LOADER
    assert Fetcher(data).fetch([1]) == 1
    assert clock.add(id(data), LOADER).fetch_s


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.child
def test_forked_workers_write_what_this_process_reads(monkeypatch) -> None:
    from torch.utils.data._utils import fetch

    clock, data = FetchClock(), Numbers()
    monkeypatch.setattr(
        fetch._MapDatasetFetcher, "fetch", clock.timed(fetch._MapDatasetFetcher.fetch)
    )
    loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert clock.add(id(data), LOADER).fetch_s > 0


@pytest.mark.slow
@pytest.mark.child
def test_a_trial_tells_what_a_batch_takes_unless_its_workers_are_spawned(trial) -> None:
    for name in ("plain", "fork workers", "kept workers"):
        loader = trial(name).facts.traits.loader
        assert loader.fetch_s > 0
        assert 0 <= loader.fetch_cpu_ratio <= 1
        assert loader.step_batch_count == 1
        assert loader.pass_batch_count > 0
        assert loader.batch_bytes > 0
    assert trial("spawn workers").facts.traits.loader.fetch_s is None
    assert trial("accumulation").facts.traits.loader.step_batch_count == 4
