"""Every engine, dataset, number of workers and order: stock's batches, draws and streams."""

import pytest

pytestmark = [pytest.mark.child, pytest.mark.slow]

DATASETS = r"""
import numpy as np
from itertools import count as counting

class Torchs(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(2)

class Pythons(Numbers):
    def __getitem__(self, i):
        return i, random.random(), random.randint(0, 9) * 0

class NumPys(Numbers):
    def __getitem__(self, i):
        return i, np.random.rand(3)

class All(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(1), random.random(), np.random.rand()

class Rarely(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(1).item() if i == 29 else 0.0

class Unevenly(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(1 + i % 3).sum()

class Normals(Numbers):
    def __getitem__(self, i):
        return i, torch.randn(5)

class Counts(Numbers):
    def __init__(self, count):
        super().__init__(count)
        self.calls = 0
    def __getitem__(self, i):
        self.calls += 1
        return i, self.calls

class CountsRarely(Counts):
    def __getitem__(self, i):
        self.calls += i == 29
        return i, self.calls

class Holds(Numbers):
    def __init__(self, count):
        super().__init__(count)
        self.own = np.random.default_rng(3)
    def __getitem__(self, i):
        return i, self.own.random()

OUTSIDE = random.Random(5)
class Names(Numbers):
    def __getitem__(self, i):
        return i, OUTSIDE.random()

class Hides(Numbers):
    def __init__(self, count):
        super().__init__(count)
        numbers = counting()
        self.own = lambda: next(numbers)
    def __getitem__(self, i):
        return i, self.own()

class Told(Numbers):
    def __getitem__(self, i):
        info = get_worker_info()
        return i, -1 if info is None else info.id * 100 + info.num_workers

class Summed(Numbers):
    def __init__(self, count):
        super().__init__(count)
        self.pixels = torch.randn(3, 300_000, generator=torch.Generator().manual_seed(0))
    def __getitem__(self, i):
        return i, (self.pixels * (i + 1)).mean()

def seeds(index):
    np.random.seed(torch.initial_seed() % 2**32 + 1)
    random.seed(index)

class Some(RandomSampler):
    def __iter__(self):
        for i in super().__iter__():
            yield i if random.random() < 0.9 else 0

data = {kind.__name__: kind for kind in (
    Numbers, Torchs, Pythons, NumPys, All, Rarely, Unevenly, Normals, Counts, CountsRarely,
    Holds, Names, Hides, Told, Summed)}
orders = {
    "shuffle": lambda data: dict(shuffle=True),
    "in_order": lambda data: {},
    "generator": lambda data: dict(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "sampler": lambda data: dict(sampler=Some(data)),
}

def everything():
    parts = (torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]

def spelled(value):
    if isinstance(value, (list, tuple)):
        return [spelled(part) for part in value]
    return repr(value.tolist()) if isinstance(value, torch.Tensor) else repr(value)

def run(make, order, workers, loop_draws=False, breaks=False, count=40, **more):
    torch.manual_seed(7), random.seed(7), np.random.seed(7), OUTSIDE.seed(5)
    dataset = make(count)
    more = {**orders[order](dataset), **more}
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, **more)
    seen, weights = [], torch.zeros(3)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            seen.append(spelled(batch))
            if loop_draws:
                weights += torch.rand(3)
            if breaks and number == 5 + epoch:
                break
        seen.append(everything())
    return [*seen, weights.tolist()]

def compare(name, wanted_counts, *args, **more):
    torch.set_num_threads(2)
    before = stock(lambda: run(*args, **more))
    for wanted in wanted_counts:
        after = ours(lambda: run(*args, **more), wanted)
        if before == after:
            facts[f"{name}, wanted {wanted}"] = True
        else:
            place = next(i for i, (b, a) in enumerate(zip(before, after)) if b != a)
            facts[f"{name}, wanted {wanted}"] = (
                f"at {place}: stock {before[place]} and now {after[place]}")
"""

ENGINES = (
    DATASETS
    + r"""
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split
from hasten.loader.cache.cached import Cache
from hasten.loader.sources import gather

def table(count):
    numbers = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 5, generator=numbers), torch.arange(count))

class Decoded(Numbers):
    def __getitem__(self, i):
        return {"x": np.sin(np.arange(64.0) * i), "y": i % 3, "name": str(i)}

def trained(make, order, workers):
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    dataset = make(40)
    net = torch.nn.Linear(5, 3)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, **orders[order](dataset))
    seen = []
    for epoch in range(3):
        for batch in loader:
            seen.append(hashlib.sha256(repr(batch).encode()).hexdigest())
            x = batch["x"][:, :5].float() if isinstance(batch, dict) else batch[0]
            net.zero_grad()
            net(x).square().sum().backward()
            with torch.no_grad():
                for weights in net.parameters():
                    weights -= 0.01 * weights.grad
        seen.append(everything())
    return [*seen, spelled(list(net.state_dict().values()))]

tables = {
    "table": table, "subset": lambda n: Subset(table(2 * n), range(1, 2 * n, 2)),
    "split": lambda n: random_split(table(2 * n), [n, n])[0],
    "concat": lambda n: ConcatDataset([table(n - 9), table(9)]),
    "stack": lambda n: StackDataset(x=table(n).tensors[0], y=table(n).tensors[1]),
}
runs = [(name, make, [gather.offer], None) for name, make in tables.items()]
runs.append(("cache", Decoded, [Cache(1 << 22).offer], None))
runs.append(("cache and workers", Decoded, [Cache(1 << 22).offer], 2))
for name, make, offers, wanted in runs:
    for own in (0, 1, 4):
        for order in ("shuffle", "generator", "sampler"):
            before = stock(lambda: trained(make, order, own))
            undos = [engine.add(offer) for offer in offers]
            after = ours(lambda: trained(make, order, own), wanted)
            for undo in undos:
                undo()
            facts[f"{name} {own} {order}"] = before == after
facts["notes"] = engine.notices.notes
"""
)

KINDS = (
    "Numbers", "Torchs", "Pythons", "NumPys", "All", "Rarely", "Unevenly", "Normals", "Counts",
    "CountsRarely", "Holds", "Names", "Hides", "Told", "Summed",
)  # fmt: skip

MATRIX = (
    DATASETS
    + r"""
for kind in KINDS:
    whole = kind in ("All", "Counts")  # more draws, and more state, than any other kind
    for own in (0, 1, 2, 4) if whole else (0, 2):
        some = {0: orders, 2: orders if whole else ["shuffle", "sampler"]}
        for order in some.get(own, ["shuffle"]):
            wanted = (0, 1, 2, 3) if order == "shuffle" and own != 4 else (0, 1) if own else (1, 2)
            compare(f"{kind} {order} {own}", wanted, data[kind], order, own)
facts["notes"] = engine.notices.notes
"""
)

HABITS = (
    DATASETS
    + r"""
for kind in ("Numbers", "Torchs", "All", "Rarely", "Unevenly", "Counts"):
    for own in (0, 2):
        more = dict(worker_init_fn=seeds) if own else {}
        compare(f"loop draws {kind} {own}", (0, 1, 2), data[kind], "shuffle", own, loop_draws=True)
        compare(f"breaks {kind} {own}", (0, 1, 2), data[kind], "shuffle", own, breaks=True)
        compare(f"init {kind} {own}", (0, 1, 2), data[kind], "shuffle", own, **more)
    compare(f"persistent {kind} 2", (0, 1, 2, 3), data[kind], "shuffle", 2, persistent_workers=True)
    compare(f"persistent breaks {kind} 2", (1, 2), data[kind], "shuffle", 2,
            persistent_workers=True, breaks=True)
    compare(f"prefetch {kind} 2", (1, 2), data[kind], "shuffle", 2, prefetch_factor=5)
    compare(f"one batch {kind} 0", (1, 2), data[kind], "shuffle", 0, count=3)
"""
)


PROVEN = (
    DATASETS
    + r"""
import multiprocessing
from hasten.loader.proof.verdict import LoaderProof

engine._granted, is_drawn = False, True
engine.proofs.of = lambda loader: LoaderProof(draws=is_drawn)
forked = multiprocessing.get_context("fork")
for kind in ("Numbers", "Torchs", "Pythons", "NumPys", "All", "Rarely", "Unevenly", "Normals",
             "Told", "Summed"):
    for is_drawn in (True, False):  # False is wrong for most of them: what they draw is seen
        for own in (2, 4):
            compare(f"{kind} {is_drawn} {own}", (0, 1, 2, 3, 5), data[kind], "shuffle", own)
        compare(f"{kind} {is_drawn} loop draws", (0, 1), data[kind], "shuffle", 2, loop_draws=True)
        compare(f"{kind} {is_drawn} breaks", (0, 1), data[kind], "shuffle", 2, breaks=True)
        compare(f"{kind} {is_drawn} init", (0, 1), data[kind], "shuffle", 2, worker_init_fn=seeds)
        compare(f"{kind} {is_drawn} stay", (0, 1, 3), data[kind], "shuffle", 2,
                persistent_workers=True)
        compare(f"{kind} {is_drawn} context", (0, 1), data[kind], "shuffle", 2,
                multiprocessing_context=forked)
"""
)


@pytest.mark.parametrize("kinds", [KINDS[:4], KINDS[4:8], KINDS[8:12], KINDS[12:]], ids=str)
def test_no_number_of_workers_changes_a_batch_or_a_draw(loaders, kinds) -> None:
    facts = loaders(f"KINDS = {kinds!r}\n{MATRIX}")
    assert {name: found for name, found in facts.items() if found is not True} == {
        "notes": facts["notes"]
    }


def test_nor_do_the_habits_of_scripts(loaders) -> None:
    facts = loaders(HABITS)
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_no_engine_changes_a_batch_a_draw_or_a_weight(loaders) -> None:
    facts = loaders(ENGINES)
    assert [note for note in facts.pop("notes") if "differ" in note] == []
    assert len(facts) == 7 * 3 * 3
    assert [name for name, same in facts.items() if not same] == []


def test_nor_does_a_proof_by_which_workers_are_replaced_at_once(loaders) -> None:
    facts = loaders(PROVEN)
    assert {name: found for name, found in facts.items() if found is not True} == {}
