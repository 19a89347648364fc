"""Whatever number of workers fetches: stock's batches, in stock's order, with stock's draws."""

import pytest

pytestmark = pytest.mark.child

KINDS = (
    "in_order", "shuffle", "generator", "random_sampler", "eager_sampler", "lazy_sampler",
    "batch_sampler", "drop_last", "single",
)  # fmt: skip
OWN = ("0", "2", "kept")

COMBINATIONS = r"""
class Eager:
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __iter__(self): return iter(torch.randperm(self.count).tolist())

class Lazy(Eager):
    def __iter__(self):
        yield from torch.randperm(self.count).tolist()

class EagerBatches(Eager):
    def __iter__(self):
        return iter(torch.randperm(self.count).view(-1, 3).tolist())

data = Numbers(12)
kinds = {
    "in_order": lambda: dict(batch_size=3),
    "shuffle": lambda: dict(batch_size=3, shuffle=True),
    "generator": lambda: dict(
        batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "random_sampler": lambda: dict(
        batch_size=3, sampler=RandomSampler(data, replacement=True, num_samples=9)),
    "eager_sampler": lambda: dict(batch_size=None, sampler=Eager(12)),
    "lazy_sampler": lambda: dict(batch_size=4, sampler=Lazy(12)),
    "batch_sampler": lambda: dict(batch_sampler=EagerBatches(12)),
    "drop_last": lambda: dict(batch_size=5, shuffle=True, drop_last=True),
    "single": lambda: dict(batch_size=None, shuffle=True),
}
owns = {"0": {}, "2": {"num_workers": 2}, "kept": {"num_workers": 2, "persistent_workers": True}}
for kind, options in kinds.items():
    for own, workers in owns.items():
        run = lambda: epochs(DataLoader(data, **options(), **workers))
        before = stock(run)
        for wanted in (0, 1, 2, None):
            after = ours(run, wanted)
            facts[f"{kind} {own} {wanted}"] = (
                True if before == after else f"stock {before} and now {after}")
"""

SCOPES = r"""
data = Numbers(24)
schedules = {
    "more": {(0, 2): 2},
    "away and back": {(0, 1): 2, (0, 3): None},
    "twice before it is drained": {(0, 1): 2, (0, 2): 1},
    "there and back at once": {(0, 1): 2, (0, 2): None, (0, 3): 1, (0, 4): None},
    "one, then none": {(0, 1): 1, (1, 0): 0, (2, 3): None},
    "over the end of an epoch": {(0, 7): 2, (1, 7): None, (2, 0): 1},
    "in each epoch": {(0, 4): 1, (1, 4): 2, (2, 4): 1},
}
owns = {"0": {}, "2": {"num_workers": 2}, "kept": {"num_workers": 2, "persistent_workers": True}}
for own, workers in owns.items():
    before = stock(lambda: epochs(DataLoader(data, batch_size=3, shuffle=True, **workers), 4))
    for name, at in schedules.items():
        for first in (None, 1):
            run = lambda: epochs(DataLoader(data, batch_size=3, shuffle=True, **workers), 4, at)
            after = ours(run, first)
            facts[f"{name} {own} {first}"] = (
                True if before == after else f"stock {before} and now {after}")
"""


@pytest.fixture(scope="module")
def combinations(loaders):
    return loaders(COMBINATIONS)


@pytest.fixture(scope="module")
def switches(loaders):
    return loaders(SCOPES)


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_order_and_draws_are_those_of_stock_in_every_epoch(combinations, kind, own) -> None:
    for wanted in (0, 1, 2, None):
        assert combinations[f"{kind} {own} {wanted}"] is True, wanted


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "schedule",
    [
        "more", "away and back", "twice before it is drained", "there and back at once",
        "one, then none", "over the end of an epoch", "in each epoch",
    ],
)  # fmt: skip
def test_another_number_in_mid_epoch_loses_repeats_and_reorders_nothing(
    switches, schedule, own
) -> None:
    for first in (None, 1):
        assert switches[f"{schedule} {own} {first}"] is True, first


LETS_GO = r"""
class Scaled(Draws):
    def __getitem__(self, i):
        return self.scale * i + torch.rand(()).item()


def run():
    loader = DataLoader(Scaled(12), batch_size=3, shuffle=True, num_workers=2,
                        persistent_workers=True)
    seen = epochs(loader, 2)
    loader._iterator._shutdown_workers()
    loader._iterator = None
    loader.dataset.scale = -1
    return seen + epochs(loader, 2)
facts = {str(wanted): same(run, wanted) for wanted in (0, 1, 2, 4)}
"""


@pytest.mark.child
def test_workers_that_stay_and_that_the_script_lets_go_begin_again_as_torchs_do(loaders) -> None:
    assert loaders(LETS_GO) == dict.fromkeys(("0", "1", "2", "4"), True)


MANY = r"""
import multiprocessing

def run():
    held = [DataLoader(Numbers(), batch_size=3, num_workers=2) for _ in range(7)]
    seen, counts = [], []
    for _ in range(2):
        for loader in held:
            seen += epochs(loader, 1)
            counts.append(len(multiprocessing.active_children()))
    counted.append(max(counts))
    return seen

counted = []
facts = {"same": same(run, 2), "count": max(counted)}
"""


@pytest.mark.child
def test_of_many_loaders_only_the_last_keep_their_workers(loaders) -> None:
    seen = loaders(MANY)
    assert seen == {"same": True, "count": 2 * (4 + 1)}
