"""A trial that cannot even begin says so and leaves nothing."""

import os
import subprocess
import sys

import pytest

from hasten.errors import IsolationFailed
from hasten.trials.process import Isolation, Process


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BlockingIOError(11, "Resource temporarily unavailable"), IsolationFailed),
        (KeyboardInterrupt("Resource temporarily unavailable"), KeyboardInterrupt),
    ],
    ids=["refused", "interrupted"],
)
def test_a_guard_that_cannot_be_started_is_one_sentence_and_leaves_nothing(
    error, told, tmp_path, monkeypatch
) -> None:
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(subprocess, "Popen", refuse)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(told, match="Resource temporarily unavailable"):
        Process.start(
            [sys.executable, "-c", "pass"], env={}, cwd=str(tmp_path), scratch=scratch,
            isolation=Isolation.NONE,
        )  # fmt: skip
    assert not scratch.exists()
    assert set(os.listdir("/proc/self/fd")) == before
