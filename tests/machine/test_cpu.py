import pytest

from hasten.machine import read
from hasten.machine.cpu import processor_kind
from hasten.records import Cpu


def test_counts_the_cores_of_a_laptop_by_its_siblings(laptop) -> None:
    cpu = read(root=laptop.path, env={}).cpu
    assert (cpu.socket_count, cpu.core_count, cpu.thread_count) == (1, 4, 8)


def test_counts_both_sockets_of_a_server_though_core_ids_repeat(server) -> None:
    cpu = read(root=server.path, env={}).cpu
    assert (cpu.socket_count, cpu.core_count, cpu.thread_count) == (2, 16, 32)


def test_counts_neighbouring_siblings_of_a_virtual_machine_as_one_core(fake) -> None:
    fake.cpus((0, 1), (2, 3))
    assert read(root=fake.path, env={}).cpu.core_count == 2


def test_leaves_offline_cpus_out(fake) -> None:
    fake.cpus((0, 4), (1, 5), (2, 6), (3, 7))
    # Cores 2 and 3 and one thread of core 1 are switched off; stale folders may stay behind.
    fake.write("sys/devices/system/cpu/online", "0-1,4")
    cpu = read(root=fake.path, env={}).cpu
    assert (cpu.core_count, cpu.thread_count) == (2, 3)


def test_names_the_model_and_only_the_instruction_sets_of_interest(laptop) -> None:
    cpu = read(root=laptop.path, env={}).cpu
    assert cpu.model == "Test CPU"
    assert cpu.instruction_sets == ("avx2", "avx512f", "amx_bf16")


def test_reads_the_features_of_an_arm_processor(fake) -> None:
    fake.write("proc/cpuinfo", "processor : 0\nFeatures : fp asimd sve bf16\nCPU part : 0xd40")
    cpu = read(root=fake.path, env={}).cpu
    assert cpu.instruction_sets == ("asimd", "sve", "bf16")
    assert cpu.thread_count == 1
    assert cpu.core_count is None


@pytest.mark.parametrize("changed", ["flags : avx2", "model name : other"])
def test_code_for_another_processor_is_told_apart(fake, changed) -> None:
    own = "model name : one\nflags : avx2 avx512f\ncpu MHz : "
    name, _, _ = changed.partition(" : ")
    lines = [changed if line.startswith(name) else line for line in own.splitlines()]
    kinds = set()
    for content in (f"{own}2000", f"{own}3000", "\n".join(lines)):
        fake.write("proc/cpuinfo", content)
        kinds.add(processor_kind(fake.path))
    assert len(kinds) == 2
    fake.write("proc/cpuinfo", "processor : 0\nmodel name : one")
    assert processor_kind(fake.path) is None


def test_half_a_topology_is_unknown_and_no_guess(laptop) -> None:
    gone = "sys/devices/system/cpu/cpu7/topology/thread_siblings_list"
    (laptop.path / gone).unlink()
    cpu = read(root=laptop.path, env={}).cpu
    assert cpu.core_count is None
    assert cpu.thread_count == 8


def test_an_unset_package_of_an_arm_machine_is_no_socket(fake) -> None:
    fake.cpus((0,), (1,))
    for cpu in (0, 1):
        fake.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", "-1")
    assert read(root=fake.path, env={}).cpu.socket_count is None


def test_knows_nothing_of_an_empty_machine(tmp_path) -> None:
    assert read(root=tmp_path, env={}).cpu == Cpu()
