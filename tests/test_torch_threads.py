"""A number of threads that comes and goes leaves MKL's own choice of threads as it was."""

import os
import subprocess
import sys

import pytest
import torch

from hasten import torch_threads
from hasten.loader.workers.streams import Streams

SCRIPT = """
import sys
import torch
from hasten import torch_threads

if sys.argv[1] == "set":
    torch.set_num_threads(torch.get_num_threads())
before, count = torch_threads.chooses_threads(), torch.get_num_threads()
with torch_threads.with_threads(1):
    inside = torch.get_num_threads(), torch_threads.chooses_threads()
print(before, torch_threads.chooses_threads(), *inside, torch.get_num_threads() == count)
"""


def told(*args, **env):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], env={**os.environ, **env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.child
@pytest.mark.skipif(torch_threads._mkl() is None, reason="needs a torch whose MKL can be asked")
def test_mkl_chooses_again_where_nobody_else_has_set_a_number() -> None:
    assert told("stock") == ["True", "True", "1", "False", "True"]
    assert told("set") == ["False", "False", "1", "False", "True"]
    assert told("stock", MKL_DYNAMIC="FALSE") == ["False", "False", "1", "False", "True"]


def test_a_torch_without_mkl_has_its_number_back(monkeypatch) -> None:
    monkeypatch.setattr(torch_threads, "_mkl", lambda: None)
    count = torch.get_num_threads()
    with torch_threads.with_threads(count + 1):
        assert torch.get_num_threads() == count + 1
    assert torch.get_num_threads() == count


def test_what_is_made_in_place_of_a_worker_has_one_thread_whoever_holds_the_number(
    monkeypatch,
) -> None:
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)  # as a lever that holds it
    streams = Streams(1, 2, [0], quiet=True)
    assert streams.fetch(0, torch._C.get_num_threads) == 1
    assert asked == []
