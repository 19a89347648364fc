"""DistributedDataParallel with one rank, in this process."""

from types import SimpleNamespace

import pytest

from hasten.instrument.examine.parallel import Parallel

torch = pytest.importorskip("torch")
dist = torch.distributed


class Net(torch.nn.Module):
    def __init__(self, *, skips):
        super().__init__()
        self.used, self.skipped = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self._skips = skips

    def forward(self, rows):
        return self.used(rows) if self._skips else self.skipped(self.used(rows))


@pytest.fixture
def rank():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def watched(module, *, micro_count=1):
    """Return what is found in six steps of a module."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    examiner = Parallel(SimpleNamespace())
    for _ in range(6):
        for _ in range(micro_count):
            examiner.called(module, (), {})
            module(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        examiner.ended()
    return examiner.end()


@pytest.mark.filterwarnings("ignore:find_unused_parameters")
@pytest.mark.parametrize(("skips", "unused_count"), [(False, 0), (True, 2)])
def test_a_search_is_timed_and_unused_parameters_are_counted(rank, skips, unused_count) -> None:
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp._post_forward
    module = ddp(Net(skips=skips), find_unused_parameters=True)
    found = watched(module)
    assert found["searches"]
    assert found["unused_count"] == unused_count
    assert len(found["search_s"]) == 6
    assert min(found["search_s"]) > 0
    assert ddp._post_forward is original
    assert all(not p._post_accumulate_grad_hooks for p in module.parameters())


def test_each_exchange_of_a_step_is_counted(rank) -> None:
    module = torch.nn.parallel.DistributedDataParallel(Net(skips=False))
    found = watched(module, micro_count=3)
    assert found["syncs"] == [3] * 6
    assert (found["rank_count"], found["searches"]) == (1, False)
    assert found["exchange_bytes"] == 4 * 2 * (4 * 4 + 4)


def test_a_model_by_itself_has_nothing_to_tell() -> None:
    assert watched(Net(skips=False)) == {}
