"""huge_pages: far fewer faults, where the kernel gives huge pages and steps fault."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.lever import ScriptContext
from hasten.levers.huge_pages import LEVER
from hasten.records import Traits
from hasten.testing import LAPTOP, sample_profile

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
given = pytest.mark.skipif(
    not MODE.exists() or "[never]" in MODE.read_text(), reason="this kernel gives no huge pages"
)


def context(mode="madvise", faults_count=20_000.0):
    profile = replace(sample_profile(), faults_count=faults_count)
    return ScriptContext(machine=LAPTOP, baseline=profile, traits=Traits(huge_pages=mode))


def test_is_tried_where_the_kernel_gives_them_and_steps_fault() -> None:
    assert "torch" in LEVER.settings(context())
    assert "torch" in LEVER.settings(context("always", None))


def test_says_what_the_machine_is_set_to() -> None:
    assert LEVER.settings(context("never")) == ()
    assert (
        LEVER.why_not(context("never")) == "transparent huge pages are set to never on this machine"
    )
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == ()
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP)) == "this kernel has no transparent huge pages"
    )


def test_is_skipped_with_the_figure_where_faults_are_few() -> None:
    assert LEVER.settings(context(faults_count=10.0)) == ()
    why = LEVER.why_not(context(faults_count=10.0))
    assert why == "a step faults in 10 pages: at most 0.0% of it"


def test_tunables_of_the_users_own_stay() -> None:
    own = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
    ours = "glibc.malloc.hugetlb=1"
    assert LEVER.env({}, "glibc") == {"GLIBC_TUNABLES": ours}
    assert LEVER.env(own, "glibc") == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=1:{ours}"}
    set_already = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    assert LEVER.env(set_already, "glibc") == set_already
    assert LEVER.env({"THP_MEM_ALLOC_ENABLE": "0"}, "torch") == {"THP_MEM_ALLOC_ENABLE": "0"}


COUNT = """
import resource
count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = count()
kept = {work}
print(count() - before)
"""


@given
@pytest.mark.child
@pytest.mark.parametrize(
    ("setting", "work"),
    [
        ("glibc", "bytearray(b'x') * (64 << 20)"),
        ("torch", "__import__('torch').ones(16 << 20)"),
    ],
)
def test_memory_comes_in_far_fewer_faults(setting, work) -> None:
    if setting not in LEVER.settings(context()):
        pytest.skip("this C library cannot ask for huge pages")
    program = COUNT.replace("{work}", work)
    if "torch" in work:
        program = f"import torch\n{program}"
    env = {**LEVER.env(os.environ, setting)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 16_384 / 4  # 64 MiB in pages of 4 KiB are 16384
