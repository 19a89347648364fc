"""What the script's own samplers give reaches its dataset as it is, and nobody asks them more."""

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from hasten.loader.indices import foreseen

pytestmark = pytest.mark.child

KINDS = r"""
import numpy as np
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache
from hasten.loader.sources import arrays, gather
from torch.utils.data import SubsetRandomSampler, TensorDataset

memo._OVERHEAD_NS = -10**12


class Rows(Dataset):
    def __init__(self):
        self.x = torch.arange(200.0).view(100, 2)
    def __len__(self):
        return 100
    def __getitem__(self, rows):
        return self.x.index_select(0, rows)

class Kinds(Numbers):
    def __getitem__(self, i):
        return type(i).__name__, int(i)

class Batches(Numbers):
    def __getitems__(self, rows):
        return [type(rows).__name__, *(type(i).__name__ for i in rows)]

class Given:
    def __init__(self, make, count):
        self.make, self.count = make, count
    def __len__(self):
        return self.count
    def __iter__(self):
        return (self.make([3 * i, 3 * i + 1, 3 * i + 2]) for i in range(self.count))

def table():
    return TensorDataset(torch.arange(60.0).view(30, 2))

rows = torch.arange(100).split(20)
cases = {
    "tensors": (Rows, dict(batch_size=None, sampler=rows)),
    "foreseen tensors": (Rows, dict(batch_size=None, sampler=SubsetRandomSampler(rows))),
    "scalars": (Kinds, dict(batch_size=None, sampler=np.arange(9))),
    "tensor scalars": (Kinds, dict(batch_size=None, sampler=torch.arange(9))),
    "numpy in lists": (Kinds, dict(batch_size=2, sampler=np.arange(9))),
}
for name, make in {"array": np.array, "tensor": torch.tensor, "tuple": tuple, "set": set,
                   "keys": dict.fromkeys}.items():
    for data in (Kinds, Batches, table):
        cases[f"{name} {data.__name__}"] = (data, dict(batch_sampler=Given(make, 10)))
cases["iterators"] = (Kinds, dict(batch_sampler=Given(iter, 10)))

def run(make, options, own):
    collate = {"collate_fn": list} if make is Batches else {}
    loader = DataLoader(make(), num_workers=own, **options, **collate)
    return [[repr(batch) for batch in loader] for _ in range(3)]

for name, (make, options) in cases.items():
    for own in (0,) if name in ("iterators",) else (0, 2):
        try:
            before = stock(lambda: run(make, options, own))
        except Exception as error:
            facts[f"{name} {own}"] = f"stock raised {error}"
            continue
        for offers in ([], [gather.offer, arrays.offer], [Cache(1 << 22).offer]):
            undos = [engine.add(offer) for offer in offers]
            for wanted in (0, 2):
                try:
                    after = ours(lambda: run(make, options, own), wanted)
                except Exception as error:
                    after = repr(error)
                label = f"{name} {own} {len(offers)} {wanted}"
                facts[label] = True if before == after else f"stock {before} and now {after}"
            for undo in undos:
                undo()
"""

LENGTHS = r"""
class Lengths:
    def __init__(self, length):
        self.length = length
    def __iter__(self):
        return iter([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    def __len__(self):
        return self.length()

def raises():
    raise ValueError("nobody knows")

def draws():
    return 5 + int(torch.rand(()) < 0)

def run(length, own):
    loader = DataLoader(Numbers(), batch_sampler=Lengths(length), num_workers=own)
    return epochs(loader)

for length in (raises, draws):
    for own in (0, 2):
        for wanted in (0, 1, 2, 3):
            facts[f"{length.__name__} {own} {wanted}"] = same(lambda: run(length, own), wanted)
"""

FAILING = r"""
class Once:
    def __init__(self, error): self.error, self.count = error, 0
    def __len__(self): return 12
    def __iter__(self):
        self.count += 1
        if self.count > 2:
            torch.rand(1)
            raise self.error("no order")
        return iter(range(12))

def run(error, own):
    sampler = Once(error)
    loader, seen = DataLoader(Numbers(), batch_size=3, sampler=sampler, num_workers=own), []
    for _ in range(3):
        try:
            seen.append([plain(batch) for batch in loader])
        except error as told:
            seen.append([str(told), sampler.count, rng()])
    return seen

for error in (AttributeError, TypeError, ValueError):
    for own in (0, 2):
        facts[f"{error.__name__} {own}"] = same(lambda: run(error, own), 2)
"""

OWN = r"""
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler

def run(kind, own, draws):
    g = torch.Generator().manual_seed(3)
    samplers = {
        "subset": lambda: SubsetRandomSampler(range(24), generator=g),
        "weighted": lambda: WeightedRandomSampler([1.0] * 24, 24, generator=g),
    }
    loader = DataLoader(Numbers(24), batch_size=3, sampler=samplers[kind](), num_workers=own)
    seen = []
    for _ in range(4):
        seen.append([plain(batch) for batch in loader])
        time.sleep(0.1)
        seen.append(torch.rand(1, generator=g).item() if draws else None)
    return seen, g.get_state().tolist()

for kind in ("subset", "weighted"):
    for own in (0, 2):
        for wanted in (1, 2):
            for draws in (False, True):
                facts[f"{kind} {own} {wanted} {draws}"] = same(
                    lambda: run(kind, own, draws), wanted)
"""

GROWING = r"""
def run(make, own, drop_last, shuffle, sizes):
    loader = DataLoader(
        make(61), batch_size=2, num_workers=own, drop_last=drop_last, shuffle=shuffle)
    seen = []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            seen.append([plain(part) for part in batch])
            if (epoch, number) in sizes:
                loader.batch_sampler.batch_size = sizes[epoch, number]
    return seen, rng()

sizes = {(0, 7): 5, (1, 2): 1, (1, 9): 4, (2, 4): 9, (2, 5): 2}
for make in (Numbers, Draws):
    for own in (0, 2):
        for wanted in (0, 1, 2):
            for drop_last in (False, True):
                for shuffle in (False, True):
                    facts[f"{make.__name__} {own} {wanted} {drop_last} {shuffle}"] = same(
                        lambda: run(make, own, drop_last, shuffle, sizes), wanted)
"""


@pytest.mark.slow
def test_a_generator_that_a_sampler_holds_is_drawn_from_as_torch_would(loaders) -> None:
    facts = loaders(OWN)
    assert {name: found for name, found in facts.items() if found is not True} == {}


@pytest.mark.slow
def test_a_batch_size_that_grows_in_mid_pass_grows_at_the_same_batch(loaders) -> None:
    facts = loaders(GROWING)
    assert {name: found for name, found in facts.items() if found is not True} == {}


@pytest.mark.slow
def test_arrays_tensors_and_other_batches_of_a_sampler_stay_what_they_are(loaders) -> None:
    facts = loaders(KINDS)
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_a_sampler_that_raises_is_started_as_often_as_by_torch(loaders) -> None:
    facts = loaders(FAILING)
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_the_length_of_a_sampler_of_the_script_s_is_not_asked_for(loaders) -> None:
    facts = loaders(LENGTHS)
    assert {name: found for name, found in facts.items() if found is not True} == {}


RESEEDED = r"""
from torch.utils.data import RandomSampler

class SeedableRandomSampler(RandomSampler):
    __module__ = "accelerate.data_loader"
    epoch = 0
    def __iter__(self):
        self.generator = self.generator or torch.Generator()
        self.generator.manual_seed(40 + self.epoch)
        yield from super().__iter__()
        self.epoch += 1

def run(own):
    sampler = SeedableRandomSampler(range(9))
    loader = DataLoader(Numbers(), batch_size=2, sampler=sampler, num_workers=own)
    seen = []
    for _ in range(3):
        for batch in loader:
            state = () if sampler.generator is None else sampler.generator.get_state().sum().item()
            seen.append((batch.tolist(), sampler.epoch, state))
    return seen, sampler.epoch

for own in (0, 2):
    for wanted in (0, 1, 2, 3):
        facts[f"{own} {wanted}"] = same(lambda: run(own), wanted)
"""


def test_a_sampler_that_is_seeded_for_each_pass_gives_the_same_in_workers(loaders) -> None:
    """Also its generator and its count of passes are, after each batch, as without us."""
    facts = loaders(RESEEDED)
    assert len(facts) == 8
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_of_a_sampler_that_is_seeded_for_each_pass_all_but_the_last_batch_is_foreseen() -> None:
    kind = type("SeedableRandomSampler", (RandomSampler,), {"__module__": "accelerate.data_loader"})
    own = type("SeedableRandomSampler", (RandomSampler,), {})
    assert foreseen(DataLoader(range(8), 2, sampler=kind(range(8)))) == 3
    assert foreseen(DataLoader(range(8), 2, sampler=own(range(8)))) == 0


def test_a_sampler_that_draws_again_in_the_middle_of_a_pass_is_not_foreseen() -> None:
    rows, own = range(8), torch.Generator()
    again = RandomSampler(rows, num_samples=24, generator=own)
    assert foreseen(DataLoader(rows, 2, sampler=again)) == 0
    assert foreseen(DataLoader(rows, 2, shuffle=True, generator=own)) == 3
