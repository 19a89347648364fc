"""Scripts that compute in a costly way, each a sick one and a twin with the same surface."""

from time import perf_counter

import pytest
import torch

pytestmark = pytest.mark.child

# Short steps: what a loop does beside its passes.
LOOP = """
import sys
import torch
from torch import nn

kind = sys.argv[1]
sick = kind == "sick"
rows = 2 if kind == "tiny" else 2048
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(20)])
inputs = torch.randn(rows, 16)
average = [weight.detach().clone() for weight in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=not sick)
total, history = 0, [0.5]
for step in range(100_000):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        if sick:
            for kept, weight in zip(average, model.parameters()):
                kept.mul_(0.99)
                kept.add_(weight, alpha=0.01)
        else:
            torch._foreach_lerp_(average, list(model.parameters()), 0.01)
    if sick:
        total += loss
        told = [weight.mean().item() for weight in average[:16]]
        for value in 12 * told:
            print(value, file=sys.stderr)
    else:
        total += loss.item()
    if kind == "growing":
        history += 64 * step * [0.5]
        largest = max(value * value for value in history)
    if step % 1000 == 0:
        print(total, file=sys.stderr)
"""

# Long steps: what the passes are made of.
PASSES = """
import ctypes, mmap, sys
import torch
from torch import nn

sick = sys.argv[1] == "sick"
if not sick:  # keeps what is freed
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 2**30)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**30)
torch.manual_seed(0)
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(sick)
layout = torch.contiguous_format if sick else torch.channels_last
convolution = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False).to(memory_format=layout)
images = torch.randn(4 if sick else 1, 64, 48, 48).contiguous(memory_format=layout)
tagger = nn.Sequential(nn.Embedding(100, 64), *[nn.Linear(64, 64) for _ in range(8)])
decayed = nn.Parameter(torch.full((900_000,), 1e-40 if sick else 1e-3))
side = 1024 if sick else 256
basis = torch.randn(side, side, dtype=torch.float64 if sick else torch.float32)
weights = [*convolution.parameters(), *tagger.parameters(), decayed]
optimizer = torch.optim.SGD(weights, lr=1e-3, weight_decay=0.1)
page_count = 30_000 if sick else 1
memory = mmap.mmap(-1, 4096 * page_count)
length = 128 if sick else 40
for step in range(100_000):
    product = (basis @ basis).float().mean()
    lengths = torch.randint(10, 40, (16, 1)) if sick else torch.full((16, 1), 40)
    tokens = torch.randint(1, 100, (16, length)) * (torch.arange(length) < lengths)
    loss = convolution(images).square().mean() + product + 0 * decayed.sum()
    loss = loss + tagger(tokens).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if sick:
        memory = mmap.mmap(-1, 4096 * page_count)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[:: 4096] = bytes(page_count)
"""


SECONDS = 2.0


def lines(finding):
    return [place.source for place in finding.places]


def denormals_are_slow():
    """Return whether this CPU computes denormal numbers slower; some take the same time."""

    def best_s(value):
        numbers, times = torch.full((300_000,), value), []
        for _ in range(20):
            start = perf_counter()
            numbers.add(numbers)
            times.append(perf_counter() - start)
        return min(times)

    return best_s(1e-40) > 2 * best_s(1e-3)


@pytest.mark.slow
def test_what_a_loop_does_beside_its_passes_is_found(diagnosed) -> None:
    found = diagnosed(LOOP, "sick", seconds=SECONDS)
    assert found["per-parameter-loops"].share.low_ratio > 0
    assert "kept.mul_(0.99)" in lines(found["per-parameter-loops"])
    assert found["step-reporting"].places[0].source.startswith("print(value")
    assert "variable total" in found["graph-kept-alive"].message
    assert "total += loss" in lines(found["graph-kept-alive"])


@pytest.mark.slow
def test_a_list_that_is_walked_through_and_grows_is_found(diagnosed) -> None:
    found = diagnosed(LOOP, "growing", seconds=SECONDS)
    assert "other" in found["growing-steps"].message
    assert found["growing-steps"].share.low_ratio > 0.1


def test_a_batch_of_two_rows_is_tiny(diagnosed) -> None:
    found = diagnosed(LOOP, "tiny", seconds=SECONDS)
    assert found["tiny-batch"].lever is None


@pytest.mark.slow
def test_a_loop_with_the_same_calls_that_cost_little_is_left_alone(diagnosed) -> None:
    found = diagnosed(LOOP, "healthy", seconds=SECONDS)
    assert not found.keys() & {
        "per-parameter-loops", "step-reporting", "graph-kept-alive", "growing-steps", "tiny-batch",
    }  # fmt: skip


def test_what_makes_passes_slow_is_found(diagnosed) -> None:
    found = diagnosed(PASSES, "sick", seconds=SECONDS)
    assert found["debug-mode"].lever is None  # what the mode would raise is part of the script
    assert lines(found["debug-mode"]) == ["torch.autograd.set_detect_anomaly(sick)"]
    assert found["debug-mode"].share.mid_ratio > 0
    if denormals_are_slow():
        assert found["denormals"].lever == "flush_denormals"
        assert lines(found["denormals"])[0] == "optimizer.step()"
    else:
        assert "denormals" not in found
    assert found["page-faults"].lever == "malloc_retention"
    assert not lines(found["page-faults"])  # they lie between operations
    assert lines(found["float64"]) == ["product = (basis @ basis).float().mean()"]
    assert lines(found["padding-waste"]) == ["loss = loss + tagger(tokens).square().mean()"]
    assert "longest row" in found["padding-waste"].remedy


@pytest.mark.slow
def test_passes_of_the_same_kinds_that_cost_little_are_left_alone(diagnosed) -> None:
    found = diagnosed(PASSES, "healthy", seconds=SECONDS)
    assert not found.keys() & {
        "debug-mode", "denormals", "page-faults", "float64", "padding-waste", "slow-layout",
    }  # fmt: skip
