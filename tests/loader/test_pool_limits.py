"""What a pool of added workers asks of the process."""

import resource

import pytest

from hasten.loader.workers import pool


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), (65536, resource.RLIM_INFINITY)),
        ((1024, 1 << 20), (65536, 1 << 20)),
        ((4096, 4096), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_a_process_with_added_workers_may_have_many_open_files(monkeypatch, limits, asked) -> None:
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: made.append(both))
    pool._allow_descriptors()
    assert made == ([] if asked is None else [asked])
