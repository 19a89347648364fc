"""thread_binding: the team on cores of its own, everybody else on all of them."""

import os
import sys
from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers import thread_binding
from hasten.levers.thread_binding import LEVER
from hasten.records import Traits
from hasten.testing import LAPTOP, SERVER


def context(machine=LAPTOP, threads=None, openmp_variables=""):
    traits = Traits(thread_count=threads, openmp_variables=tuple(openmp_variables.split()))
    return ScriptContext(machine=machine, traits=traits)


def with_budget(**budget):
    return replace(LAPTOP, budget=replace(LAPTOP.budget, **budget))


def test_is_offered_where_the_job_has_all_cores_of_its_mask() -> None:
    assert LEVER.settings(context(threads=4)) == ("cores",)
    assert not LEVER.promising(context(threads=4))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            context(SERVER, threads=16),
            "the job may use 16 of the 64 cores in its mask (quota), and none of them is its own",
        ),
        (
            context(with_budget(affinity_core_count=1, core_count=1), threads=1),
            "the job's mask covers 1 core",
        ),
        (
            context(with_budget(affinity_core_count=None), threads=4),
            "which cores the job may use is not known here",
        ),
        (
            context(threads=4, openmp_variables="OMP_WAIT_POLICY OMP_PROC_BIND"),
            "the environment binds the threads already: OMP_PROC_BIND",
        ),
        (context(threads=1), "torch uses 1 thread"),
        (context(), "the threads of the script are not known"),
    ],
)
def test_says_why_it_is_not(found, why) -> None:
    assert LEVER.settings(found) == ()
    assert LEVER.why_not(found) == why


def test_counts_the_hardware_threads_of_a_core_as_one(tmp_path, monkeypatch) -> None:
    for cpu, siblings, socket in ((0, "0,4", 0), (1, "1,5", 1), (4, "0,4", 0), (5, "1,5", 1)):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
    monkeypatch.setattr(thread_binding, "_CPUS", tmp_path)
    thread_binding._cores.cache_clear()
    assert thread_binding._cores(frozenset({0, 1, 4})) == [{0, 4}, {1}]
    assert thread_binding._cores(frozenset({0, 7})) == []
    thread_binding._cores.cache_clear()


@pytest.mark.parametrize(("rank", "first"), [("0", 0), ("1", 2), ("2", 0)])
def test_ranks_that_share_a_mask_take_turns(rank, first, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    cores = [frozenset({cpu}) for cpu in range(4)]
    assert thread_binding._turned(cores, 2)[0] == cores[first]


PROGRAM = r"""
import os, subprocess, sys
from hasten.levers import thread_binding

thread_binding._cores = lambda mask: [frozenset({cpu}) for cpu in sorted(mask)]
whole = os.sched_getaffinity(0)


def masks():
    return [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]


def narrow():
    return sum(mask != whole for mask in masks())


class Masks(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return len(os.sched_getaffinity(0))


run, seen = Run(), {}
torch.set_num_threads(2)
large = torch.ones(1 << 20)
large + 1  # the team starts


def look(step):
    seen[step] = narrow()


run.applied.switch({"thread_binding": "cores"})
run.train(look, count=4)
facts["narrow"] = [seen[0], seen[1], seen[3]]
facts["own"] = os.sched_getaffinity(0) == whole
ask = "import os; print(len(os.sched_getaffinity(0)))"
told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
facts["subprocess"] = int(told.stdout) == len(whole)
facts["workers"] = [int(n) == len(whole) for n in DataLoader(Masks(), num_workers=1)]
run.close()
facts["after"] = narrow()

run = Run()
torch.set_num_threads(len(whole) + 1)
run.applied.switch({"thread_binding": "cores"})
run.train(count=4)
facts["too many"] = narrow()
run.close()
"""


@pytest.fixture(scope="module")
def bound(training):
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs and Linux")
    return training(PROGRAM)


@pytest.mark.child
def test_binds_the_team_once_it_is_there_and_gives_its_masks_back(bound) -> None:
    assert bound["narrow"] == [0, 0, 1]
    assert bound["after"] == 0


@pytest.mark.child
def test_the_loop_itself_its_workers_and_its_programs_keep_the_whole_mask(bound) -> None:
    assert bound["own"]
    assert bound["subprocess"]
    assert bound["workers"] == [True, True]


@pytest.mark.child
def test_binds_nothing_where_threads_would_share_a_core(bound) -> None:
    assert bound["too many"] == 0
