import pytest

from hasten.machine import read
from hasten.records import Pressure


def pressure(fake):
    return read(root=fake.path, env={}).pressure


def test_reads_the_share_of_time_that_tasks_waited(laptop) -> None:
    laptop.write(
        "proc/pressure/cpu",
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=0.00 avg60=0.00 total=0",
    )
    assert pressure(laptop).cpu_some_ratio == 0.125


def test_reads_the_time_that_the_hypervisor_took(laptop) -> None:
    laptop.write("proc/stat", "cpu  50 0 20 20 0 0 0 10 50 0\ncpu0 1 2 3")
    assert pressure(laptop).steal_ratio == 0.1


def test_loads_are_told_per_logical_cpu(laptop) -> None:
    laptop.write("proc/loadavg", "4.00 2.00 1.00 1/300 77")
    assert pressure(laptop).load_ratio == 0.5


def test_throttling_of_the_ancestor_with_the_quota_counts(server) -> None:
    files = {
        "pod/cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 50\nthrottled_usec 3",
        "pod/job/cpu.stat": "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0",
    }
    server.cgroup2("/pod/job", files)
    assert pressure(server).throttled_ratio == 0.25


def test_without_a_quota_nothing_is_known_of_throttling(server) -> None:
    server.cgroup2("/", {"cpu.stat": "usage_usec 9\nuser_usec 9"})
    assert pressure(server).throttled_ratio is None


def test_knows_nothing_of_an_empty_machine(tmp_path) -> None:
    assert read(root=tmp_path, env={}).pressure == Pressure()


@pytest.mark.parametrize("name", ["proc/pressure/cpu", "proc/stat", "proc/loadavg"])
def test_garbage_is_unknown_and_no_traceback(laptop, name) -> None:
    laptop.write(name, "cpu some avg10 x y z")
    assert pressure(laptop) == Pressure()
