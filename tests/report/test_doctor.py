import io
import json
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from hasten.records import Budget, Caveat, Cpu, Machine, Memory, Pressure, Runtime, Torch
from hasten.report.doctor import render
from hasten.report.document import machine_document

GIB = 2**30
UNKNOWN = Machine(cpu=Cpu(), budget=Budget(core_count=1, limited_by="unknown"))
CONTAINER = Machine(
    cpu=Cpu(
        model="Test [CPU] with a long name and a (TM)",
        socket_count=2,
        core_count=32,
        thread_count=64,
        instruction_sets=("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"),
    ),
    budget=Budget(
        core_count=7,
        limited_by="quota",
        affinity_count=64,
        affinity_core_count=32,
        quota_cores_ratio=7.65,
    ),
    memory=Memory(
        total_bytes=256 * GIB,
        available_bytes=20 * GIB,
        limit_bytes=32 * GIB,
        shm_bytes=64 * 2**20,
        shm_free_bytes=64 * 2**20,
    ),
    pressure=Pressure(cpu_some_ratio=0.04, throttled_ratio=0.95),
    torch=Torch(
        version="2.13.0",
        thread_count=32,
        interop_thread_count=32,
        cuda="13.0",
        accelerators=("NVIDIA H200",),
        runtimes=(
            Runtime(
                kind="openmp", name="libgomp", path="/" + "x" * 90 + "/libgomp.so.1", thread_count=7
            ),
        ),
    ),
    system="Linux 6.1",
    python_version="3.11.7",
    caveats=(
        Caveat(
            name="quota_below_cpus",
            problem="The cgroup quota is 7.65 cores but programs see 64 CPUs.",
            remedy="Size thread pools for 7 cores.",
        ),
    ),
)


def say(machine):
    out = io.StringIO()
    Console(file=out, width=80).print(render(machine))
    return out.getvalue()


def test_says_first_what_the_job_gets_and_why() -> None:
    first = say(CONTAINER).splitlines()[0]
    assert first == "This job gets 7 cores: the cgroup quota is 7.65."


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(core_count=4, limited_by="cores"), "all that the machine has"),
        (Budget(core_count=2, limited_by="affinity", affinity_count=4), "mask holds 4 CPUs"),
        (Budget(core_count=6, limited_by="slurm", slurm_count=6), "Slurm gave this task 6 CPUs"),
    ],
)
def test_gives_the_reason_of_every_limit(budget, reason) -> None:
    assert reason in say(replace(CONTAINER, budget=budget)).splitlines()[0]


@pytest.mark.parametrize(
    "fact",
    [
        "Test [CPU] with a long name",
        "32 cores",
        "64 threads",
        "amx_bf16",
        "256.0 GiB",
        "cgroup limit 32.0 GiB",
        "2.13.0",
        "32 inter-op threads",
        "NVIDIA H200",
        "libgomp (openmp, 7 threads)",
        "throttled 95%",
    ],
)
def test_tells_every_fact(fact) -> None:
    assert fact in " ".join(say(CONTAINER).split())


def test_each_caveat_comes_with_its_remedy() -> None:
    text = say(CONTAINER)
    for caveat in CONTAINER.caveats:
        assert text.index(caveat.name) < text.index(caveat.problem) < text.index(caveat.remedy)


def test_says_when_nothing_is_wrong() -> None:
    assert say(replace(CONTAINER, caveats=())).endswith("Nothing wrong found.\n")


@pytest.mark.parametrize("machine", [CONTAINER, UNKNOWN])
def test_is_plain_and_fits_eighty_columns_without_a_terminal(machine) -> None:
    text = say(machine)
    assert text.isascii()
    assert "\x1b" not in text
    for line in text.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_says_unknown_where_nothing_is_known_and_never_none() -> None:
    text = say(UNKNOWN)
    assert "unknown" in text
    assert "None" not in text


@pytest.mark.parametrize("machine", [CONTAINER, UNKNOWN])
def test_a_document_goes_through_json_and_comes_back_the_same(machine) -> None:
    read_back = json.loads(json.dumps(machine_document(machine)))
    assert read_back["schema"] == 1
    assert msgspec.convert(read_back["machine"], Machine) == machine


def test_what_is_unknown_is_null_in_the_document() -> None:
    machine = json.loads(json.dumps(machine_document(UNKNOWN)))["machine"]
    assert machine["cpu"]["core_count"] is None
    assert machine["torch"] is None
