from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from hasten import machine
from hasten.diagnose import Case, discover
from hasten.instrument import processes
from hasten.instrument.examine import workers
from hasten.instrument.examine.workers import busy_ratio, copied, object_bytes
from hasten.instrument.processes import CpuTurn, Mapped, spent
from hasten.records import Phase, Step, Traits
from hasten.testing import fed, sample_profile

STEPS_COUNT, STEP_S = 20, 0.1
PROFILE = sample_profile({Phase.DATA: STEP_S}, step_count=STEPS_COUNT)
SCRIPT = """
import hashlib, os, sys
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SICK = sys.argv[1] == "sick"
COUNT, EACH = 2000, 400
CPUS = sorted(os.sched_getaffinity(0))
TEXT = bytes(1 << 16)

class Names(Dataset):
    def __init__(self):
        if SICK:
            self.names = [f"{i:0100d}" for i in range(COUNT * EACH)]
        else:
            self.names = torch.zeros(COUNT * EACH, 100, dtype=torch.uint8)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        part = self.names[index * EACH : (index + 1) * EACH]
        total = sum(len(name) for name in part)
        each = pool.map if SICK else map
        digests = list(each(lambda _: hashlib.sha256(TEXT).digest()[0], range(8)))
        return torch.full((16,), float(total + digests[0]))

def start(worker):
    global pool
    pool = ThreadPoolExecutor(4)
    os.sched_setaffinity(0, CPUS[:1] if SICK else CPUS)

loader = DataLoader(Names(), batch_size=4, num_workers=2, worker_init_fn=start)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for epoch in range(1000):
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def small_machine(monkeypatch):
    """Let this machine have as little memory as makes copies of a small dataset a danger."""
    real = machine.read

    def read(**details):
        facts = real(**details)
        return replace(facts, memory=replace(facts.memory, available_bytes=256 << 20))

    monkeypatch.setattr(machine, "read", read)


@pytest.mark.child
def test_pools_pins_and_copies_in_workers_are_found(diagnosed, small_machine) -> None:
    facts = machine.read()
    if facts.budget.affinity_count is None or facts.budget.affinity_count < 2:
        pytest.skip("needs two CPUs")
    found = diagnosed(SCRIPT, "sick")
    assert found["nested-thread-pools"].lever == "worker_threads"
    assert found["nested-thread-pools"].share.mid_ratio > 0.02
    assert "may use 1 CPU" in found["worker-affinity"].message
    assert found["copy-on-write-growth"].share is None


@pytest.mark.child
@pytest.mark.slow
def test_workers_with_one_thread_and_an_array_are_left_alone(diagnosed, small_machine) -> None:
    found = diagnosed(SCRIPT, "healthy")
    names = {"nested-thread-pools", "worker-affinity", "copy-on-write-growth", "shm-too-small"}
    assert names.isdisjoint(found)


# ---- made cases


@pytest.fixture
def told(machine_of):
    """Return what one symptom says of a made case: the loop waits for data all the time."""

    def tell(name, *, each=(), phase=Phase.DATA, memory=None, traits=None, affinity=4, **found):
        facts = machine_of(4)
        facts = replace(
            facts,
            budget=replace(facts.budget, affinity_count=affinity),
            memory=replace(facts.memory, **(memory or {})),
        )
        seen = {f"workers.{key}": value for key, value in found.items()}
        case = Case(
            machine=facts,
            profile=PROFILE,
            traits=traits or Traits(),
            found={"workers.each": list(each), **seen},
            steps=(Step(phase_ns={phase: int(STEP_S * 1e9)}),) * STEPS_COUNT,
        )
        return discover()[name].find(case)

    return tell


def worker(*, run_s=1.0, wait_s=1.0, cpus=(0, 1, 2, 3)):
    return {"run_s": run_s, "wait_s": wait_s, "cpus": list(cpus)}


def test_pools_cost_what_the_workers_waited(told) -> None:
    tell = partial(told, "nested-thread-pools", busy_ratio=1.5)
    assert tell(each=[worker()] * 2).share.mid_ratio == pytest.approx(0.5)
    # Pools that find free cores, workers that are ahead of the loop, and one thread each.
    assert tell(each=[worker(wait_s=0.0)] * 2) is None
    assert tell(each=[worker()] * 2, phase=Phase.FORWARD) is None
    assert tell(each=[worker()] * 2, busy_ratio=1.3) is None
    assert tell(each=[worker()]) is None
    one = fed(worker_count=1)  # started anew for each pass
    assert tell(each=[worker()] * 2, traits=one) is None
    assert tell() is None


def test_workers_on_fewer_cpus_than_there_are_of_either_are_found(told) -> None:
    pinned = [worker(cpus=(2,))] * 2
    assert "sched_setaffinity" in told("worker-affinity", each=pinned).remedy
    bound = Traits(openmp_variables=("OMP_WAIT_POLICY", "OMP_PROC_BIND"))
    found = told("worker-affinity", each=pinned, traits=bound)
    assert found.remedy == "Unset OMP_PROC_BIND."
    assert told("worker-affinity", each=pinned, affinity=1) is None  # the whole job is
    assert told("worker-affinity", each=pinned[:1]) is None
    apart = [worker(cpus=(cpu,)) for cpu in range(2)]
    assert told("worker-affinity", each=apart) is None
    assert told("worker-affinity", each=[worker(cpus=(2,), wait_s=0.0)] * 2) is None


class Iterator:
    _dataset = ()

    def __init__(self, *pids):
        self._workers = [SimpleNamespace(pid=pid) for pid in pids]


def test_workers_that_have_ended_count_with_their_last_look(monkeypatch) -> None:
    taken = {}  # seconds that the one thread of each live worker has run
    monkeypatch.setattr(
        processes, "turns",
        lambda pid: {pid: CpuTurn(taken[pid], taken[pid])} if pid in taken else {},
    )  # fmt: skip
    monkeypatch.setattr(processes, "runnable_count", lambda _pid: 3)
    monkeypatch.setattr(workers, "_SAMPLE_S", 0.0)
    seen = workers.Workers(SimpleNamespace())
    for pid in (10**9, 10**9 + 1):  # two passes with a worker each
        for run_s in (1.0, 4.0):
            taken[pid] = run_s
            seen.loaded(Iterator(pid), None)
            seen.ended()
            seen.ended()
        del taken[pid]
    found = seen.end()
    assert [(one["run_s"], one["wait_s"]) for one in found["each"]] == [(4.0, 4.0)] * 2
    assert found["busy_ratio"] == 3


MIB = 1 << 20


def test_copies_are_told_where_memory_may_run_out(told) -> None:
    grown = {"each": [worker()] * 2, "copiers_count": 2,
             "copied_bytes": 40 * MIB, "inherited_bytes": 900 * MIB}  # fmt: skip
    little, much = {"available_bytes": 2000 * MIB}, {"available_bytes": 40_000 * MIB}
    found = told("copy-on-write-growth", **grown, memory=little)
    assert "940.0 MiB" in found.message
    assert told("copy-on-write-growth", **grown, memory=much) is None
    batches = replace(fed(worker_count=2, batch_bytes=10 * MIB), cycle_count=4)
    assert told("copy-on-write-growth", **grown, memory=little, traits=batches) is None
    assert told("copy-on-write-growth", each=[worker()], memory=little) is None


def test_no_more_is_copied_than_the_datasets_hold_in_python_objects(told) -> None:
    grown = {"each": [worker()] * 8, "copiers_count": 8,
             "copied_bytes": 40 * MIB, "inherited_bytes": 2000 * MIB}  # fmt: skip
    little = {"available_bytes": 20_000 * MIB}
    names = told("copy-on-write-growth", **grown, memory=little, object_bytes=130 * MIB)
    assert "up to 1.0 GiB" in names.message
    # A few names of files: what is copied are the interpreter's own objects, once.
    assert told("copy-on-write-growth", **grown, memory=little, object_bytes=MIB) is None
    assert told("copy-on-write-growth", **grown, memory=little) is not None  # too many to count


class Held:
    def __init__(self, names, **more):
        self.names = names
        vars(self).update(more)


def test_objects_that_a_dataset_holds_are_counted_up_to_a_page_each() -> None:
    names = [f"{i:0100d}" for i in range(1000)]
    few = object_bytes([Held(names)])
    assert 140_000 < few < 180_000
    assert object_bytes([Held(names, again=names, array=bytearray(1 << 20))]) < few + 8192
    assert object_bytes([Held(names, table={i: [i] for i in range(1000)})]) > few + 50_000
    assert object_bytes([Held(list(range(300_000)))]) is None
    assert object_bytes([None]) < 100


def test_shared_memory_has_to_hold_the_batches_once_more(told) -> None:
    batches = replace(fed(worker_count=2, batch_bytes=10 * MIB), cycle_count=4)
    docker = {"shm_bytes": 64 * MIB}
    found = told("shm-too-small", memory=docker, traits=batches, shm_free_bytes=24 * MIB)
    assert "24.0 MiB of 64.0 MiB" in found.message
    assert found.share is None
    assert told("shm-too-small", traits=batches, shm_free_bytes=50 * MIB) is None
    assert told("shm-too-small", traits=batches) is None
    alone = replace(batches, loader=fed(batch_bytes=10 * MIB).loader)
    assert told("shm-too-small", traits=alone, shm_free_bytes=MIB) is None


def test_only_pages_that_were_shared_count_as_copied() -> None:
    assert copied(Mapped(100, 10), Mapped(60, 50)) == 40
    assert copied(Mapped(100, 10), Mapped(100, 50)) == 0  # it grew by itself
    assert copied(Mapped(100, 10), Mapped(60, 10)) == 0  # the others let go


def test_threads_that_take_turns_are_no_pool() -> None:
    assert busy_ratio([1, 0, 1, 1, 0]) == 1.0
    assert busy_ratio([4, 0, 4, 1]) == 3.0
    assert busy_ratio([]) == 1.0


def test_times_of_threads_are_those_since_the_first_look() -> None:
    before = {1: CpuTurn(1.0, 0.0), 2: CpuTurn(1.0, 0.25)}
    after = {1: CpuTurn(1.5, 0.0), 2: CpuTurn(3.0, 0.5), 3: CpuTurn(0.5, 0.25)}
    assert spent(before, after) == {1: (0.5, 0.0), 2: (2.0, 0.25), 3: (0.5, 0.25)}
