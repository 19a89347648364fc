"""A trial of a cache times what later passes take; a real run never repeats a batch."""

import pytest

pytestmark = pytest.mark.child

BEGIN = r"""
import time
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache
from hasten.loader.cache.memo import Memo
from hasten.loader.cache_warmup import CacheWarmups

memo._OVERHEAD_NS, memo._LOOK_SHARE_RATIO = -10**12, 1e9  # none is too cheap to be kept
"""

PROGRAM = (
    BEGIN
    + r"""
class Pairs(Numbers):
    def __getitem__(self, i):
        return torch.tensor([i, i * i])

def seen(rehearses, workers=0):
    torch.manual_seed(7)
    engine.warmups = CacheWarmups() if rehearses else None
    undo = engine.add(Cache(1 << 24).offer)
    loader = DataLoader(Pairs(1202), batch_size=4, shuffle=True)
    batches = [batch[:, 0].tolist() for batch in loader]
    undo()
    engine.warmups = None
    return batches

real, trial = seen(False), seen(True)
facts["real"] = sorted(sum(real, [])) == list(range(1202))
facts["lengths"] = [len(batch) for batch in trial] == [len(batch) for batch in real]
facts["begins alike"] = trial[:4] == real[:4]
facts["comes again"] = len({str(batch) for batch in trial}) < len(trial) // 2
facts["notes"] = engine.notices.notes
"""
)


def test_the_first_batches_come_again_in_a_trial_only(loaders) -> None:
    assert loaders(PROGRAM) == {
        "real": True, "lengths": True, "begins alike": True, "comes again": True, "notes": []
    }  # fmt: skip


LARGER = (
    BEGIN
    + r"""
class Large(Numbers):
    def __getitem__(self, i):
        return torch.full((4096,), i)  # 32 KiB

engine.warmups = CacheWarmups()
cache = Cache(16 << 20)  # holds about 500 of 2000
undo = engine.add(cache.offer)
loader = DataLoader(Large(2000), batch_size=10, shuffle=True)
used, use = [], Memo._use
Memo._use = lambda self, build, make: used.append(1) or use(self, build, make)
lend = Memo.lend
Memo.lend = lambda self, names: (lent := lend(self, names)) and used.extend(names) or lent
begun = iter(loader)
next(begun)
used.clear()
for _ in range(100):
    next(begun)
undo()
(rehearsal,) = engine.warmups._done
facts["ratio"] = rehearsal._kept_ratio
facts["used"] = len(used) / 1000
facts["length"] = len(list(loader)) == len(loader)
facts["held once"] = len(engine.warmups._done)
facts["notes"] = engine.notices.notes
"""
)


def test_of_a_dataset_that_does_not_fit_as_much_is_kept_as_will_be(loaders) -> None:
    facts = loaders(LARGER)
    assert facts["notes"] == []
    assert 0.2 < facts["ratio"] < 0.3
    assert facts["used"] == pytest.approx(facts["ratio"], abs=0.05)
    assert facts["length"]
    assert facts["held once"] == 1


SLOW = (
    BEGIN
    + r"""
class Slow(Numbers):
    def __getitem__(self, i):
        for _ in range(20_000):
            pass
        return torch.tensor([i, i * i])

def longest(passes=3):
    found = []
    for _ in range(passes):
        begun_s = time.perf_counter()
        for _ in loader:
            found.append(time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
    return found

engine.warmups = CacheWarmups()
undo = engine.add(Cache(1 << 24).offer)
loader = DataLoader(Slow(1000), batch_size=10, shuffle=True)
found = longest()
facts["first"] = found[0]
facts["later"] = sorted(found[1:])[-5]
facts["notes"] = engine.notices.notes
facts["first pass"] = engine.warmups.cost_s()[0]
undo()
"""
)


@pytest.mark.measures
def test_later_passes_of_a_trial_make_nothing_and_the_first_is_counted(loaders) -> None:
    facts = loaders(SLOW)
    assert facts["notes"] == []
    assert facts["later"] < facts["first"] / 10  # 64 batches were made before the first one
    assert facts["first pass"] == pytest.approx(facts["first"] * 100 / 64, rel=0.4)


GIVEN_UP = (
    BEGIN
    + r"""
class Keeps(Numbers):
    def __init__(self, n):
        super().__init__(n)
        self.kept = {}

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = torch.tensor([i, i * i])
        return self.kept[i]

engine.warmups = CacheWarmups()
undo = engine.add(Cache(1 << 24).offer)
loader = DataLoader(Keeps(200), batch_size=4)
facts["own order"] = [i for batch in loader for i in batch[:, 0].tolist()] == list(range(200))
facts["cost"] = engine.warmups.cost_s()[0]
undo()
"""
)


def test_where_nothing_is_kept_nothing_comes_again(loaders) -> None:
    assert loaders(GIVEN_UP) == {"own order": True, "cost": 0.0}


WORKERS = (
    BEGIN
    + r"""
class Threads(Numbers):
    def __getitem__(self, i):
        return torch.tensor([i, torch.get_num_threads()])

import multiprocessing

made, make = multiprocessing.Value("i", 0), Memo._make

def counted(self, *given, **more):
    with made:
        made.value += 1
    return make(self, *given, **more)

Memo._make = counted
torch.set_num_threads(2)
engine.warmups = CacheWarmups()
cache = Cache(1 << 24)
undo = engine.add(cache.offer)
loader = DataLoader(Threads(400), batch_size=4, num_workers=2)
batches = list(loader)
facts["threads"] = sorted({n for batch in batches for n in batch[:, 1].tolist()})
facts["length"] = len(batches)
facts["found"] = made.value < 300  # 256 of them when the window was filled
undo()
"""
)


def test_what_workers_read_is_made_ready_as_workers_would(loaders) -> None:
    assert loaders(WORKERS) == {"threads": [1], "length": 100, "found": True}
