"""intra_op_threads: the count that was asked for, over what the script sets itself."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hasten
from hasten import torch_threads
from hasten.lever import ScriptContext
from hasten.levers.intra_op_threads import LEVER, other_count
from hasten.records import CompilerTraits, ModelTraits, Phase, Traits
from hasten.testing import LAPTOP, SERVER, fed, sample_profile


def context(machine, count):
    return ScriptContext(machine=machine, traits=Traits(thread_count=count))


def test_proposes_the_budget_first_and_never_what_is_set_already() -> None:
    assert LEVER.settings(context(SERVER, 64)) == (16, 8, 4, 1)
    assert LEVER.settings(context(LAPTOP, 4)) == (2, 1)


def test_beside_an_accelerator_only_too_many_threads_are_a_reason() -> None:
    on_device = ModelTraits(device="cuda")

    def other(count):
        traits = Traits(thread_count=count, model=on_device)
        return ScriptContext(machine=SERVER, traits=traits)

    assert LEVER.settings(other(16)) == ()
    assert "on cuda" in LEVER.why_not(other(16))
    assert LEVER.settings(other(64)) == (16, 8, 4, 1)


@pytest.fixture
def four_cores():
    budget = replace(SERVER.budget, core_count=4, limited_by="cores", slurm_count=None)
    return replace(SERVER, budget=budget)


@pytest.mark.parametrize(
    ("threads", "ranks_count", "count"),
    [(4, 1, 1), (2, 1, 1), (8, 1, 4), (1, 1, None), (1, 2, 2), (4, 2, 2), (1, 8, None)],
)
def test_the_other_count_is_what_may_be_faster(four_cores, threads, ranks_count, count) -> None:
    traits = Traits(thread_count=threads, local_rank_count=ranks_count)
    assert other_count(ScriptContext(machine=four_cores, traits=traits)) == count


def test_nothing_is_tried_where_the_cores_are_unknown_or_a_graph_was_compiled(four_cores) -> None:
    def other(machine, **traits):
        return other_count(ScriptContext(machine=machine, traits=Traits(**traits)))

    assert other(four_cores, thread_count=4, compiler=CompilerTraits(is_used=True)) is None
    assert other(four_cores) is None
    lost = replace(four_cores, budget=replace(four_cores.budget, limited_by="unknown"))
    assert other(lost, thread_count=4) is None
    tasks = replace(four_cores, budget=replace(four_cores.budget, slurm_count=4, task_count=2))
    assert other(tasks, thread_count=4, local_rank_count=2) == 1  # each has its own four


def test_is_promising_only_where_threads_exceed_the_cores() -> None:
    assert LEVER.promising(context(SERVER, 64))
    assert not LEVER.promising(context(LAPTOP, 4))
    assert not LEVER.promising(ScriptContext(machine=LAPTOP))


def test_leaves_the_cores_to_loader_workers_that_need_them_and_tries_that_first() -> None:
    few = replace(LAPTOP, budget=replace(LAPTOP.budget, core_count=2))
    profile = replace(sample_profile({Phase.DATA: 0.16, Phase.FORWARD: 0.1}), cores_ratio=1.1)
    traits = replace(fed(), thread_count=4)
    crowded = ScriptContext(machine=few, baseline=profile, traits=traits)
    assert LEVER.settings(crowded) == (1, 2)
    fits = replace(crowded, traits=replace(traits, thread_count=2))
    assert LEVER.settings(fits) == (1,)
    assert LEVER.promising(fits)
    assert LEVER.advice(fits) == ""


def test_advice_on_a_number_of_the_scripts_own_that_exceeds_the_cores() -> None:
    said = LEVER.advice(context(LAPTOP, 16))
    assert said == "The script asks for 16 threads and the job has 4 cores."


@pytest.mark.parametrize("count", [None, 4, 2])
def test_has_no_advice_on_a_number_that_fits(count) -> None:
    assert LEVER.advice(context(LAPTOP, count)) == ""


def test_has_no_advice_on_what_torch_takes_by_itself_or_on_cores_nobody_knows() -> None:
    assert LEVER.advice(context(SERVER, 64)) == ""
    budget = replace(LAPTOP.budget, core_count=1, limited_by="unknown")
    unknown = replace(LAPTOP, budget=budget)
    assert LEVER.advice(context(unknown, 16)) == ""


CHOICE = r"""
from hasten.torch_threads import chooses_threads, put_back

run = Run()
put_back(2, chooses=True)  # as torch starts
facts["chooses"] = [chooses_threads()]
run.applied.switch({"intra_op_threads": 3})
facts["chooses"].append(chooses_threads())
run.applied.switch({})
facts["chooses"].append(chooses_threads())
run.applied.switch({"intra_op_threads": 3})
torch.set_num_threads(2)  # the script's own
run.close()
facts["chooses"].append(chooses_threads())
"""


@pytest.mark.child
@pytest.mark.skipif(torch_threads._mkl() is None, reason="needs a torch whose MKL can be asked")
def test_mkl_chooses_its_threads_again_unless_the_script_has_set_a_number(training) -> None:
    assert training(CHOICE)["chooses"] == [True, False, True, False]


PROGRAM = r"""

run, seen = Run(), []
torch.set_num_threads(2)  # what torch would take
run.applied.switch({"intra_op_threads": 3})
facts["told"] = [torch.get_num_threads()]
torch.set_num_threads(1)  # the script's own
facts["told"].append(torch.get_num_threads())
run.train(lambda step: seen.append(torch._C.get_num_threads()), count=2)
run.applied.switch({"intra_op_threads": 2})
seen.append(torch._C.get_num_threads())
run.close()
facts["told"].append(torch.get_num_threads())
facts["seen"], facts["after"] = seen, torch._C.get_num_threads()

run, seen = Run(), []
run.applied.switch({"intra_op_threads": 3})


def every_epoch(step):
    torch.set_num_threads(16)
    seen.append(torch._C.get_num_threads())


run.train(every_epoch, count=9).close()
facts["epochs"] = [sorted(set(seen)), torch._C.get_num_threads()]
torch.set_num_threads(1)

run = Run()
run.applied.switch({"intra_op_threads": 3})
facts["errors"] = []
for wrong in (0, "two", None):
    try:
        torch.set_num_threads(wrong)
    except (RuntimeError, TypeError) as error:
        facts["errors"].append(type(error).__name__)
torch._C.set_num_threads(5)  # past the name in torch
run.close()
facts["past us"] = torch._C.get_num_threads()


class Counts(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.get_num_threads()


run = Run()
run.applied.switch({"intra_op_threads": 3})
facts["workers"] = [int(count) for count in DataLoader(Counts(), num_workers=1)]
run.close()
"""


@pytest.fixture(scope="module")
def counted(training):
    return training(PROGRAM)


@pytest.mark.child
def test_acts_over_the_scripts_own_count_and_gives_that_back(counted) -> None:
    assert counted["seen"] == [3, 3, 3, 2]
    assert counted["after"] == 1


@pytest.mark.child
def test_the_script_is_told_the_count_that_it_would_have_without(counted) -> None:
    assert counted["told"] == [2, 1, 1]


@pytest.mark.child
def test_acts_over_a_count_that_is_set_in_every_epoch_and_gives_the_last_one_back(counted) -> None:
    assert counted["epochs"] == [[3], 16]


@pytest.mark.child
def test_what_is_wrong_without_it_stays_wrong(counted) -> None:
    assert counted["errors"] == ["RuntimeError"] * 3


@pytest.mark.child
def test_a_count_that_came_by_another_way_is_left_when_it_is_undone(counted) -> None:
    assert counted["past us"] == 5


@pytest.mark.child
def test_a_loader_worker_keeps_its_one_thread(counted) -> None:
    assert counted["workers"] == [1, 1]


SPAWNED = r"""
import torch
from torch.utils.data import DataLoader, Dataset


class Counts(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        count = torch.get_num_threads()
        torch.set_num_threads(2)  # its own, in its own process
        return count


if __name__ == "__main__":
    loader = DataLoader(Counts(), num_workers=1, multiprocessing_context="spawn")
    print([int(count) for count in loader], torch._C.get_num_threads())
"""


@pytest.mark.child
def test_a_worker_that_is_started_by_spawn_keeps_its_one_thread_and_what_it_sets(tmp_path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    command = [sys.executable, "-m", "hasten", "run", "--set", "intra_op_threads=3", "train.py"]
    env = {
        "PYTHONPATH": str(Path(hasten.__file__).parents[1]), "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["[1, 2] 3"], done.stderr


POOL = r"""
import multiprocessing
import sys
import torch


def count(_):
    return torch.get_num_threads(), torch._C.get_num_threads()


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        print(pool.map(count, [0]), torch._C.get_num_threads())
"""


@pytest.mark.child
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_a_process_of_a_pool_has_the_threads_that_it_asks_for(run_under, method) -> None:
    done = run_under("intra_op_threads=3", POOL, method)
    assert done.stdout.splitlines()[-1:] == ["[(1, 1)] 3"], done.stderr


LATE = r"""
import json, os
os.environ["OMP_NUM_THREADS"] = "1"  # of a larger number MKL takes what it finds cores for
import torch
from hasten.instrument import Watch
from hasten.instrument.traits import add_threads
from hasten.records import Traits
from hasten.child import AppliedLevers

facts = {"traits": add_threads(Traits()).thread_count}
watch = Watch(measuring=False)
applied = AppliedLevers(watch.live)
watch.install()
applied.switch({"intra_op_threads": 2})
facts["under"] = torch._C.get_num_threads()
applied.switch({})
facts["after"] = torch.get_num_threads()
"""


@pytest.mark.child
def test_a_variable_that_the_script_sets_before_it_imports_torch_is_seen(gathered) -> None:
    assert gathered(LATE, python=sys.executable) == {"traits": 1, "under": 2, "after": 1}


FORKS = r"""
import multiprocessing, torch

torch.set_num_threads(1)  # so that forked processes may compute
net = torch.nn.Linear(1500, 1500)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


def score(_):
    with torch.no_grad():
        net(torch.ones(512, 1500)).std()
    return torch.get_num_threads(), torch._C.get_num_threads()


for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(512, 1500)).pow(2).mean().backward()
    optimizer.step()
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(score, [0]), torch._C.get_num_threads())
"""


@pytest.mark.child
def test_a_forked_process_computes_with_the_threads_that_the_script_set(run_under) -> None:
    done = run_under("intra_op_threads=2", FORKS)
    assert done.stdout.splitlines()[-1:] == ["[(1, 1)] 2"], done.stderr
