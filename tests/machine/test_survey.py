import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten
from hasten.machine import probe_torch, read, with_torch
from hasten.machine.probe import MARK, parse
from hasten.machine.torch_facts import accelerator_use, runtimes
from hasten.records import Torch


def test_reads_the_real_machine_without_a_traceback() -> None:
    machine = read(env={})
    assert machine.budget.core_count >= 1
    assert machine.system
    assert machine.python_version


def test_names_the_kernel_of_the_root_that_it_reads(laptop) -> None:
    laptop.write("proc/sys/kernel/ostype", "Linux")
    laptop.write("proc/sys/kernel/osrelease", "6.1.0-test")
    assert read(root=laptop.path, env={}).system == "Linux 6.1.0-test"


def test_torch_is_left_alone_unless_it_is_asked(laptop) -> None:
    machine = read(root=laptop.path, env={})
    assert machine.torch is None
    assert machine.caveats == ()


def test_a_probe_that_finds_no_torch_is_a_caveat(laptop) -> None:
    machine = with_torch(read(root=laptop.path, env={}), None, root=laptop.path, env={})
    assert [caveat.name for caveat in machine.caveats] == ["torch_missing"]


def test_a_container_says_what_its_quota_does_to_torch(server) -> None:
    server.cgroup2("/pod", {"pod/cpu.max": "765000 100000"})
    torch = Torch(version="2.13.0", thread_count=16, interop_thread_count=16)
    machine = read(root=server.path, env={}, affinity=frozenset(range(32)))
    machine = with_torch(machine, torch, root=server.path, env={})
    names = [caveat.name for caveat in machine.caveats]
    assert names == ["quota_below_cpus", "threads_above_budget", "interop_above_budget"]


def test_the_facts_are_found_between_what_torch_prints() -> None:
    line = MARK + '{"version": "2.13.0", "thread_count": 2}'
    assert parse(f"a banner\n{line}\nbye\n") == Torch(version="2.13.0", thread_count=2)


@pytest.mark.parametrize("output", ["", "a banner", MARK + "{", MARK + '{"version": 3}'])
def test_an_answer_that_is_none_is_unknown(output) -> None:
    assert parse(output) is None


def test_a_python_that_is_missing_or_fails_has_no_torch() -> None:
    assert probe_torch("/nowhere/python") is None
    assert probe_torch("false") is None


def test_a_python_may_be_waited_for_as_long_as_one_likes(tmp_path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho \'{MARK}{{"version": "2.13.0"}}\'\n')
    python.chmod(0o755)
    for timeout_s in (30 * 86400.0, float("inf")):
        assert probe_torch(str(python), timeout_s) == Torch(version="2.13.0")


def test_recognises_the_runtimes_that_are_in_use() -> None:
    files = ["/lib/libc.so.6", "/a/libgomp-a34b3233.so.1", "/b/libiomp5.so", "/c/libomp.so.5"]
    files += ["/d/libscipy_openblas64_-32a4b2a6.so", "/e/libmkl_rt.so.2", "/f/libblis.so.4"]
    found = [(one["kind"], one["name"]) for one in runtimes(files, has_mkl=True)]
    assert found == [
        ("openmp", "libgomp"),
        ("openmp", "libiomp5"),
        ("openmp", "libomp"),
        ("blas", "openblas"),
        ("blas", "mkl"),
        ("blas", "blis"),
    ]


def test_names_the_mkl_that_is_linked_into_torch() -> None:
    (mkl,) = runtimes(["/t/libtorch_cpu.so"], has_mkl=True)
    assert (mkl["name"], mkl["path"]) == ("mkl", "/t/libtorch_cpu.so")
    assert runtimes(["/t/libtorch_cpu.so"], has_mkl=False) == []


def played_cuda(name="NVIDIA H100", **changes):
    calls = {
        "get_device_name": lambda index: name,
        "get_device_properties": lambda index: SimpleNamespace(total_memory=80),
        "device_memory_used": lambda index: 77,
        "utilization": lambda: 97,
    }
    return SimpleNamespace(**calls | changes)  # and no `mem_get_info`, which makes a context


def fails(*args):
    raise ModuleNotFoundError("pynvml")


FULL = {"accelerator_free_bytes": 3, "accelerator_bytes": 80}
BUSY = {"accelerator_busy_ratio": 0.97}


@pytest.mark.parametrize(
    ("kind", "backend", "told"),
    [
        ("cuda", played_cuda(), FULL | BUSY),
        ("cuda", played_cuda(utilization=fails), FULL),
        ("cuda", played_cuda("NVIDIA H100 MIG 1g.10gb", utilization=fails), {}),
        ("cuda", played_cuda(utilization=fails, device_memory_used=fails), {}),
        ("xpu", played_cuda("Arc", utilization=fails, mem_get_info=lambda: (3, 80)), FULL),
        ("mps", SimpleNamespace(), {}),
        (None, SimpleNamespace(), {}),
    ],
)
def test_how_full_and_busy_a_device_is_comes_from_its_own_calls(kind, backend, told) -> None:
    assert accelerator_use(SimpleNamespace(**{kind or "cpu": backend}), kind) == told


@pytest.mark.child
def test_asks_the_real_torch_in_a_process_of_its_own(monkeypatch, tmp_path) -> None:
    # A module of the user's that hides one of the standard library must not be imported.
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = set(sys.modules)
    torch = probe_torch(sys.executable)
    if torch is None:
        pytest.skip("this Python has no torch")
    assert torch.version[0].isdigit()
    assert torch.thread_count == 1
    assert (torch.interop_thread_count or 0) >= 1
    assert {runtime.kind for runtime in torch.runtimes} >= {"openmp"}
    assert "torch" not in set(sys.modules) - before


def test_a_probe_ends_with_its_parent(tmp_path, eventually) -> None:
    (tmp_path / "pid").touch()
    slow = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    (tmp_path / "torch.py").write_text(slow.replace("'pid'", repr(str(tmp_path / "pid"))))
    code = "import sys; from hasten.machine import probe_torch; probe_torch(sys.executable)"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(hasten.__file__).parents[1])]),
    }
    with subprocess.Popen([sys.executable, "-c", code], env=env) as parent:
        assert eventually((tmp_path / "pid").read_text)
        parent.kill()
    probe = (tmp_path / "pid").read_text()
    assert eventually(lambda: not Path("/proc", probe, "cmdline").exists())
