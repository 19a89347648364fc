"""What is told of devices, by devices that are played."""

from types import SimpleNamespace

import pytest

from hasten.instrument import accelerators

GIB = 1 << 30


def backend(peaks, kept, free):
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(peaks),
        max_memory_allocated=peaks.__getitem__,
        max_memory_reserved=kept.__getitem__,
        mem_get_info=lambda index: (free[index], 80 * GIB),
    )


@pytest.fixture
def played(monkeypatch):
    def play(*found):
        monkeypatch.setattr(accelerators, "backends", lambda: iter(found))

    return play


def test_a_second_process_is_weighed_by_what_the_first_keeps(played) -> None:
    played(backend([10 * GIB, 2 * GIB], [30 * GIB, 3 * GIB], [45 * GIB, 70 * GIB]))
    assert accelerators.usage() == {
        "device_count": 2, "peak_device_bytes": 12 * GIB, "spare_device_bytes": 15 * GIB,
        "others_device_ratio": 7 / 80,
    }  # fmt: skip


def test_a_device_that_is_not_used_is_no_limit(played) -> None:
    played(backend([10 * GIB, 0], [30 * GIB, 0], [45 * GIB, 0]))
    used = accelerators.usage()
    assert (used["spare_device_bytes"], used["device_count"]) == (15 * GIB, 1)


def test_nothing_is_told_of_a_driver_that_sleeps_or_keeps_no_count(played) -> None:
    asleep = backend([1], [1], [1])
    asleep.is_initialized = lambda: False
    played(asleep, SimpleNamespace(is_initialized=lambda: True))
    assert accelerators.usage() == {}
