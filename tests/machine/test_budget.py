from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.kernel_files import id_list
from hasten.machine import read
from hasten.machine.budget import decide
from hasten.machine.slurm import per_node

counts = st.none() | st.integers(1, 512)
quotas = st.none() | st.floats(0.01, 512)


def budget(fake, *, affinity=None, env=None):
    return read(root=fake.path, env=env or {}, affinity=affinity).budget


def test_a_laptop_gives_its_physical_cores(laptop) -> None:
    found = budget(laptop, affinity=frozenset(range(8)))
    assert (found.core_count, found.limited_by) == (4, "cores")
    assert (found.affinity_count, found.affinity_core_count) == (8, 4)


def test_a_mask_of_two_siblings_is_one_core(laptop) -> None:
    found = budget(laptop, affinity=frozenset({1, 5}))
    assert (found.core_count, found.limited_by) == (1, "affinity")


def test_a_mask_of_one_thread_of_each_core_is_every_core(laptop) -> None:
    assert budget(laptop, affinity=frozenset(range(4))).core_count == 4


def test_a_mask_counts_neighbouring_siblings_of_a_virtual_machine_once(fake) -> None:
    fake.cpus((0, 1), (2, 3), (4, 5), (6, 7))
    assert budget(fake, affinity=frozenset({0, 1, 2, 3})).core_count == 2
    assert budget(fake, affinity=frozenset({0, 2})).core_count == 2


def test_a_fractional_quota_is_floored(server) -> None:
    server.cgroup2("/", {"cpu.max": "765000 100000"})
    found = budget(server, affinity=frozenset(range(32)))
    assert (found.core_count, found.limited_by) == (7, "quota")
    assert found.quota_cores_ratio == 7.65


def test_a_quota_under_one_core_still_gives_one(server) -> None:
    server.cgroup2("/", {"cpu.max": "50000 100000"})
    assert budget(server).core_count == 1


@pytest.mark.parametrize("place", ["pod", "pod/job", "pod/job/step"])
def test_a_quota_counts_on_every_ancestor(server, place) -> None:
    files = {f"{p}/cpu.max": "max 100000" for p in ("pod", "pod/job", "pod/job/step")}
    server.cgroup2("/pod/job/step", {**files, f"{place}/cpu.max": "300000 100000"})
    assert budget(server).quota_cores_ratio == 3


def test_the_strictest_of_two_quotas_counts(server) -> None:
    server.cgroup2("/pod/job", {"pod/cpu.max": "200000 100000", "pod/job/cpu.max": "800000 100000"})
    assert budget(server).core_count == 2


def test_a_quota_of_a_neighbour_is_not_ours(server) -> None:
    server.cgroup2("/pod/job", {"pod/other/cpu.max": "100000 100000", "pod/cpu.max": "max 100000"})
    assert budget(server).quota_cores_ratio is None


def test_a_container_that_sees_only_its_own_group_finds_the_quota(server) -> None:
    server.cgroup2("/docker/abc", {"cpu.max": "400000 100000"})
    assert budget(server).core_count == 4


def test_a_group_outside_of_the_namespace_is_read_at_the_top(server) -> None:
    server.cgroup2("/../../elsewhere", {"cpu.max": "400000 100000"})
    assert budget(server).core_count == 4


def test_reads_the_quota_of_version_one(server) -> None:
    files = {
        "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/docker/cpu.cfs_quota_us": "250000",
        "cpu,cpuacct/docker/cpu.cfs_period_us": "50000",
    }
    server.cgroup1("/docker/abc", files)
    found = budget(server)
    assert (found.core_count, found.limited_by) == (5, "quota")


def test_no_quota_of_version_one_is_none(server) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    server.cgroup1("/", files)
    assert budget(server).quota_cores_ratio is None


def test_a_slurm_step_gets_the_cpus_of_its_task(server) -> None:
    env = {"SLURM_CPUS_PER_TASK": "6", "SLURM_JOB_CPUS_PER_NODE": "24"}
    found = budget(server, env=env, affinity=frozenset(range(32)))
    assert (found.core_count, found.limited_by, found.slurm_count) == (6, "slurm", 6)


@pytest.mark.parametrize(
    ("tasks", "count"),
    [
        ({"SLURM_TASKS_PER_NODE": "4"}, 8),
        ({"SLURM_TASKS_PER_NODE": "3(x2),1"}, 6),
        ({"SLURM_TASKS_PER_NODE": "some"}, 2),
        ({"SLURM_TASKS_PER_NODE": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}, 2),
        ({"SLURM_TASKS_PER_NODE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, 2),
    ],
)
def test_a_batch_script_outside_a_step_has_the_cpus_of_all_tasks_on_its_node(
    server, tasks, count
) -> None:
    found = budget(server, env={"SLURM_CPUS_PER_TASK": "2", **tasks}, affinity=frozenset(range(32)))
    assert (found.core_count, found.slurm_count) == (count, count)


def test_a_bound_slurm_step_that_counts_threads_gets_the_cores_of_its_mask(server) -> None:
    bound = frozenset({0, 1, 16, 17})
    found = budget(server, env={"SLURM_CPUS_PER_TASK": "4"}, affinity=bound)
    assert (found.core_count, found.limited_by) == (2, "affinity")


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "8"}, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x4)"}, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}, 2),
        ({"SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4"}, None),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "plenty"}, None),
        ({"SLURM_CPUS_PER_TASK": "many", "SLURM_JOB_CPUS_PER_NODE": "8"}, 8),
        ({}, None),
    ],
)
def test_takes_the_count_of_a_node_or_none(server, env, count) -> None:
    assert budget(server, env=env).slurm_count == count


@pytest.mark.parametrize(
    ("tasks", "ranks_count", "cores"),
    [(None, 4, 2), ("1(x2)", 4, 2), ("4", 4, 8), ("2", 4, 4), ("4", 1, 8), (None, 100, 1)],
)
def test_ranks_share_the_cores_of_their_task(server, tasks, ranks_count, cores) -> None:
    env = {"SLURM_CPUS_PER_TASK": "8"} | ({"SLURM_STEP_TASKS_PER_NODE": tasks} if tasks else {})
    found = budget(server, env=env, affinity=frozenset(range(16)))
    assert found.cores_per_rank(ranks_count) == cores


def test_plans_with_one_core_where_nothing_is_known(tmp_path) -> None:
    found = read(root=tmp_path, env={}).budget
    assert (found.core_count, found.limited_by) == (1, "unknown")
    assert found.affinity_count is None


def test_a_hidden_topology_leaves_the_mask_as_the_bound(fake) -> None:
    found = budget(fake, affinity=frozenset({0, 1, 2}))
    assert (found.core_count, found.limited_by) == (3, "affinity")
    assert found.affinity_core_count is None


@given(counts, counts, quotas, counts)
def test_the_budget_is_within_every_limit_and_at_least_one(cores, slurm, quota, touched) -> None:
    count, decider = decide(
        core_count=cores, slurm=slurm, quota_cores_ratio=quota, affinity_core_count=touched
    )
    whole = [c for c in (cores, slurm, touched) if c is not None]
    whole += [] if quota is None else [max(1, floor(quota))]
    assert count == min(whole, default=1)
    assert (decider == "unknown") == (not whole)


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(1, 9)), min_size=1))
def test_slurms_compact_list_expands_to_every_node(runs) -> None:
    listing = ",".join(f"{count}(x{nodes})" if nodes > 1 else f"{count}" for count, nodes in runs)
    assert per_node(listing) == tuple(c for count, nodes in runs for c in [count] * nodes)


@given(st.frozensets(st.integers(0, 300)))
def test_a_cpu_list_reads_back_what_was_written(ids) -> None:
    assert id_list(",".join(map(str, sorted(ids)))) == ids
