"""malloc_retention: worth a trial only where page faults cost something."""

import ctypes
from dataclasses import replace

import pytest

from hasten.lever import ScriptContext, load, provided
from hasten.levers.malloc_retention import LEVER
from hasten.records import Plan, Traits
from hasten.testing import LAPTOP, sample_profile


def context(faults_count):
    profile = replace(sample_profile(), faults_count=faults_count)
    return ScriptContext(machine=LAPTOP, baseline=profile)


def test_is_tried_where_steps_fault_many_pages_in() -> None:
    assert LEVER.settings(context(20_000.0)) == (True,)


def test_is_tried_where_faults_are_unknown() -> None:
    assert LEVER.settings(context(None)) == (True,)
    assert LEVER.settings(ScriptContext(machine=LAPTOP)) == (True,)


def test_is_skipped_with_the_figure_where_faults_are_few() -> None:
    assert LEVER.settings(context(10.0)) == ()
    assert LEVER.why_not(context(10.0)) == "a step faults in 10 pages: at most 0.0% of it"


@pytest.mark.parametrize("library", ["jemalloc", "tcmalloc"])
def test_does_nothing_beside_another_allocator(library) -> None:
    beside = provided(Plan().with_lever("allocator", library), Traits())
    assert LEVER.redundant_with(True, beside) == "another allocator is loaded"
    assert load("huge_pages").redundant_with("glibc", beside) == "the heap is another allocator's"
    assert not load("huge_pages").redundant_with("torch", beside)
    assert not LEVER.redundant_with(
        True, provided(Plan().with_lever("loader_workers", 2), Traits())
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("MALLOC_MMAP_THRESHOLD_", "65536"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
    ],
)
def test_thresholds_that_the_user_has_set_stay(monkeypatch, name, value) -> None:
    monkeypatch.setenv(name, value)
    assert LEVER.settings(context(20_000.0)) == ()
    assert LEVER.why_not(context(20_000.0)) == f"{name} is set already"
    libc = OldGlibc(1 << 31)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    LEVER.apply(None, True)()
    assert libc.calls == []


def test_another_allocator_has_no_such_thresholds() -> None:
    there = replace(context(20_000.0), traits=Traits(preloaded="/usr/lib/libjemalloc.so.2"))
    assert LEVER.settings(there) == ()
    assert LEVER.why_not(there) == "another allocator is loaded"


class OldGlibc:
    """What refuses thresholds from some size on."""

    def __init__(self, most_bytes):
        self.most_bytes, self.calls = most_bytes, []

    def mallopt(self, option, size_bytes):
        self.calls.append((option, size_bytes))
        return int(option != -3 or size_bytes <= self.most_bytes)


@pytest.mark.parametrize(
    ("most_bytes", "calls"),
    [
        (1 << 31, [(-3, 1 << 30), (-1, (1 << 31) - 1)]),
        (32 << 20, [(-3, 1 << 30), (-3, 32 << 20), (-1, (1 << 31) - 1)]),
        (512 << 10, [(-3, 1 << 30), (-3, 32 << 20)]),
    ],
)
def test_asks_an_older_glibc_for_less_and_trims_only_where_one_size_is_taken(
    monkeypatch, most_bytes, calls
) -> None:
    libc = OldGlibc(most_bytes)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    LEVER.apply(None, True)()
    assert libc.calls == calls


PROGRAM = r"""
import resource

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(1 << 22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

watch = Watch(measuring=False)
stock = faults()
AppliedLevers(watch.live).switch({"malloc_retention": True})
faults()
facts["kept"] = faults() < stock / 4
"""


@pytest.mark.child
def test_freed_memory_is_used_again_without_new_pages(training) -> None:
    assert training(PROGRAM)["kept"]
