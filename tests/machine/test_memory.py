import pytest

from hasten.machine import read
from hasten.records import Memory

GIB = 2**30
UNLIMITED_V1 = "9223372036854771712"


def memory(fake, **kwargs):
    return read(root=fake.path, env={}, **kwargs).memory


def test_reads_what_a_laptop_has_and_has_left(laptop) -> None:
    found = memory(laptop)
    assert (found.total_bytes, found.available_bytes) == (16 * GIB, 12 * GIB)
    assert found.limit_bytes is None


def test_the_strictest_limit_of_all_ancestors_counts(server) -> None:
    files = {"pod/memory.max": str(8 * GIB), "pod/job/memory.max": "max", "memory.max": "max"}
    server.cgroup2("/pod/job", files)
    assert memory(server).limit_bytes == 8 * GIB


def test_what_is_left_is_what_the_tightest_group_leaves(server) -> None:
    files = {
        "pod/memory.max": str(8 * GIB),
        "pod/memory.current": str(7 * GIB),
        "pod/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 5",
    }
    server.cgroup2("/pod/job", files)
    assert memory(server).available_bytes == 3 * GIB


def test_the_huge_number_of_version_one_means_no_limit(server) -> None:
    server.cgroup1("/", {"memory/memory.limit_in_bytes": UNLIMITED_V1})
    assert memory(server).limit_bytes is None


def test_reads_the_limit_and_use_of_version_one(server) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": str(4 * GIB),
        "memory/job/memory.usage_in_bytes": str(3 * GIB),
        "memory/job/memory.stat": f"total_inactive_file {GIB}",
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
    }
    server.cgroup1("/job", files)
    found = memory(server)
    assert (found.limit_bytes, found.available_bytes) == (4 * GIB, 2 * GIB)


def test_shared_memory_is_told_and_never_asked_for_on_another_root(laptop) -> None:
    assert memory(laptop).shm_bytes is None
    found = memory(laptop, shm=(4 * GIB, 3 * GIB))
    assert (found.shm_bytes, found.shm_free_bytes) == (4 * GIB, 3 * GIB)


def test_knows_nothing_of_an_empty_machine(tmp_path) -> None:
    assert read(root=tmp_path, env={}).memory == Memory()


@pytest.mark.parametrize("garbage", ["", "MemTotal", "MemTotal: lots kB", "\x00\xff"])
def test_garbage_is_unknown_and_no_traceback(fake, garbage) -> None:
    fake.write("proc/meminfo", garbage)
    assert memory(fake).total_bytes is None


@pytest.mark.parametrize("place", ["pod", "pod/job"])
def test_a_group_that_ends_as_one_is_a_caveat(server, place) -> None:
    files = {"pod/memory.max": str(8 * GIB), "pod/job/memory.oom.group": "0"}
    server.cgroup2("/pod/job", {**files, f"{place}/memory.oom.group": "1"})
    (caveat,) = read(root=server.path, env={}).caveats
    assert caveat.name == "shared_end"
    assert "hasten too" in caveat.problem


@pytest.mark.parametrize(
    ("limit", "place", "group"),
    [("max", "pod", "1"), (str(8 * GIB), "pod", "0"), (str(8 * GIB), ".", "1")],
)
def test_a_trial_that_is_ended_alone_or_never_is_no_caveat(server, limit, place, group) -> None:
    server.cgroup2("/pod", {"pod/memory.max": limit, f"{place}/memory.oom.group": group})
    assert read(root=server.path, env={}).caveats == ()
