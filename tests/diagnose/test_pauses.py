import pytest

pytestmark = pytest.mark.child

SCRIPT = """
import gc, sys
import torch
from torch import nn

kept = [{"row": [i]} for i in range(60_000)]
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if sys.argv[1] == "sick":
        gc.collect()
"""


def test_collections_are_found(diagnosed) -> None:
    found = diagnosed(SCRIPT, "sick")["gc-pauses"]
    assert found.share.low_ratio > 0.5
    assert found.lever == "garbage_collector"


@pytest.mark.slow
def test_a_script_without_them_is_left_alone(diagnosed) -> None:
    assert "gc-pauses" not in diagnosed(SCRIPT, "healthy")
