"""Threads inside workers: fewer, and the batches, draws and the dataset are as they were."""

import os
import pickle

import pytest

from hasten.loader.workers.threads import WorkerThreads

several = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="needs two CPUs: libraries have one thread on one core",
)

HEAD = r"""
import io, json, os, random, sys
from functools import partial
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch as fetching
from hasten.loader.workers import threads
from hasten.loader.workers.threads import WorkerThreads

facts = {}
notes = "/dev/null"


def counts():
    return [one.read() for one in threads._settings()]


class Heavy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        noise = np.random.rand(64, 64) + random.random() + torch.rand(()).item()
        return torch.from_numpy(noise @ noise)


class Init:
    def __init__(self, setup):
        self.setup = setup

    def __call__(self, index):
        setup, stock = self.setup, fetching._MapDatasetFetcher.fetch
        setup.enter(index)
        fetching._MapDatasetFetcher.fetch = lambda own, indices: setup.first(
            partial(told, stock, own), indices, own.dataset)


def told(stock, own, indices):
    with open(notes, "a") as file:
        file.write(f"{max(counts())} ")
    return stock(own, indices)


def batches(dataset, setup=None, context="fork", **more):
    torch.manual_seed(3)
    init = None if setup is None else Init(setup)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=init,
                        multiprocessing_context=context, **more)
    return [batch for _ in range(2) for batch in loader]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
"""


@pytest.fixture(scope="module")
def facts(gathered):
    """Return a function that runs a program after HEAD."""
    return lambda program: gathered(f"{HEAD}\nif __name__ == '__main__':\n{indented(program)}")


def indented(program):
    return "\n".join(f"    {line}" for line in program.splitlines())


WORKERS = r"""
import tempfile
stock = batches(Heavy())
facts["stock state"] = int(torch.randint(0, 10**6, (1,)))
with tempfile.TemporaryDirectory() as folder:
    notes = os.path.join(folder, "counts")
    ours = batches(Heavy(), WorkerThreads(1))
    facts["state"] = int(torch.randint(0, 10**6, (1,)))
    facts["counts"] = [int(n) for n in open(notes).read().split()]
facts["same"] = same(stock, ours)
facts["cores"] = max(counts())
"""


@several
@pytest.mark.child
def test_workers_keep_batches_and_draws_while_libraries_use_one_thread(facts) -> None:
    found = facts(WORKERS)
    assert found["same"]
    assert found["state"] == found["stock state"]
    # Two workers in each of two passes: the first batch twice, the second under the limit.
    assert sorted(found["counts"]) == [1] * 8 + [found["cores"]] * 4


ONE = r"""
def checked(dataset, setup, indices=(0, 1)):
    return setup.first(lambda some: [dataset[i] for i in some], list(indices), dataset)
"""

EQUAL = (
    ONE
    + r"""
class Product(Dataset):
    def __getitem__(self, i):
        a = np.random.rand(48, 48)
        return a @ a, random.random(), torch.rand(3)


def drawn(setup):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    batch = checked(Product(), setup) if setup else [Product()[i] for i in (0, 1)]
    return batch, [random.random(), np.random.rand(), torch.rand(()).item()]


torch.set_num_threads(2)
before, setup = counts(), WorkerThreads(1)
(stock, own), (ours, after) = drawn(None), drawn(setup)
facts["equal"] = all(np.array_equal(a[0], b[0]) and a[1] == b[1] and torch.equal(a[2], b[2])
                     for a, b in zip(stock, ours, strict=True))
facts["draws"] = own == after
facts["refused"] = setup.refused
facts["torch"] = torch.get_num_threads()
facts["limited"] = [n for n, own in zip(counts(), before) if n != own and n != 1]
facts["blas"] = min(counts())
setup.lift()
facts["back"] = counts() == before
"""
)


@several
@pytest.mark.child
def test_an_equal_batch_keeps_the_limit_the_draws_and_the_threads_of_torch(facts) -> None:
    found = facts(EQUAL)
    assert found["equal"]
    assert found["draws"]
    assert found["refused"] == ""
    assert found["torch"] == 2
    assert found["limited"] == []
    assert found["blas"] == 1
    assert found["back"]


REFUSED = (
    ONE
    + r"""
class Tells(Dataset):
    def __getitem__(self, i):
        return min(counts())


class Private(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def __getitem__(self, i):
        return self.rng.random()


class Counts(Dataset):
    seen = 0
    def __getitem__(self, i):
        self.seen += 1
        return self.seen


class Reads(Dataset):
    def __init__(self):
        self.file = io.BytesIO(bytes(range(200)))
    def __getitem__(self, i):
        return self.file.read(1)[0]


class Opens(Counts):
    def __getitem__(self, i):
        if not hasattr(self, "opened"):
            self.opened = {"rows": [1, 2, 3]}
        return i


class Falls(Dataset):
    def __getitem__(self, i):
        if min(counts()) == 1:
            raise RuntimeError("too few threads")
        return i


before = counts()
for kind in (Tells, Private, Counts, Reads, Opens, Falls):
    dataset, setup, plain = kind(), WorkerThreads(1), kind()
    stock = [[plain[i] for i in (0, 1)] for _ in range(12)]
    ours = [checked(dataset, setup) for _ in range(12)]
    facts[kind.__name__] = [ours == stock, setup.refused, counts() == before]
    setup.lift()
"""
)


@several
@pytest.mark.child
def test_a_dataset_that_differs_or_may_not_be_asked_twice_keeps_its_threads(facts) -> None:
    found = facts(REFUSED)
    for name in ("Tells", "Private", "Counts", "Reads", "Falls"):
        equal, refused, untouched = found[name]
        assert equal, name
        assert refused, name
        assert untouched, name
    assert found["Opens"] == [True, "", False], "a file opened once is no reason"


AFFINITY = r"""
pinned = os.sched_getaffinity(0)
facts["mask"] = sorted(threads.openmp_mask())
facts["pinned"] = sorted(pinned)
undo = threads.repair_affinity(frozenset(facts["mask"]))
facts["repaired"] = sorted(os.sched_getaffinity(0))
undo()
facts["back"] = os.sched_getaffinity(0) == pinned
os.sched_setaffinity(0, facts["mask"] or pinned)
threads.repair_affinity(frozenset(list(pinned)[:1]))
facts["never fewer"] = sorted(os.sched_getaffinity(0)) == (facts["mask"] or sorted(pinned))
"""


@pytest.mark.child
def test_a_mask_that_openmp_narrowed_is_widened_to_what_the_process_was_given(facts) -> None:
    given = sorted(os.sched_getaffinity(0))
    free = facts(AFFINITY)
    assert (free["mask"], free["pinned"], free["repaired"]) == ([], given, given)
    again = "import subprocess\nenv = dict(os.environ, OMP_PROC_BIND='true')\n"
    program = f"{HEAD}\n{AFFINITY}\nprint(json.dumps(facts))"
    run = f"done = subprocess.run([sys.executable, '-c', {program!r}], env=env, "
    run += "capture_output=True, text=True, check=True)\nfacts.update(json.loads(done.stdout))"
    bound = facts(again + run)
    if bound["mask"]:  # an OpenMP without places cannot tell, and pins nothing here
        assert bound["pinned"] < bound["mask"] or len(given) == 1
        assert bound["repaired"] == bound["mask"] == given
    for found in (free, bound):
        assert found["back"]
        assert found["never fewer"]


COLLATE = r"""
class Counting:
    calls = 0
    def __call__(self, samples):
        self.calls += 1
        return self.calls, samples


setup, collate, dataset = WorkerThreads(1), Counting(), [3, 4]
facts["seen"] = [setup.first(collate, [0, 1], dataset, collate)[0] for _ in range(10)]
facts["refused"] = setup.refused
"""


@pytest.mark.child
def test_a_collate_function_that_counts_is_called_once_for_a_batch(facts) -> None:
    found = facts(COLLATE)
    assert found["seen"] == list(range(1, 11))
    assert "changes itself" in found["refused"]


def test_the_setup_of_a_worker_travels_and_arrives_as_new() -> None:
    setup = WorkerThreads(2, frozenset({0, 1}))
    setup.refused, setup._lift = "something", [lambda: None]
    arrived = pickle.loads(pickle.dumps(setup))
    assert (arrived.count, arrived.mask, arrived.refused) == (2, frozenset({0, 1}), "")
    assert arrived._lift == []
