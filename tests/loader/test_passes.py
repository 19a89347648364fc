"""What scripts do with a loader besides one plain loop, while others fetch for it."""

import time

import pytest

pytestmark = pytest.mark.child

PROGRAM = r"""
data = Numbers(12)
shuffled = lambda **more: DataLoader(data, batch_size=3, shuffle=True, **more)

def zipped():
    pairs = zip(shuffled(), shuffled())
    return [[plain(a), plain(b)] for a, b in pairs], rng()
facts["zip"] = [same(zipped, wanted) for wanted in (0, 1, 2)]

def draws_before_the_first_batch():
    iterator = iter(shuffled())
    return torch.rand(1).item(), [plain(b) for b in iterator], rng()
facts["gap"] = [same(draws_before_the_first_batch, wanted) for wanted in (0, 2)]

def broken_off():
    loader, seen = shuffled(), []
    for _ in range(3):
        for batch in loader:
            seen.append(plain(batch))
            if len(seen) % 2 == 0:
                break
    return seen, rng()
facts["break"] = [same(broken_off, wanted) for wanted in (0, 1, 2)]

def nested():
    loader = shuffled()
    return [[plain(a), [plain(b) for b in loader]] for a in loader], rng()
facts["nested"] = [same(nested, wanted) for wanted in (0, 1, 2)]

def endless():
    loader, seen = shuffled(), []
    iterator = iter(loader)
    for _ in range(10):
        try:
            seen.append(plain(next(iterator)))
        except StopIteration:
            iterator = iter(loader)
    return seen, rng()
facts["endless"] = [same(endless, wanted) for wanted in (0, 1, 2)]

def temporary():
    return [[plain(b) for b in shuffled()] for _ in range(3)], rng()
facts["temporary"] = [same(temporary, wanted) for wanted in (0, 1, 2)]

def temporary_switched():
    seen = []
    for number, batch in enumerate(shuffled()):
        if number == 1:
            board.want(1 if board.wish.count == 2 else None)
        seen.append(plain(batch))
    return seen, rng()
facts["temporary switched"] = [same(temporary_switched, wanted) for wanted in (1, 2)]

class Fragile(Numbers):
    def __getitem__(self, i):
        if i == 7:
            raise KeyError("seven")
        return i

def fragile():
    iterator, seen = iter(DataLoader(Fragile(12), batch_size=3)), []
    while True:
        try:
            seen.append(plain(next(iterator)))
        except StopIteration:
            return seen
        except Exception as error:
            seen.append(type(error).__name__)
facts["exception"] = [same(fragile, wanted) for wanted in (0, 1, 2)]

class Streamed(IterableDataset):
    def __iter__(self):
        return iter(range(10))
facts["iterable"] = same(lambda: epochs(DataLoader(Streamed(), batch_size=3)), 2)

draws = lambda: [plain(b)[0].tolist() for b in DataLoader(Draws(12), batch_size=3, shuffle=True)]
facts["draws"] = [same(draws, wanted) for wanted in (1, 2)]

def own_generator():
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(Draws(12), batch_size=3, shuffle=True, generator=generator)
    return [[b[0].tolist() for b in loader] for _ in range(3)]
facts["draws, own generator"] = [same(own_generator, wanted) for wanted in (1, 2)]

def drawn():
    loader = DataLoader(Draws(12), batch_size=3, shuffle=True)
    return [sorted(b[1].tolist()[0] for b in loader) for _ in range(3)]
epochs_drawn = ours(drawn, 2)
facts["draws differ"] = len({str(e) for e in epochs_drawn})

def workers():
    loader = DataLoader(Who(12), batch_size=3)
    return [sorted({pid for b in loader for pid in plain(b)}) for _ in range(3)]
def with_workers(count):
    board.want(count, redraws=True)
    seen = workers()
    board.want(None)
    return seen
first, second, third = with_workers(2)
facts["seen through"] = ours(workers, 2) == [[os.getpid()]] * 3
facts["kept"] = first == second == third and len(first) == 2 and os.getpid() not in first
facts["stock fetches here"] = stock(workers) == [[os.getpid()]] * 3
facts["settings"] = ours(lambda: (shuffled().num_workers, len(iter(shuffled()))), 2)

class Mutable(Numbers):
    def __init__(self):
        super().__init__(12)
        self.items = list(range(12))
        self.array = torch.arange(12)
        self.nested = Numbers()
    def __getitem__(self, i):
        return [self.scale, self.items[i], self.array[i].item(), self.nested.scale]

def mutated():
    data, seen = Mutable(), []
    loader = DataLoader(data, batch_size=4)
    changes = [
        lambda: setattr(data, "scale", 5), data.items.reverse, lambda: data.array.mul_(2),
        lambda: setattr(data.nested, "scale", 3), lambda: setattr(data, "items", list(range(12))),
    ]
    for change in changes:
        seen.append([[part.tolist() for part in b] for b in loader])
        change()
    return [*seen, [[part.tolist() for part in b] for b in loader]]
facts["mutated"] = [same(mutated, wanted) for wanted in (0, 2)]

import multiprocessing
def children():
    for epoch in range(4):
        loader = DataLoader(data, batch_size=3)
        list(loader)
    del loader
    gc.collect()
    return len(multiprocessing.active_children())
facts["left over"] = [stock(children), ours(children, 2)]
kept_by_script = lambda: (
    [list(DataLoader(data, batch_size=3, num_workers=1, persistent_workers=True))
     for _ in range(3)], gc.collect(), len(multiprocessing.active_children()))[-1]
facts["left over, kept by the script"] = [stock(kept_by_script), ours(kept_by_script, None)]
"""

KILLED = r"""
main = os.getpid()
class Deadly(Numbers):
    def __getitem__(self, i):
        if i == 7 and os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)
        return i

def killed():
    loader, seen = DataLoader(Deadly(12), batch_size=3), []
    for _ in range(2):
        try:
            seen += [plain(batch) for batch in loader]
        except (RuntimeError, OSError):  # an OSError where its last batch was still on the way
            seen.append("error")
    return seen

facts["killed"] = same(killed, 1)
facts["notes"] = board.notes
"""

ENDS = r"""
board.want(2, redraws=True)
loader = DataLoader(Who(12), batch_size=3)
facts["workers"] = sorted({pid for batch in loader for pid in plain(batch)})
"""


@pytest.fixture(scope="module")
def passes(loaders):
    return loaders(PROGRAM, timeout_s=300)


@pytest.mark.parametrize(
    "habit",
    [
        "zip", "gap", "break", "nested", "endless", "temporary", "temporary switched",
        "exception", "mutated", "draws", "draws, own generator",
    ],
)  # fmt: skip
def test_habits_of_scripts_see_what_stock_gives(passes, habit) -> None:
    assert passes[habit] == [True] * len(passes[habit])


def test_an_iterable_dataset_is_left_alone(passes) -> None:
    assert passes["iterable"] is True


def test_each_epoch_draws_other_numbers_in_kept_workers(passes) -> None:
    assert passes["draws differ"] == 3


def test_workers_stay_from_epoch_to_epoch_and_fetch_elsewhere(passes) -> None:
    assert passes["kept"]
    assert passes["stock fetches here"]


def test_items_that_tell_the_process_stay_in_the_script_s_own(passes) -> None:
    assert passes["seen through"]


def test_the_loader_still_says_what_the_script_said(passes) -> None:
    assert passes["settings"] == [0, 4]


@pytest.mark.parametrize("who", ["left over", "left over, kept by the script"])
def test_workers_end_with_their_loader(passes, who) -> None:
    assert passes[who] == [0, 0]


def test_a_killed_worker_that_the_script_never_asked_for_costs_it_nothing(loaders) -> None:
    seen = loaders(KILLED)
    assert seen["killed"] is True
    assert "a worker was lost" in seen["notes"][0]


def test_kept_workers_end_with_the_process(loaders) -> None:
    workers = loaders(ENDS)["workers"]
    assert len(workers) == 2
    until = time.monotonic() + 10
    while any(map(lives, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(lives, workers))


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
