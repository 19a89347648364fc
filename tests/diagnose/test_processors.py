import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hasten.diagnose import Case, discover
from hasten.instrument import processes
from hasten.instrument.examine import processors
from hasten.instrument.processes import throttle_files, throttled_s
from hasten.records import Phase, Step, Traits
from hasten.testing import sample_profile

STEPS_COUNT, STEP_S = 20, 0.1
PROFILE = sample_profile({Phase.FORWARD: STEP_S}, step_count=STEPS_COUNT)
CROWDED = """
import os, sys
import torch
from torch import nn

cpus = len(os.sched_getaffinity(0))
torch.set_num_threads(4 * cpus if sys.argv[1] == "sick" else 1)
model = nn.Linear(1024, 1024)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
x = torch.ones(256, 1024)
while True:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SMALL = """
import os, sys
os.environ["OMP_WAIT_POLICY"] = "passive"
import torch
from torch import nn

torch.set_num_threads(int(sys.argv[1]))

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((33_000,), 1e-3))

    def forward(self, x):
        for _ in range(10):
            x = x * self.weight + x
        return x

model = Chain()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
x = torch.ones(33_000)
while True:
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def told(machine_of):
    """Return what one symptom says of a made case with four cores."""

    def tell(name, *, threads=4, budget=None, local_rank_count=None, **found):
        facts = machine_of(4)
        facts = replace(facts, budget=replace(facts.budget, limited_by="cores", slurm_count=None))
        if budget:
            facts = replace(facts, budget=replace(facts.budget, **budget))
        found = {key.replace("__", "."): value for key, value in found.items()}
        steps = (Step(phase_ns={Phase.FORWARD: int(STEP_S * 1e9)}),) * STEPS_COUNT
        case = Case(
            machine=facts,
            profile=PROFILE,
            traits=Traits(thread_count=threads, local_rank_count=local_rank_count or 1),
            found=found,
            steps=steps,
        )
        return discover()[name].find(case)

    return tell


def waiting(wait_s, *, own=4.0, busy=4.0, ranks=None, held_s=None):
    """Return what the kernel says where the loop waits so long in each step."""
    wall_s = STEPS_COUNT * STEP_S
    found = {
        "processors__waits_s": [wait_s] * STEPS_COUNT,
        "processors__wall_s": wall_s,
        "processors__cpus_count": 4,
        "processors__own_run_s": 2.0 * wall_s,
        "processors__own_wait_s": (own - 2.0) * wall_s,
        "processors__busy_s": busy * wall_s,
        "local_rank_count": ranks,
        "processors__throttled_s": held_s and [held_s] * STEPS_COUNT,
    }
    return {key: value for key, value in found.items() if value is not None}


def faster(ratio, count):
    return {
        "threads__setting": count,
        "threads__low_ratio": ratio - 0.05,
        "threads__mid_ratio": ratio,
        "threads__high_ratio": ratio + 0.05,
    }


# ---- real scripts


@pytest.mark.child
def test_too_many_threads_are_found(diagnosed) -> None:
    found = diagnosed(CROWDED, "sick", python=sys.executable, step_count=6)
    assert found["oversubscribed-threads"].lever == "intra_op_threads"


@pytest.mark.child
@pytest.mark.slow
def test_few_threads_are_left_alone(diagnosed) -> None:
    found = diagnosed(CROWDED, "healthy", python=sys.executable, step_count=6)
    assert {"oversubscribed-threads", "small-ops-threads"}.isdisjoint(found)


@pytest.mark.child
def test_operations_too_small_for_two_threads_are_found(diagnosed) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    found = diagnosed(SMALL, "2", python=sys.executable)
    # Where others want the CPUs, too, two threads may be slow for that reason, and it says so.
    assert {"small-ops-threads", "contended-machine"} & found.keys()


# ---- threads


def test_small_operations_need_a_gain_that_others_cannot_explain(told) -> None:
    quiet = waiting(0.0, own=2.1)
    found = told("small-ops-threads", **faster(1.8, 1), **quiet)
    assert found.share.mid_ratio == pytest.approx(1 - 1 / 1.8)
    assert "1.75x to 1.85x" in found.message
    assert told("small-ops-threads", **faster(1.8, 1), **waiting(0.02, own=2.6)) is None
    assert told("small-ops-threads", **faster(1.05, 1), **quiet) is None
    assert told("small-ops-threads", **quiet) is None


def test_too_many_threads_are_told_by_steps_with_fewer_or_by_waits(told) -> None:
    found = told("oversubscribed-threads", threads=16, **faster(2.0, 4))
    assert found.share.mid_ratio == pytest.approx(0.5)
    found = told("oversubscribed-threads", threads=16, **waiting(0.03, own=8.0, busy=2.0))
    assert found.share.mid_ratio == pytest.approx(0.3)
    assert told("oversubscribed-threads", threads=16, **waiting(0.0, own=4.0)) is None
    assert told("oversubscribed-threads", **waiting(0.03, own=8.0)) is None
    unknown = {"limited_by": "unknown"}
    assert told("oversubscribed-threads", threads=16, budget=unknown, **faster(2.0, 4)) is None


def test_a_wait_is_a_share_of_all_time_and_a_gain_one_of_the_steps(told) -> None:
    found = told("oversubscribed-threads", threads=16, **waiting(0.03, own=8.0, busy=2.0))
    assert found.is_of_all
    assert "the loop waits for a CPU 30% of the time." in found.message
    assert not told("oversubscribed-threads", threads=16, **faster(2.0, 4)).is_of_all


# ---- who has the CPUs


def test_waits_are_divided_between_own_threads_and_others(told) -> None:
    # 4 CPUs: own threads want 6, which is 2 too many; others have 2.
    both = waiting(0.02, own=6.0, busy=4.0)
    assert told("contended-machine", **both).share.mid_ratio == pytest.approx(0.1)
    threads = told("oversubscribed-threads", threads=8, **both)
    assert threads.share.mid_ratio == pytest.approx(0.1)


def test_fewer_threads_that_are_faster_beside_others_are_told_with_them(told) -> None:
    crowd = waiting(0.02, own=2.6)
    found = told("contended-machine", **faster(1.8, 1), **crowd)
    assert "Beside them steps were 1.80x faster with 1 thread in place of 4." in found.message
    assert "While they stay, call torch.set_num_threads(1)" in found.remedy
    assert "Beside them" not in told("contended-machine", **crowd).message
    small = waiting(0.02, own=2.1)  # what small-ops-threads says is so without others, too
    assert told("small-ops-threads", **faster(1.8, 1), **small) is not None
    assert "Beside them" not in told("contended-machine", **faster(1.8, 1), **small).message


def test_a_busy_machine_on_which_the_loop_never_waits_is_left_alone(told) -> None:
    assert told("contended-machine", **waiting(0.0)) is None
    assert told("contended-machine", **waiting(0.02)).message.startswith(
        "Other processes keep 2.0 of"
    )


def test_no_wait_is_longer_than_the_time_it_was_read_over(told) -> None:
    # Examiners work between two steps; the loop waits there, too.
    spans_s = [4 * STEP_S] * STEPS_COUNT
    apart = told("contended-machine", processors__spans_s=spans_s, **waiting(0.12))
    assert apart.share.mid_ratio == pytest.approx(0.3)
    cut_short = told("contended-machine", processors__spans_s=spans_s[1:], **waiting(0.12))
    assert cut_short.share.high_ratio == 1.0


def test_waits_are_read_with_the_time_that_they_are_read_over(monkeypatch) -> None:
    clock = iter((12.0, 15.0, 20.0, 21.0))
    times = SimpleNamespace(monotonic=lambda: next(clock), process_time=lambda: 0.0)
    monkeypatch.setattr(processors, "time", times)
    waits = iter((1.0, 2.0, 4.0))
    monkeypatch.setattr(processes, "turn", lambda task: processes.CpuTurn(0.0, next(waits)))
    monkeypatch.setattr(processes, "turns", lambda *_, **__: {})
    seen = processors.Processors(SimpleNamespace())
    seen.ended()
    seen.ended()
    found = seen.end()
    assert (found["spans_s"], found["waits_s"]) == ([3.0, 5.0], [1.0, 2.0])


def test_workers_that_come_and_go_are_no_strangers(told) -> None:
    wall_s = STEPS_COUNT * STEP_S
    crowd = waiting(0.02, busy=4.0)
    assert told("contended-machine", **crowd) is not None
    assert told("contended-machine", processors__children_run_s=2.0 * wall_s, **crowd) is None
    half = told("contended-machine", processors__children_run_s=1.0 * wall_s, **crowd)
    assert half.share.mid_ratio == pytest.approx(0.1)


def test_a_quota_is_found_by_the_steps_that_it_held_up(told) -> None:
    held = waiting(0.05, held_s=0.04)
    quota = {"quota_cores_ratio": 2.5, "core_count": 2}
    found = told("cpu-quota", budget=quota, **held)
    assert found.share.mid_ratio == pytest.approx(0.4)
    # What a quota took is not blamed on others, and a group that is throttled costs nothing
    # where the loop does not wait.
    assert told("contended-machine", **held).share.mid_ratio == pytest.approx(0.1)
    assert told("cpu-quota", **waiting(0.0, held_s=0.04)) is None
    assert told("cpu-quota", **waiting(0.05)) is None


@pytest.mark.parametrize(
    ("line", "group", "stat"),
    [
        ("0::/job", "job", "nr_periods 9\nnr_throttled 2\nthrottled_usec 1500000\n"),
        ("4:cpu,cpuacct:/job", "cpu/job", "nr_periods 9\nthrottled_time 1500000000\n"),
        ("0::/job/step", "job", "nr_periods 9\nthrottled_usec 1500000\n"),
        ("0::/../hidden", "", "nr_periods 9\nthrottled_usec 1500000\n"),
    ],
)
def test_throttling_is_read_in_both_versions_of_control_groups(tmp_path, line, group, stat) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    folder = tmp_path / "sys/fs/cgroup" / group
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text(stat)
    assert throttled_s(throttle_files(root=tmp_path)) == pytest.approx(1.5)


def test_groups_without_a_quota_are_not_read(tmp_path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 5\nnr_periods 0\n")
    assert throttle_files(root=tmp_path) == ()


# ---- ranks: made cases, no job of several processes is started here


def test_ranks_with_a_thread_for_every_core_are_found(told) -> None:
    crowd = waiting(0.04, own=6.0, busy=4.0, ranks=2)
    found = told("ranks-oversubscribed", threads=4, **crowd)
    assert found.share.mid_ratio == pytest.approx(0.4)
    assert "OMP_NUM_THREADS=2" in found.remedy
    assert told("contended-machine", **crowd) is None  # the others are ranks
    assert told("ranks-oversubscribed", threads=2, **crowd) is None
    assert told("ranks-oversubscribed", **waiting(0.04, own=6.0)) is None
    assert told("ranks-oversubscribed", **waiting(0.0, own=2.0, ranks=2)) is None


def test_ranks_that_are_tasks_of_slurm_share_no_cores(told) -> None:
    crowd = waiting(0.04, own=6.0, ranks=2)
    assert told("ranks-oversubscribed", budget={"slurm_count": 4, "task_count": 2}, **crowd) is None
    assert told("ranks-oversubscribed", budget={"slurm_count": 4}, **crowd) is not None


def test_one_thread_a_rank_is_found_where_more_are_faster(told) -> None:
    one = {
        "threads": 1,
        "local_rank_count": 2,
        "processors__omp_num_threads": "1",
    }
    assert told("ranks-one-thread", **one, **faster(1.6, 2)).share.mid_ratio > 0.3
    assert told("ranks-one-thread", **one) is None
    assert told("ranks-one-thread", **one, **faster(1.0, 2)) is None
    alone = {**one, "local_rank_count": 1}
    assert told("ranks-one-thread", **alone, **faster(1.6, 2)) is None
