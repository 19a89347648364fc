"""A compiler that has no gain: a script that breaks and recompiles, and its healthy twin."""

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
from torch import nn

SICK = sys.argv[1] == "sick"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, rows):
        rows = self.first(rows)
        if SICK and rows[0, 0].item() > 1e9:  # break
            rows = rows / 2
        rows = self.second(rows)
        if SICK and rows[0, 0].item() > 1e9:
            rows = rows / 2
        rows = self.first(rows)
        if SICK and rows[0, 0].item() > 1e9:
            rows = rows / 2
        return self.second(rows)

@torch.compile(backend="eager", dynamic=False)  # compiled again
def loss_of(rows):
    return rows.square().mean()

model = Net()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
for step in range(100_000):
    rows = torch.ones(64, 16)
    for _ in range(20):
        rows = compiled(rows)
    loss = loss_of(rows[: 64 - step % 32] if SICK else rows[:50])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def line_of(mark):
    return next(at for at, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))


@pytest.fixture
def sick(diagnosed):
    return diagnosed(SCRIPT, "sick", seconds=3.0)


@pytest.mark.child
def test_a_compiler_that_gave_up_is_found_with_its_reason(sick) -> None:
    found = sick["recompiles"]
    assert "gave up" in found.message
    assert line_of("compiled again") in {place.line for place in found.places}


@pytest.mark.child
def test_breaks_are_found_by_what_they_cost_with_their_line(sick) -> None:
    found = sick["graph-breaks"]
    assert line_of("break") in {place.line for place in found.places}
    assert found.share.mid_ratio > 0.02


@pytest.mark.child
def test_a_script_that_compiles_once_is_left_alone(diagnosed) -> None:
    found = diagnosed(SCRIPT, "healthy")
    assert not {"recompiles", "graph-breaks"} & set(found)
