from dataclasses import replace

import pytest

from hasten.machine import read, survey
from hasten.machine.caveats import find
from hasten.records import Budget, Cpu, Machine, Memory, Pressure, Runtime, Torch

GIB = 2**30
HEALTHY = Machine(
    cpu=Cpu(model="Test CPU", socket_count=1, core_count=8, thread_count=16),
    budget=Budget(core_count=8, limited_by="cores", affinity_count=16, affinity_core_count=8),
    memory=Memory(
        total_bytes=64 * GIB, available_bytes=50 * GIB, shm_bytes=32 * GIB, shm_free_bytes=32 * GIB
    ),
    pressure=Pressure(cpu_some_ratio=0.01, steal_ratio=0.0, load_ratio=0.2),
    torch=Torch(
        version="2.13.0",
        thread_count=8,
        interop_thread_count=8,
        runtimes=(
            Runtime(kind="openmp", name="libgomp", path="/torch/libgomp.so.1"),
            Runtime(kind="blas", name="openblas", path="/numpy/libopenblas.so"),
        ),
    ),
)


def names(machine, env=None):
    return [caveat.name for caveat in find(machine, env or {})]


def test_a_healthy_machine_has_no_caveats() -> None:
    assert names(HEALTHY) == []


def test_a_machine_of_which_nothing_is_known_has_no_caveats(tmp_path) -> None:
    assert read(root=tmp_path, env={}).caveats == ()


def with_torch(**changes):
    return replace(HEALTHY, torch=replace(HEALTHY.torch, **changes))


def with_part(part, **changes):
    return replace(HEALTHY, **{part: replace(getattr(HEALTHY, part), **changes)})


SECOND_OPENMP = Runtime(kind="openmp", name="libiomp5", path="/conda/libiomp5.so")


@pytest.mark.parametrize(
    ("machine", "env", "name", "value"),
    [
        (with_torch(thread_count=64), {}, "threads_above_budget", "64"),
        (with_torch(thread_count=1), {}, "threads_below_budget", "1 thread "),
        (with_torch(interop_thread_count=48), {}, "interop_above_budget", "48"),
        (with_part("budget", quota_cores_ratio=8.5), {}, "quota_below_cpus", "8.5"),
        (with_part("pressure", throttled_ratio=0.95), {}, "throttled", "95%"),
        (with_part("pressure", cpu_some_ratio=0.4), {}, "busy_cpus", "40%"),
        (
            with_part("pressure", cpu_some_ratio=None, load_ratio=3.0),
            {},
            "busy_cpus",
            "3",
        ),
        (with_part("pressure", steal_ratio=0.05), {}, "stolen_time", "5%"),
        (with_part("memory", shm_bytes=64 * 2**20), {}, "small_shm", "64.0 MiB"),
        (with_part("memory", shm_bytes=GIB // 2), {}, "small_shm", "512.0 MiB"),
        (with_part("memory", shm_free_bytes=0), {}, "small_shm", "0 B left"),
        (with_part("memory", available_bytes=GIB), {}, "little_memory", "1.0 GiB"),
        (
            with_part("memory", limit_bytes=8 * GIB, available_bytes=GIB // 2),
            {},
            "little_memory",
            "8.0 GiB",
        ),
        (
            with_torch(runtimes=(*HEALTHY.torch.runtimes, SECOND_OPENMP)),
            {},
            "duplicate_openmp",
            "/conda/libiomp5.so",
        ),
        (HEALTHY, {"OMP_NUM_THREADS": "all"}, "odd_thread_setting", "'all'"),
        (HEALTHY, {"OMP_NUM_THREADS": "0"}, "odd_thread_setting", "'0'"),
        (HEALTHY, {"OMP_PROC_BIND": "close"}, "bound_threads", "OMP_PROC_BIND=close"),
        (HEALTHY, {"GOMP_CPU_AFFINITY": "0-3"}, "bound_threads", "GOMP_CPU_AFFINITY=0-3"),
        (replace(HEALTHY, torch=None), {}, "torch_missing", "torch"),
    ],
)
def test_names_what_is_wrong_with_its_value_and_a_remedy(machine, env, name, value) -> None:
    (caveat,) = find(machine, env)
    assert caveat.name == name
    assert value in caveat.problem
    assert caveat.problem.endswith(".")
    assert caveat.remedy[0].isupper()
    assert caveat.remedy.endswith(".")


def test_a_thread_setting_that_torch_explains_is_said_once() -> None:
    assert names(with_torch(thread_count=1), {"OMP_NUM_THREADS": "1"}) == ["threads_below_budget"]


def test_a_switched_off_binding_is_no_caveat() -> None:
    assert names(HEALTHY, {"OMP_PROC_BIND": "FALSE", "GOMP_CPU_AFFINITY": "0-3"}) == []


def test_two_mappings_of_one_openmp_file_are_no_duplicates() -> None:
    again = Runtime(kind="openmp", name="libgomp", path="/torch/libgomp.so.1")
    assert names(with_torch(runtimes=(*HEALTHY.torch.runtimes, again))) == []


def test_no_thread_count_is_compared_with_an_unknown_budget() -> None:
    unknown = replace(HEALTHY, budget=Budget(core_count=1, limited_by="unknown"))
    assert names(unknown) == []


def test_a_quota_of_all_visible_cpus_is_no_caveat() -> None:
    assert names(with_part("budget", quota_cores_ratio=16.0)) == []


@pytest.mark.parametrize(
    ("free_bytes", "busy_ratio", "value"),
    [
        (10 * GIB, None, "Other processes hold 70.0 GiB of the 80.0 GiB of memory of NVIDIA H100."),
        (78 * GIB, 0.97, "Other processes kept NVIDIA H100 busy for 97% of the last second."),
        (78 * GIB, 0.02, None),
        (None, None, None),
    ],
)
def test_others_on_the_accelerator_are_told_where_that_is_known(
    free_bytes, busy_ratio, value
) -> None:
    used = with_torch(
        accelerator="cuda", accelerators=("NVIDIA H100",), accelerator_bytes=80 * GIB,
        accelerator_free_bytes=free_bytes, accelerator_busy_ratio=busy_ratio,
    )  # fmt: skip
    found = [(caveat.name, caveat.problem) for caveat in find(used, {})]
    assert found == ([("busy_accelerator", value)] if value else [])


NVIDIA = replace(HEALTHY, device_files=("/dev/nvidia0",))


@pytest.mark.parametrize(
    ("torch", "remedy"),
    [
        ({"version": "2.13.0+cpu"}, "Install the build of torch for it"),
        ({"version": "2.13.0+cu130", "cuda": "13.0"}, "torch.cuda.init"),
    ],
)
def test_a_torch_that_cannot_use_the_accelerator_of_the_machine_is_told(torch, remedy) -> None:
    machine = replace(NVIDIA, torch=replace(NVIDIA.torch, **torch))
    (caveat,) = find(machine, {})
    assert caveat.name == "torch_without_accelerator"
    assert "/dev/nvidia0" in caveat.problem
    assert torch["version"] in caveat.problem
    assert remedy in caveat.remedy


def test_an_accelerator_that_is_used_hidden_or_of_an_unknown_torch_is_not_told() -> None:
    used = replace(NVIDIA.torch, accelerator="cuda", accelerators=("NVIDIA",))
    assert names(replace(NVIDIA, torch=used)) == []
    assert names(NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}) == []
    assert names(NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1"}) == []
    assert names(NVIDIA, {"CUDA_VISIBLE_DEVICES": "0"}) == ["torch_without_accelerator"]


DRIVER = "/proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null"), []),
        (("/dev/nvidia1", "/dev/nvidia0", DRIVER), ["/dev/nvidia0", "/dev/nvidia1"]),
        (("/dev/kfd",), ["/dev/kfd"]),
        (("/dev/nvidiactl", DRIVER), [DRIVER]),
    ],
)
def test_the_files_of_accelerators_are_read(tmp_path, files, told) -> None:
    for name in files:
        (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1:]).touch()
    machine = read(root=tmp_path, env={})
    machine = survey.with_torch(machine, Torch(version="2.13.0+cpu"), root=tmp_path, env={})
    assert [path.removeprefix(str(tmp_path)) for path in machine.device_files] == told
    assert ["torch_without_accelerator" for _ in told[:1]] == [one.name for one in machine.caveats]


def test_a_driver_without_a_gpu_is_told_unless_the_container_asked_for_none() -> None:
    machine = replace(HEALTHY, device_files=(DRIVER,))
    (caveat,) = find(machine, {})
    assert "--gpus all" in caveat.remedy
    assert names(machine, {"NVIDIA_VISIBLE_DEVICES": "void"}) == []
    assert names(NVIDIA, {"NVIDIA_VISIBLE_DEVICES": "void"}) == ["torch_without_accelerator"]
