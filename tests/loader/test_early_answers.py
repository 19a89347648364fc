"""The next batch is seen before the script asks for it, and the script notices nothing."""

import pytest

pytestmark = pytest.mark.child

PROGRAM = r"""
import itertools, threading

events = []
engine.on_batch(lambda loader, batch: batch)


class Order(torch.utils.data.Sampler):
    "A sampler of the script's, which looks at the main process whenever it is asked."

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for index in torch.randperm(self.count).tolist():
            events.append(("asked", index, len(events), rng()))
            yield index

    def __len__(self):
        return self.count


class Batch:
    "Refuses to be unpickled where it says so."

    def __init__(self, content):
        self.content = content

    def __setstate__(self, state):
        self.__dict__.update(state)
        if 7 in self.content.tolist() and REFUSES:
            raise ValueError("cannot be unpickled")


class Items(Numbers):
    def __getitem__(self, i):
        time.sleep(0.002 * (i % 3))
        if i == self.bad:
            raise KeyError("bad item")
        return torch.tensor([float(i)])


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter([torch.tensor([float(i)]) for i in range(info.id, 9, info.num_workers)])


def look(found):
    for loader, batch in engine.next_batches.coming(lambda loader: True):
        found.append(batch)
        time.sleep(0.002)


def told(make, *, looks, stop=None, patience_s=0.01):
    "What a script sees in two passes; where it looks, it does so at each batch."
    global found
    events.clear()
    found, delivered = [], []
    torch.manual_seed(5)
    loader = make()
    for _ in range(2):
        pass_ = iter(loader)
        events.append(("begins", type(loader.dataset) is Stream or len(loader), rng()))
        try:
            for number in itertools.count():
                batch = next(pass_)
                delivered.append(batch)
                events.append(("batch", repr(getattr(batch, "content", batch)), rng()))
                time.sleep(patience_s)  # the next ones arrive
                if looks:
                    look(found)
                if number == stop:
                    break
        except (StopIteration, KeyError, ValueError, RuntimeError) as error:
            events.append((type(error).__name__, str(error).splitlines()[-1:]))
        events.append(("ends", rng()))
    is_same = {id(each) for each in found} <= {id(each) for each in delivered}
    return list(events), len(found), is_same


REFUSES = False


def items(bad=-1, **more):
    data = Items(14)
    data.bad = bad
    return DataLoader(data, batch_size=2, **{"num_workers": 2, **more})


def wrap(samples):
    return Batch(torch.cat(samples))


CASES = {
    "shuffled": lambda: items(shuffle=True),
    "the script's own sampler": lambda: items(sampler=Order(14)),
    "with a generator": lambda: items(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "an item fails": lambda: items(5),
    "workers stay": lambda: items(sampler=Order(14), persistent_workers=True),
    "an item fails and workers stay": lambda: items(5, persistent_workers=True),
    "streams": lambda: DataLoader(Stream(), batch_size=2, num_workers=2),
    "one worker": lambda: DataLoader(Numbers(9), batch_size=2, num_workers=1),
    "out of order": lambda: items(in_order=False),
    "batches of a class": lambda: items(collate_fn=wrap),
}
for name, make in CASES.items():
    if ("fails" in name) != FAILING:
        continue
    for stop in (None, 2) if "workers stay" in name or name == "shuffled" else (None,):
        kind = name if stop is None else name + ", broken off"
        plainly = told(make, looks=False, stop=stop)[0]
        looking, count, is_same = told(make, looks=True, stop=stop)
        if name == "out of order":  # whatever comes first
            plainly, looking = [[e for e in x if e[0] != "batch"] for x in (plainly, looking)]
        facts[kind] = plainly == looking or f"{plainly} and {looking}"
        facts[kind, "seen"], facts[kind, "delivered"] = count, is_same
REFUSES = True
plainly, looking = (
    told(lambda: items(collate_fn=wrap, num_workers=1), looks=looks)[0] for looks in (False, True)
)
facts["unpickling fails"] = plainly == looking or f"{plainly} and {looking}"
REFUSES = False

for name, wanted in (("added workers", 2), ("another number of workers", 3)):
    make = (lambda: DataLoader(Numbers(40), batch_size=4)) if wanted == 2 else items
    plainly = stock(lambda: told(make, looks=False)[0])
    engine.want(wanted)
    looking, count, is_same = told(make, looks=True)
    engine.want(None)
    facts[name] = plainly == looking or f"{plainly} and {looking}"
    facts[name, "seen"] = count

loader = items()
pass_ = iter(loader)
first, rest = next(pass_), []
thread = threading.Thread(target=lambda: rest.extend(pass_))
thread.start()
while thread.is_alive():
    look([])
thread.join()
facts["asked by another thread"] = torch.cat([first, *rest]).flatten().tolist() == list(range(14))

ended = []
class Noted(Items):
    bad = -1
    def __del__(self):
        ended.append(True)
pass_ = iter(DataLoader(Noted(14), num_workers=2))
next(pass_)
time.sleep(0.1)
look([])
gc.disable()
workers = pass_._workers
del pass_
facts["its workers end with it"] = not any(worker.is_alive() for worker in workers)
gc.enable()
facts = {name if isinstance(name, str) else ": ".join(name): fact for name, fact in facts.items()}
"""

SEEN = ("shuffled", "the script's own sampler", "workers stay", "one worker", "batches of a class",
        "added workers", "another number of workers")  # fmt: skip


@pytest.fixture(scope="module")
def looks(loaders):
    return loaders(f"FAILING = False\n{PROGRAM}")


def test_a_script_notices_nothing(looks) -> None:
    told = {name: fact for name, fact in looks.items() if ": " not in name}
    assert {name: fact for name, fact in told.items() if fact is not True} == {}


@pytest.mark.slow  # torch waits five seconds for each worker of a pass that has failed
def test_a_script_whose_items_fail_notices_nothing(loaders) -> None:
    told = loaders(f"FAILING = True\n{PROGRAM}")
    assert {name for name, fact in told.items() if ": " not in name and fact is not True} == set()


@pytest.mark.parametrize("name", SEEN)
def test_batches_are_seen_before_they_are_asked_for(name, looks) -> None:
    assert looks[f"{name}: seen"] >= 4


def test_what_is_seen_is_what_the_script_gets(looks) -> None:
    assert all(looks[f"{name}: delivered"] for name in SEEN[:5])


def test_out_of_order_nothing_is_seen(looks) -> None:
    assert looks["out of order: seen"] == 0
