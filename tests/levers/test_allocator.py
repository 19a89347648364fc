"""allocator: found by reading, preloaded beside what the user preloads, left out where gone."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.lever import ScriptContext
from hasten.levers.allocator import LEVER
from hasten.protocol import Mode
from hasten.records import Plan, Traits
from hasten.testing import LAPTOP
from hasten.trials.child_environment import environment

HERE = ScriptContext(machine=LAPTOP, traits=Traits(preloaded=""))


def mapped(name: str) -> Path:
    """Return a library that this very process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if f"/{name}" in line)


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """A prefix of conda's with real, if other, libraries under the names of allocators."""
    library = mapped("libc.so").with_name("libm.so.6").read_bytes()
    (tmp_path / "lib").mkdir()
    for name in ("libjemalloc.so.2", "libtcmalloc.so.4", "libown.so"):
        (tmp_path / "lib" / name).write_bytes(library)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    return tmp_path


def test_offers_what_is_installed(prefix) -> None:
    assert LEVER.settings(HERE) == ("jemalloc", "tcmalloc")


def test_what_lies_beside_a_library_is_not_offered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hasten.levers.allocator._folders", lambda env: [tmp_path])
    (tmp_path / "libjemalloc.so.2").symlink_to(tmp_path / "gone")
    (tmp_path / "libjemalloc.so.2-gdb.py").touch()
    assert LEVER.settings(HERE) == ()


def test_leaves_an_allocator_of_the_users_own(prefix) -> None:
    seen = Traits(preloaded="/x/libother.so:/opt/libmimalloc.so.2")
    own = ScriptContext(machine=LAPTOP, traits=seen)
    assert LEVER.settings(own) == ()
    assert LEVER.why_not(own) == "the script runs under libmimalloc.so.2 already"


def test_says_what_could_be_installed(monkeypatch) -> None:
    monkeypatch.setattr("hasten.levers.allocator._folders", lambda env: [])
    assert LEVER.settings(HERE) == ()
    assert LEVER.why_not(HERE).startswith("neither jemalloc nor tcmalloc is installed")


def test_settings_of_jemalloc_that_the_user_made_stay(prefix) -> None:
    env = LEVER.env({"CONDA_PREFIX": str(prefix), "MALLOC_CONF": "narenas:1"}, "jemalloc")
    assert env["MALLOC_CONF"] == "narenas:1"
    assert "dirty_decay_ms" in LEVER.env({"CONDA_PREFIX": str(prefix)}, "jemalloc")["MALLOC_CONF"]
    assert "MALLOC_CONF" not in LEVER.env({"CONDA_PREFIX": str(prefix)}, "tcmalloc")


@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc"])
def test_by_hand_is_the_line_that_sets_what_the_lever_sets(prefix, monkeypatch, name) -> None:
    words = shlex.split(LEVER.snippet(name).partition(" python ")[0])
    own = {"CONDA_PREFIX": str(prefix)}
    assert own | dict(word.split("=", 1) for word in words) == LEVER.env(own, name)
    monkeypatch.setattr("hasten.levers.allocator._folders", lambda env: [])
    assert f"LD_PRELOAD=/path/to/lib{name}.so python" in LEVER.snippet(name)


@pytest.mark.child
def test_is_loaded_into_the_script_after_what_the_user_preloads(prefix) -> None:
    own = str(prefix / "lib/libown.so")
    user = {**os.environ, "LD_PRELOAD": own}
    env = environment(Plan().with_lever("allocator", "jemalloc"), mode=Mode.RUN, env=user)
    assert env["LD_PRELOAD"] == f"{own}:{prefix}/lib/libjemalloc.so.2"
    done = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{prefix}/lib/libjemalloc.so.2" in done.stdout
    assert own in done.stdout
    assert done.stderr == ""


@pytest.mark.child
def test_is_left_out_with_one_line_where_the_library_is_gone(monkeypatch) -> None:
    monkeypatch.setattr("hasten.levers.allocator._folders", lambda env: [])
    env = environment(Plan().with_lever("allocator", "jemalloc"), mode=Mode.RUN, env=os.environ)
    assert env.get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")
    done = subprocess.run(
        [sys.executable, "-c", "import os, torch; print([k for k in os.environ if 'GONE' in k])"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
    assert done.stderr == (
        "hasten: left out allocator=jemalloc: jemalloc is not installed here any more\n"
    )
