"""worker_threads: one thread per library in each worker, where there are workers."""

from upshift.lever import Scene
from upshift.levers.worker_threads import LEVER
from upshift.testing import LAPTOP, SERVER


def scene(count, machine=LAPTOP):
    return Scene(machine=machine, traits={"loader.workers": count})


def test_proposes_one_thread_first_and_then_an_equal_share_of_the_cores() -> None:
    cores = SERVER.budget.core_count
    assert LEVER.settings(scene(2, SERVER)) == (1, cores // 2)
    assert LEVER.settings(scene(4 * cores, SERVER)) == (1,)


def test_says_why_there_is_nothing_to_try() -> None:
    assert LEVER.settings(scene(0)) == ()
    assert "no workers" in LEVER.why_not(scene(0))
    assert LEVER.settings(Scene(machine=LAPTOP)) == ()
    assert LEVER.why_not(Scene(machine=LAPTOP)) == "the loop takes its batches from no DataLoader"
