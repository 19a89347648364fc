"""A loader that another thread asks for batches, while the loop draws: as without us."""

import pytest

pytestmark = pytest.mark.child

STRAYS = r"""
import queue, threading
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache
from hasten.loader.sources import gather
from torch.utils.data import TensorDataset

memo._OVERHEAD_NS = -10**12
main = os.getpid()


class Background(threading.Thread):
    def __init__(self, iterator):
        super().__init__(daemon=True)
        self.iterator, self.ready = iterator, queue.Queue(2)
        self.start()
    def run(self):
        for item in self.iterator:
            self.ready.put(item)
        self.ready.put(self)
    def __iter__(self):
        return self
    def __next__(self):
        item = self.ready.get()
        if item is self:
            self.join()
            raise StopIteration
        return item

class LoaderX(DataLoader):
    def __iter__(self):
        return Background(super().__iter__())

class Plain(Numbers):
    def __getitem__(self, i):
        time.sleep(0.001)
        return i, os.getpid() == main, torch.get_num_threads()

class Drawing(Plain):
    def __getitem__(self, i):
        return super().__getitem__(i), torch.rand(()).item()

def table(count):
    return TensorDataset(torch.arange(float(2 * count)).view(count, 2))

def inside(loader):
    return Background(iter(loader))

def outside(loader):
    return Background(loader)

def itself(loader):
    return loader

def run(make, begin, own, **more):
    kind = LoaderX if begin is itself else DataLoader
    loader, seen = kind(make(40), batch_size=2, num_workers=own, **more), []
    for _ in range(3):
        batches = []
        for batch in begin(loader):
            drawn = [torch.rand(()).item() for _ in range(20)]
            batches.append([repr(batch), drawn, repr(get_worker_info()), torch.get_num_threads()])
        seen.append([batches, rng()])
    return seen

kept = dict(num_workers=2, persistent_workers=True)
for begin in (itself, inside, outside):
    for make, own, more in (
        (Plain, 0, {}), (table, 0, {}), (Plain, 2, {}), (Drawing, 2, {}), (table, 2, {}),
        (Drawing, 2, dict(persistent_workers=True)),
    ):
        before = stock(lambda: run(make, begin, own, **more))
        for wanted in (0, own or 1, 3):
            undos = [engine.add(gather.offer), engine.add(Cache(1 << 22).offer)]
            after = ours(lambda: run(make, begin, own, **more), wanted)
            for undo in undos:
                undo()
            name = f"{begin.__name__} {make.__name__} {own} {wanted} {more}"
            facts[name] = True if before == after else f"stock {before} and now {after}"[:1000]
facts["notes"] = engine.notices.notes
"""

MEETING = r"""
import threading
from hasten.loader.sources.source import Stock

asked, drawn = threading.Semaphore(0), threading.Semaphore(0)

class Meets(Numbers):
    def __getitem__(self, i):
        if threading.current_thread() is not threading.main_thread():
            asked.release()
            assert drawn.acquire(timeout=20)
        return torch.tensor([i] * 9)

class Same:
    name, pure, light = "same", False, False
    def __init__(self, loader):
        self.fetch = Stock(loader).fetch

def run(count=6, first_count=0):
    iterator, numbers, seen = iter(DataLoader(Meets(count), batch_size=1)), [], []
    seen += [next(iterator) for _ in range(first_count)]
    thread = threading.Thread(target=lambda: seen.extend(iterator))
    thread.start()
    while thread.is_alive():
        if asked.acquire(timeout=0.05):
            numbers.append(torch.rand(()).item())
            drawn.release()
    thread.join()
    return numbers, [batch.tolist() for batch in seen], rng()

undo = engine.add(Same)
facts["source"] = same(run, None)
undo()
facts["workers"] = same(run, 2)
undo = engine.add(Same)
facts["handed over"] = same(lambda: run(16, first_count=6), 2)
undo()
"""


WHOLE = r"""
import threading

def loop():
    watch.thread = threading.get_ident()
    engine.want(2, redraws=True)
    loader = DataLoader(Who(12), batch_size=3)
    facts["elsewhere"] = [os.getpid() not in plain(batch) for _ in range(2) for batch in loader]

thread = threading.Thread(target=loop)
thread.start()
thread.join()
facts["notes"] = engine.notices.notes
"""


@pytest.mark.slow
def test_other_threads_get_torch_s_batches_and_the_main_one_its_numbers(loaders) -> None:
    facts = loaders(STRAYS)
    notes = facts.pop("notes")
    assert {name: found for name, found in facts.items() if found is not True} == {}
    assert any("in a thread of their own" in note for note in notes)


def test_numbers_drawn_while_another_thread_fetches_are_drawn_once(loaders) -> None:
    assert loaders(MEETING) == {"source": True, "workers": True, "handed over": True}


def test_a_loop_in_a_thread_of_its_own_has_its_workers(loaders) -> None:
    first_looks = [False] * 2
    assert loaders(WHOLE) == {"elsewhere": [*first_looks, *[True] * 6], "notes": []}
