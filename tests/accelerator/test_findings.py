"""Scripts that hold an accelerator up, and a twin that does not, on a device that is late."""

import os
import sys
from functools import cache

import pytest

from hasten.machine import probe_torch

SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

mode, late_s = sys.argv[1], 10 * 1e-6 * int(sys.argv[2])
torch.set_num_threads(1)
accelerator = torch.accelerator.current_accelerator()
device = "cpu" if mode == "unused" else accelerator


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(1024, 16 * 1024)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.rows[index % 1024], index % 4


pinned = mode not in ("pageable", "pinned by hand")
loader = DataLoader(Rows(), batch_size=32, pin_memory=pinned)
net = nn.Sequential(nn.Linear(16 * 1024, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
total = 0.0
for step, (x, y) in enumerate(loader):
    time.sleep(late_s)
    if mode == "pinned by hand":
        x = x.pin_memory()
    x = x.to(device, non_blocking=mode != "blocking")
    y = y.to(device, non_blocking=mode != "blocking")
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seldom = step % 20 == 19
    if mode == "reading" or seldom:
        total += loss.item()
    if mode == "synchronizing" or seldom:
        torch.get_device_module(accelerator).synchronize()
    if mode == "emptying" or seldom:
        torch.accelerator.empty_cache()
"""


@cache
def torch_facts():
    return probe_torch(sys.executable)


@pytest.fixture
def found(diagnosed, monkeypatch):
    """Return what is found in one form of the script."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, paths)))

    def find(mode, kernel_us):
        monkeypatch.setenv("LAGGARD_KERNEL_US", str(kernel_us))
        monkeypatch.setenv("LAGGARD_US_PER_MIB", str(4 * kernel_us))
        return diagnosed(SCRIPT, mode, str(kernel_us), probe=torch_facts)

    return find


LATE, PROMPT = 1_000, 0


@pytest.mark.parametrize(
    ("mode", "kernel_us", "name", "line"),
    [
        ("unused", PROMPT, "accelerator-unused", ""),
        ("pageable", LATE, "pinned-memory-missing", "x = x.to(device"),
        ("blocking", LATE, "blocking-copies", "x = x.to(device"),
        pytest.param(
            "pinned by hand", PROMPT, "pinned-memory-useless", "x = x.pin_memory()",
            marks=pytest.mark.slow,
        ),
        ("reading", LATE, "step-reporting", "total += loss.item()"),
        ("synchronizing", LATE, "synchronize-in-loop", "torch.get_device_module(accelerator).sync"),
        pytest.param(
            "emptying", LATE, "synchronize-in-loop", "torch.accelerator.empty_cache()",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_sick_script_is_told_from_its_twin(found, mode, kernel_us, name, line) -> None:
    seen = found(mode, kernel_us)
    places = seen[name].places
    assert places[0].source.startswith(line) if line else not places
    assert name not in found("healthy", kernel_us)
