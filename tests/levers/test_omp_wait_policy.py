"""omp_wait_policy: what the machine suggests, never over the user's own, and read by OpenMP."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from hasten.lever import ScriptContext, provided
from hasten.levers import omp_wait_policy
from hasten.levers.omp_wait_policy import LEVER
from hasten.records import ModelTraits, Plan, Pressure, Runtime
from hasten.testing import LAPTOP, SERVER, fed


def context(machine=LAPTOP, threads=None, worker_count=0, openmp_variables=""):
    traits = replace(
        fed(worker_count=worker_count), thread_count=threads,
        openmp_variables=tuple(openmp_variables.split()),
    )  # fmt: skip
    return ScriptContext(machine=machine, traits=traits)


def test_tries_both_where_the_cores_are_the_jobs_own() -> None:
    assert LEVER.settings(context(on("libgomp"), threads=4)) == ("active", "short")
    assert LEVER.settings(context(on("libiomp5"), threads=4)) == ("active", "passive")
    assert not LEVER.promising(context(threads=4))


@pytest.mark.parametrize(
    "shared",
    [
        context(SERVER, threads=16),  # a quota
        context(threads=4, worker_count=2),
        context(replace(LAPTOP, pressure=Pressure(cpu_some_ratio=0.4)), threads=4),
    ],
    ids=["quota", "workers", "neighbours"],
)
def test_tries_to_sleep_alone_where_others_need_the_cores(shared) -> None:
    for runtime, setting in (("libgomp", "short"), ("libomp", "passive")):
        machine = on(runtime, shared.machine)
        assert LEVER.settings(replace(shared, machine=machine)) == (setting,)


def test_a_preloaded_runtime_takes_the_place_of_libgomp() -> None:
    found = context(on("libgomp"), threads=4)
    traits = replace(found.traits, preloaded=("iomp5",))
    assert LEVER.settings(replace(found, traits=traits)) == ("active", "passive")


@pytest.mark.parametrize(("has_team", "is_tried"), [(None, True), (True, True), (False, False)])
def test_where_no_operation_was_shared_no_thread_waits_for_another(has_team, is_tried) -> None:
    found = context(on("libgomp"), threads=4)
    found = replace(found, traits=replace(found.traits, has_team=has_team))
    assert bool(LEVER.settings(found)) is is_tried
    assert is_tried or "too small" in LEVER.why_not(found)


def test_one_thread_waits_for_nobody() -> None:
    alone = provided(Plan().with_lever("intra_op_threads", 1), fed())
    assert LEVER.redundant_with("short", alone)
    assert not LEVER.redundant_with("short", provided(Plan(), fed()))


def test_beside_an_accelerator_no_thread_of_the_cpu_is_waited_for() -> None:
    found = context(threads=4)
    traits = replace(found.traits, model=ModelTraits(device="xpu"))
    assert LEVER.settings(replace(found, traits=traits)) == ()
    assert "on xpu" in LEVER.why_not(replace(found, traits=traits))


def test_is_promising_where_more_threads_spin_than_the_quota_holds() -> None:
    assert LEVER.promising(context(SERVER, threads=64))
    assert not LEVER.promising(context(SERVER, threads=16))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (context(), "the threads of the script are not known"),
        (context(threads=1), "torch uses 1 thread: none waits for another"),
        (
            context(threads=4, openmp_variables="GOMP_SPINCOUNT OMP_PLACES"),
            "the environment of the script sets GOMP_SPINCOUNT",
        ),
    ],
)
def test_says_why_there_is_nothing_to_try(found, why) -> None:
    assert LEVER.settings(found) == ()
    assert LEVER.why_not(found) == why


def test_knows_a_torch_without_openmp() -> None:
    blas = (Runtime(kind="blas", name="openblas", path="/x"),)
    bare = replace(LAPTOP, torch=replace(LAPTOP.torch, runtimes=blas))
    assert LEVER.why_not(context(bare, threads=4)) == "torch runs without OpenMP here"


def on(name, machine=LAPTOP):
    runtimes = (Runtime(kind="openmp", name=name, path="/x"),)
    return replace(machine, torch=replace(LAPTOP.torch, runtimes=runtimes))


@pytest.mark.parametrize(
    ("runtime", "variables", "decides"),
    [
        ("libgomp", "KMP_BLOCKTIME KMP_LIBRARY", ""),
        ("libgomp", "KMP_BLOCKTIME GOMP_SPINCOUNT", "GOMP_SPINCOUNT"),
        ("libiomp5", "GOMP_SPINCOUNT", ""),
        ("libomp", "GOMP_SPINCOUNT KMP_BLOCKTIME", "KMP_BLOCKTIME"),
    ],
)
def test_only_what_the_runtime_reads_decides(runtime, variables, decides) -> None:
    found = context(on(runtime), threads=4, openmp_variables=variables)
    assert bool(LEVER.settings(found)) is not bool(decides)
    why = LEVER.why_not(found)
    assert why.endswith(f" sets {decides}") if decides else why == ""


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_stays(name) -> None:
    edited = LEVER.env({name: "7"}, "passive")
    assert edited[name] == "7"
    assert edited["OMP_WAIT_POLICY"] == ("7" if name == "OMP_WAIT_POLICY" else "passive")


@pytest.mark.parametrize(
    ("runtime", "name", "decides"),
    [
        ("libgomp.so.1", "GOMP_SPINCOUNT", True),
        ("libgomp-24e2ab19.so.1.0.0", "KMP_BLOCKTIME", False),
        ("libiomp5.so", "KMP_BLOCKTIME", True),
        ("libiomp5.so", "GOMP_SPINCOUNT", False),
    ],
)
def test_a_variable_that_the_loaded_runtime_reads_is_said(
    runtime, name, decides, monkeypatch, tmp_path
) -> None:
    (tmp_path / "maps").write_text(f"7f00-7f01 r-xp 00000000 00:00 1 /lib/{runtime}\n")
    monkeypatch.setattr(omp_wait_policy, "_MAPS", tmp_path / "maps")
    for key, value in LEVER.env({name: "7"}, "passive").items():
        monkeypatch.setenv(key, value)
    if decides:
        with pytest.raises(Exception, match=f"{name} decides how OpenMP waits"):
            LEVER.apply(None, "passive")
    else:
        LEVER.apply(None, "passive")()


def test_says_who_decides_where_it_is_not_the_lever(monkeypatch) -> None:
    LEVER.apply(None, "passive")()
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    LEVER.apply(None, "active")()
    with pytest.raises(Exception, match="OMP_WAIT_POLICY=ACTIVE decides how OpenMP waits"):
        LEVER.apply(None, "passive")


def test_a_count_of_spins_overrules_a_policy(monkeypatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with pytest.raises(Exception, match="OMP_WAIT_POLICY=passive decides how OpenMP waits"):
        LEVER.apply(None, "short")
    for key, value in LEVER.env({}, "short").items():
        monkeypatch.setenv(key, value)
    LEVER.apply(None, "short")()


def test_a_runtime_that_counts_no_spins_is_said(monkeypatch, tmp_path) -> None:
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 00000000 00:00 1 /lib/libomp.so\n")
    monkeypatch.setattr(omp_wait_policy, "_MAPS", tmp_path / "maps")
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    with pytest.raises(Exception, match="libomp does not know GOMP_SPINCOUNT"):
        LEVER.apply(None, "short")


def _runtime() -> Path | None:
    spec = find_spec("torch")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    found = [*home.glob("lib/libgomp*"), *home.parent.glob("torch.libs/libgomp*")]
    return found[0] if found else None


@pytest.mark.child
@pytest.mark.skipif(_runtime() is None, reason="this torch brings no libgomp")
@pytest.mark.parametrize(
    ("setting", "spins"), [("passive", "'0'"), ("active", "'30000000000'"), ("short", "'1000'")]
)
def test_the_runtime_reads_it(setting, spins) -> None:
    env = LEVER.env({"OMP_DISPLAY_ENV": "VERBOSE"}, setting)
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(_runtime())!r})"],
        env=dict(env), capture_output=True, text=True, check=True,
    )  # fmt: skip
    policy = "PASSIVE" if setting == "short" else setting.upper()  # libgomp's own word for unset
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
    assert f"GOMP_SPINCOUNT = {spins}" in done.stderr
