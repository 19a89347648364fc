"""openmp_runtime: Intel's library where it is installed, with the user's way of waiting."""

import sys
from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers.openmp_runtime import LEVER
from hasten.records import Runtime, Torch
from hasten.testing import LAPTOP

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="preloading is tested on Linux")
HERE = ScriptContext(machine=LAPTOP)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr("hasten.levers.openmp_runtime.find", lambda env: None)


def test_is_tried_where_the_library_is_installed() -> None:
    assert LEVER.settings(HERE) == ("libiomp5",)


@pytest.mark.usefixtures("absent")
def test_says_how_to_install_it() -> None:
    assert LEVER.settings(HERE) == ()
    assert LEVER.why_not(HERE) == (
        "intel-openmp is not installed for this Python (pip install intel-openmp)"
    )


@pytest.mark.parametrize("name", ["libiomp5", "libomp"])
def test_is_no_matter_where_torch_runs_on_it_already(name) -> None:
    runtime = Runtime(kind="openmp", name=name, path=f"/x/{name}.so")
    context = ScriptContext(
        machine=replace(LAPTOP, torch=Torch(version="2.9", runtimes=(runtime,)))
    )
    assert LEVER.settings(context) == ()
    assert LEVER.why_not(context) == f"torch runs on {name} already"


def test_is_preloaded_after_what_the_user_preloads(tmp_path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libiomp5.so").touch()
    user = {"CONDA_PREFIX": str(tmp_path), "LD_PRELOAD": "/x/libown.so"}
    edited = LEVER.env(user, "libiomp5")
    assert edited["LD_PRELOAD"] == f"/x/libown.so:{tmp_path}/lib/libiomp5.so"
    assert edited["KMP_BLOCKTIME"] == "1"
    assert LEVER.env({**user, "KMP_BLOCKTIME": "0"}, "libiomp5")["KMP_BLOCKTIME"] == "0"
    assert "KMP_BLOCKTIME" not in LEVER.env({**user, "OMP_WAIT_POLICY": "ACTIVE"}, "libiomp5")


@pytest.mark.usefixtures("absent")
def test_is_left_out_where_the_library_is_gone(monkeypatch) -> None:
    edited = LEVER.env({"PATH": "/bin"}, "libiomp5")
    assert "LD_PRELOAD" not in edited
    for name, value in edited.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LookupError, match="libiomp5 is not installed here any more"):
        LEVER.apply(None, "libiomp5")
    LEVER.apply(None, "libiomp5")()
