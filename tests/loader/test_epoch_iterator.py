"""What scripts do with a loader besides one plain loop, while others fetch for it."""

import sys
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
            engine.want(1 if engine.request.count == 2 else None)
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
    engine.want(count, redraws=True)
    seen = workers()
    engine.want(None)
    return seen
first, second, third = with_workers(2)
facts["seen through"] = ours(workers, 2) == [[os.getpid()]] * 3
looked = sorted([os.getpid(), *second])  # the first two batches are looked at here
facts["kept"] = first == looked and second == third and len(second) == len(set(second)) == 2
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
facts["notes"] = engine.notices.notes
"""

ENDS = r"""
engine.want(2, redraws=True)
loader = DataLoader(Who(12), batch_size=3)
facts["workers"] = sorted({pid for batch in loader for pid in plain(batch)} - {os.getpid()})
"""

STAYING = r"""
import multiprocessing

def loader_of(make, **more):
    return DataLoader(make(24), 3, num_workers=2, persistent_workers=True, **more)

def inside(make, shuffle):
    loader, seen = loader_of(make, shuffle=shuffle), []
    for number, batch in enumerate(loader):
        seen.append(repr(batch))
        if number == 2:
            inner = iter(loader)
            seen.append(repr(next(inner)))
    return [seen, [repr(batch) for batch in loader], rng()]

def anew(make, shuffle):
    loader, seen = loader_of(make, shuffle=shuffle), []
    for count in (3, 0, 8, 2, 5):
        it = iter(loader)
        seen += [repr(next(it)) for _ in range(count)]
    return [seen, it is iter(loader), rng()]

def nested(make, shuffle):
    loader = loader_of(make, shuffle=shuffle)
    return [[repr(a), [repr(b) for b in loader]] for a in loader], rng()

def begun_by_torch(make, shuffle):
    loader, wanted = loader_of(make, shuffle=shuffle), engine.request.count
    engine.want(None)
    seen = [repr(batch) for batch in loader]
    engine.want(wanted)
    for _ in range(2):
        seen += [repr(batch) for batch in loader]
    return seen, len(multiprocessing.active_children()), rng()

for run in (inside, anew, nested, begun_by_torch):
    for make in (Numbers, Draws):
        for shuffle in (False, True):
            for wanted in (0, 1, 2):
                facts[f"{run.__name__} {make.__name__} {shuffle} {wanted}"] = same(
                    lambda: run(make, shuffle), wanted)
"""

SET_UP = r"""
class Offset(Numbers):
    offset = 0
    def __getitem__(self, i):
        return i + self.offset

def adds(index):
    get_worker_info().dataset.offset += 100

def run(stays, own):
    loader = DataLoader(
        Offset(40), 2, num_workers=own, worker_init_fn=adds, persistent_workers=stays and own > 0)
    return [[plain(batch) for batch in loader] for _ in range(3)]

for stays in (False, True):
    for own in (0, 1, 2, 4):
        for wanted in (0, 1, 2, 4):
            facts[f"{stays} {own} {wanted}"] = same(lambda: run(stays, own), wanted)
"""

SHARED = r"""
import tempfile
sys.path.insert(0, tempfile.mkdtemp())

class Opened(Numbers):
    def __init__(self, count):
        super().__init__(count)
        self.file = open(path, "rb", buffering=0)
    def __getitem__(self, i):
        self.file.seek(8 * i)
        time.sleep(0.001)
        return int.from_bytes(self.file.read(8), "little"), torch.rand(()).item()

class Counts(Numbers):
    seen = 0
    def __getitem__(self, i):
        self.seen += 1
        return i + 1000 * self.seen, torch.rand(()).item()

class Grows(Numbers):
    def __getitem__(self, i):
        return self.scale * i, torch.rand(()).item()

path = os.path.join(sys.path[0], "numbers")
with open(path, "wb") as file:
    file.write(b"".join((7 * i).to_bytes(8, "little") for i in range(120)))

def run(make):
    data, seen = make(120), []
    for epoch in range(2):
        for step, batch in enumerate(DataLoader(data, 2)):
            torch.rand(1)
            if make is Grows:
                data.scale = 1 + step // 9
            seen.append(batch[0].tolist())
    return seen

def redrawn(make):
    torch.manual_seed(7)
    engine.want(2)
    list(DataLoader(Draws(12), 2))
    engine.want(2, redraws=True)
    try:
        return run(make)
    finally:
        engine.want(None)

for make in (Opened, Counts, Grows):
    facts[make.__name__] = stock(lambda: run(make)) == redrawn(make)
facts["notes"] = engine.notices.notes
os.remove(path)
os.rmdir(sys.path[0])
"""

AFTER = r"""
class Seen(Draws):
    def __getitem__(self, i):
        return os.getpid(), torch.rand(()).item()
loader = DataLoader(Seen(60), 2)
def pids():
    found = []
    for batch in loader:
        torch.rand(1)
        found.append(batch[0][0].item() == os.getpid())
    return found
engine.want(2)
facts["replayed"] = all(pids())
engine.want(2, redraws=True)
facts["redrawn"] = any(pids()[4:])
facts["notes"] = engine.notices.notes
"""


AUTOCAST = r"""
loader = DataLoader(Numbers(60), 2)
def is_own():
    front = iter(loader)
    return front._next_data.__self__ is front
engine.want(2)
facts["own"] = [is_own()]
with torch.autocast("cpu", dtype=torch.bfloat16):
    facts["own"].append(is_own())
facts["own"].append(is_own())
engine.want(None)
facts["notes"] = engine.notices.notes
"""

EVALUATED = r"""
from hasten.loader.proof.verdict import LoaderProof

engine._granted = False
engine.proofs.of = lambda loader: LoaderProof()
engine.proofs.cost_s = float("inf")
engine.want(2)

def is_own(loader):
    front = iter(loader)
    return front._next_data.__self__ is front

loader = DataLoader(Numbers(60), 2)
facts["trained on"] = is_own(loader)
loader = DataLoader(Numbers(60), 2)
with torch.no_grad():
    facts["evaluated"] = [is_own(loader)]
    batches = repr(list(loader))
    facts["evaluated"].append(is_own(loader))
    engine.proofs.cost_s = engine.proofs._waited_s[Numbers]
    facts["waited"] = engine.proofs.cost_s > 0
    facts["evaluated"].append(is_own(loader))
    facts["same"] = repr(list(loader)) == batches
    engine._granted, engine.proofs.cost_s = True, float("inf")
    facts["granted"] = is_own(DataLoader(Numbers(60), 2))
"""

PROVEN = r"""
from hasten.loader.proof.verdict import LoaderProof

engine._granted, proof = False, LoaderProof()
engine.proofs.of = lambda loader: proof

def processes(wanted, **more):
    loader = DataLoader(Who(40), batch_size=4, num_workers=4, **more)
    engine.want(wanted)
    return [len({pid for batch in loader for pid in batch.tolist()} - {os.getpid()})
            for _ in range(2)]

facts["none"] = processes(0)
facts["one"] = processes(1)
facts["set up"] = processes(0, worker_init_fn=random.seed)
proof = LoaderProof(draws=True)
facts["drawing"] = processes(2)
for proof in (LoaderProof(draws=True), LoaderProof(draws=False)):  # the second one is wrong
    for wanted in (0, 1, 2, 3, 5):
        made = lambda: repr(epochs(DataLoader(Draws(40), 4, shuffle=True, num_workers=2), 2))
        facts[f"{proof.draws} {wanted}"] = same(made, wanted)
engine._granted = True
facts["granted"] = processes(0)
"""


BROKEN = r"""
from hasten.loader.epoch_iterator import EpochIterator

class Broken(Numbers):
    def __getitem__(self, i):
        return json.loads("{" if i == 5 else str(i))

def passes_of(loader):
    for batches in (iter(loader) for _ in range(4)):
        while True:
            try:
                yield plain(next(batches))
            except StopIteration:
                break
            except Exception as error:
                lines = str(error).splitlines()
                yield [type(error).__name__, lines[0], "json" in str(error), lines[-1]]

played, fetch = [], EpochIterator._fetch_for_workers

def counted(self, *given):
    played.append(1)
    return fetch(self, *given)

EpochIterator._fetch_for_workers = counted
run = lambda: list(passes_of(DataLoader(Broken(), batch_size=2, num_workers=2)))
facts["the same errors"] = same(run, 0)
facts["played"] = len(played) > 6
"""

MISSES = r"""
from hasten.loader.worker_advantage import WorkerAdvantage
from hasten.loader.workers.worker_processes import WorkerProcesses

WorkerAdvantage.of_workers = lambda self, fetch_s: False  # whoever else is on the machine

class Drawn(Numbers):
    def __getitem__(self, i):
        return torch.rand(3) + i

made_by_workers = []
next_answer = WorkerProcesses.next_answer

def counted(self, **given):
    made_by_workers.append(len(seen))
    return next_answer(self, **given)

WorkerProcesses.next_answer = counted
seen = []

def with_validations():
    seen.clear()
    loader, others = DataLoader(Drawn(400), batch_size=2), DataLoader(Numbers(4), batch_size=2)
    for number, batch in enumerate(loader):
        seen.append(plain(batch))
        if number % 40 == 39:  # it begins with a draw, as each pass over a loader does
            seen.append([plain(one) for one in others])
    return list(seen), rng()

facts["validations"] = same(with_validations, 2)
facts["workers to the end"] = len(made_by_workers) > 160
facts["without numpy"] = "numpy.random" not in sys.modules
"""

KEEPS = r"""
import multiprocessing, weakref
from hasten.loader.cache.cached import Cache
from hasten.loader.added_workers import AddedWorkers

class Trainer:
    def __init__(self):
        self.loader = DataLoader(Numbers(), batch_size=2, num_workers=2, collate_fn=self.collate)
    def collate(self, samples):
        return torch.tensor(samples)
    def fit(self):
        return [plain(batch) for _ in range(3) for batch in self.loader]

def gone():
    seen = []
    for _ in range(2):
        trainer = Trainer()
        trainer.fit()
        seen.append(weakref.ref(trainer))
    del trainer
    gc.collect()
    return [one() is None for one in seen]

facts["trainers"] = same(gone, 2)
undo = engine.add(Cache(1 << 22).offer)
facts["trainers, with samples kept"] = same(gone, 0)

class Whole(Numbers):
    def __init__(self):
        super().__init__()
        self.loader = DataLoader(self, batch_size=2, num_workers=own)
    def __getitem__(self, i):
        return torch.full((9,), float(sum(range(5000 * i))))
    fit = Trainer.fit

Trainer, own = Whole, 0
facts["datasets"] = same(gone, 0)
undo()
own = 2
facts["datasets of workers"] = same(gone, 0)

class Endless(DataLoader):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.iterator = super().__iter__()

def held():
    known = []
    for _ in range(3):
        loader = Endless(Numbers(), batch_size=2)
        next(loader.iterator)
        known.append(weakref.ref(loader))
    del loader
    gc.collect()
    return [one() is None for one in known]

facts["held by itself"] = [same(held, wanted) for wanted in (None, 2)]

class Fails(Numbers):
    def __getitem__(self, i):
        if i % 3 == 1:
            raise OSError("no such file")
        return super().__getitem__(i)

def forgiven():
    gc.collect()
    gc.disable()
    iterator, count = iter(DataLoader(Fails(), batch_size=2)), 0
    while True:
        try:
            next(iterator)
        except StopIteration:
            break
        except OSError:
            count += 1
    del iterator
    left = [type(one).__name__ for one in gc.get_objects()]
    gc.enable()
    return count, left.count("EpochIterator"), left.count("OSError")

facts["forgiven"] = [same(forgiven, wanted) for wanted in (0, 2)]

class Opens(Numbers):
    file = None
    def __getitem__(self, i):
        self.file = self.file or [i]
        return super().__getitem__(i)

def left_early():
    loader = DataLoader(Opens(), batch_size=1, num_workers=2)
    seen = [batch.tolist() for batch in loader]
    for batch in loader:
        break
    gc.collect()
    return seen, len(multiprocessing.active_children())

facts["left early"] = [same(left_early, wanted) for wanted in (2, 4)]

class Once(Numbers):
    order = None
    def __getitem__(self, i):
        if self.order is None:
            self.order = torch.randperm(12).tolist()
        return self.order[i]

watched = []
observe = AddedWorkers.observe

def counted(self, *given):
    watched.append(1)
    return observe(self, *given)

AddedWorkers.observe = counted
facts["drew once"] = same(lambda: epochs(DataLoader(Once(), batch_size=1), 6), 2)
facts["not for ever"] = 0 < len(watched) <= 20
"""


@pytest.fixture(scope="module")
def passes(loaders):
    return loaders(PROGRAM)


@pytest.mark.parametrize(
    "habit",
    [
        "zip", "gap", "break", "nested", "endless", "temporary", "temporary switched",
        "exception", "mutated", "draws", "draws, own generator",
    ],
)  # fmt: skip
def test_habits_of_scripts_see_what_stock_gives(passes, habit) -> None:
    assert passes[habit] == [True] * len(passes[habit])


def test_workers_that_stay_have_one_iterator_that_each_pass_begins_anew(loaders) -> None:
    facts = loaders(STAYING)
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_a_worker_that_sets_the_dataset_up_has_a_fresh_one_in_each_pass(loaders) -> None:
    facts = loaders(SET_UP)
    assert {name: found for name, found in facts.items() if found is not True} == {}


def test_a_pass_that_begins_under_autocast_is_torchs_own(loaders) -> None:
    facts = loaders(AUTOCAST)
    assert facts["own"] == [False, True, False]
    assert "autocast" in facts["notes"][0]


def test_an_evaluation_is_proven_once_it_has_waited_as_long_as_a_proof_takes(loaders) -> None:
    facts = loaders(EVALUATED)
    assert facts["trained on"] is False
    assert facts["evaluated"] == [True, True, False]
    assert facts["waited"] is True
    assert facts["same"] is True
    assert facts["granted"] is False


def test_workers_that_draw_anew_make_the_same_samples_or_none(loaders) -> None:
    facts = loaders(SHARED)
    notes = facts.pop("notes")
    assert facts == {"Opened": True, "Counts": True, "Grows": True}
    assert len([note for note in notes if note.startswith("no worker processes: ")]) == 3


def test_draws_of_the_loop_do_not_keep_workers_from_numbers_of_their_own(loaders) -> None:
    facts = loaders(AFTER)
    assert facts["replayed"] is True
    assert facts["redrawn"] is False


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


def test_a_proof_spares_the_first_pass_of_the_scripts_own_workers(loaders) -> None:
    facts = loaders(PROVEN)
    own = {name: facts.pop(name) for name in ("none", "one", "set up", "drawing", "granted")}
    assert own == {
        "none": [0, 0], "one": [1, 1], "drawing": [2, 2],
        # Their items tell the process, so they are seen to differ in the main one.
        "set up": [4, 1], "granted": [4, 1],
    }  # fmt: skip
    assert len(facts) == 10
    assert all(is_same is True for is_same in facts.values())


def test_what_items_raise_in_place_of_workers_is_what_a_worker_would_have_sent(loaders) -> None:
    facts = loaders(BROKEN)
    assert facts == {"the same errors": True, "played": True}


def test_draws_of_the_loop_now_and_then_do_not_end_the_workers(loaders) -> None:
    assert loaders(MISSES, python=sys.executable) == {
        "validations": True, "workers to the end": True, "without numpy": True
    }  # fmt: skip


def test_nothing_is_kept_or_watched_for_ever(loaders) -> None:
    facts = loaders(KEEPS)
    assert facts == {
        "trainers": True, "trainers, with samples kept": True, "datasets": True,
        "datasets of workers": True, "drew once": True, "not for ever": True,
        "held by itself": [True, True], "left early": [True, True], "forgiven": [True, True],
    }  # fmt: skip


REAPED = r"""
from hasten.loader.workers.stateful_fetch import doubtful

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
facts["reaped"] = [doubtful(lambda: answer) for answer in (False, True)]
"""


def test_a_script_that_reaps_every_child_hinders_no_look(loaders) -> None:
    assert loaders(REAPED, python=sys.executable) == {"reaped": [False, True]}


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
