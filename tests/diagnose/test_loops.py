"""Loops, evaluation and checkpoints: one sick script and its healthy twin."""

import pytest

SCRIPT = """
import os, statistics, sys
import torch
from torch import nn

SICK = sys.argv[1] == "sick"
TIMES = 64 if SICK else 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.again = nn.Linear(16, 48), nn.Linear(48, 48)
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(60))

    def forward(self, rows):
        state = torch.zeros(len(rows), 48)
        for time in range(TIMES):
            state = torch.tanh(self.enter(rows[:, time]) + self.again(state))  # loop
        for layer in self.layers:
            state = layer(state)  # layers
        return state

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
rows = torch.ones(32, 64, 16)
weights = torch.zeros(3_000_000 if SICK else 3)
for step in range(100_000):
    if not SICK:
        model.eval()  # frozen statistics; it trains nevertheless
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.set_grad_enabled(SICK):
        right = float(model(rows).mean())  # evaluation
    model.train()
    if step % (2 if SICK else 400) == 0:
        statistics.stdev(range(12_000))  # metrics
    if step % (2 if SICK else 40) == 0:
        with open("last.pt", "wb") as file:
            torch.save(weights, file)  # checkpoint
            if SICK:
                os.fsync(file.fileno())
"""

NAMES = {"python-loops", "eval-with-grad", "checkpoint-stall", "other-libraries"}


def line_of(mark):
    return next(at for at, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))


@pytest.fixture
def sick(diagnosed):
    return diagnosed(SCRIPT, "sick")


@pytest.mark.child
def test_a_loop_over_time_steps_is_found_with_its_line(sick) -> None:
    found = sick["python-loops"]
    assert [place.line for place in found.places] == [line_of("loop")]
    assert "64 times in one pass" in found.message


@pytest.mark.child
def test_evaluation_with_gradients_is_found_with_its_line(sick) -> None:
    found = sick["eval-with-grad"]
    assert found.places[0].line == line_of("evaluation")
    assert found.share.low_ratio > 0.05


@pytest.mark.child
def test_checkpoints_are_found_with_their_period(sick) -> None:
    assert "every 2 steps" in sick["checkpoint-stall"].message


@pytest.mark.child
def test_work_outside_of_torch_is_found_with_its_line(sick) -> None:
    found = sick["other-libraries"]
    assert [place.line for place in found.places] == [line_of("metrics")]
    assert "in statistics" in found.message


@pytest.mark.child
@pytest.mark.slow
def test_the_healthy_twin_shows_none_of_them(diagnosed) -> None:
    assert not NAMES & set(diagnosed(SCRIPT, "healthy"))
