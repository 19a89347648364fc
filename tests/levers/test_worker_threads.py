"""worker_threads: one thread per library in each worker, where there are workers."""

import os

import pytest

from hasten.lever import ScriptContext, provided
from hasten.levers.worker_threads import LEVER
from hasten.records import Plan
from hasten.testing import LAPTOP, SERVER, fed


def context(count, machine=LAPTOP):
    return ScriptContext(machine=machine, traits=fed(worker_count=count))


def test_proposes_one_thread_first_and_then_an_equal_share_of_the_cores() -> None:
    cores = SERVER.budget.core_count
    assert LEVER.settings(context(2, SERVER)) == (1, cores // 2)
    assert LEVER.settings(context(4 * cores, SERVER)) == (1,)


def test_says_why_there_is_nothing_to_try() -> None:
    assert LEVER.settings(context(0)) == ()
    assert "no workers" in LEVER.why_not(context(0))
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP))
        == "the loop takes its batches from no DataLoader"
    )


@pytest.mark.parametrize("name", ["loader_workers", "redrawing_workers"])
def test_does_nothing_where_a_plan_takes_the_workers_away(name) -> None:
    traits = fed(worker_count=4)
    assert "no workers" in LEVER.redundant_with(1, provided(Plan().with_lever(name, 0), traits))
    assert not LEVER.redundant_with(1, provided(Plan().with_lever(name, 2), traits))
    assert not LEVER.redundant_with(1, provided(Plan(), traits))


PROGRAM = r"""
import os, random, tempfile
import numpy as np
from hasten.loader.workers import threads

folder = tempfile.TemporaryDirectory()
notes = os.path.join(folder.name, "counts")


class Products(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, n):
        with open(notes, "a") as file:
            file.write(f"{max(one.read() for one in threads._settings())} ")
        square = np.random.RandomState(n).rand(96, 96) + np.random.rand() + random.random()
        return torch.from_numpy(square @ square) + torch.rand(())


def batches():
    open(notes, "w").close()
    torch.manual_seed(5)
    loader = DataLoader(Products(), batch_size=2, shuffle=True, num_workers=2)
    found = [[hashed(batch) for batch in loader] for _ in range(2)]
    counts = [int(count) for count in open(notes).read().split()]
    return [found, hashed(torch.get_rng_state())], sorted(set(counts)), counts.count(1)


watch = Watch(measuring=False)
watch.install()
watch.live.assumed = frozenset({"dataset-unchanged"})
applied = AppliedLevers(watch.live)
stock, facts["own"], _ = batches()
applied.switch({"worker_threads": 1})
ours, facts["under"], facts["limited"] = batches()
applied.switch({})
again, facts["after"], _ = batches()
facts["same"] = stock == ours == again
"""


@pytest.mark.child
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two CPUs: libraries have one thread on one core",
)
def test_items_run_on_one_thread_after_the_first_batch_and_all_bits_stay(training) -> None:
    found = training(PROGRAM)
    assert found["same"]
    assert min(found["own"]) > 1
    assert min(found["under"]) == 1
    assert found["limited"] >= 24
    assert found["after"] == found["own"]
