"""How many steps a closer look takes."""

import pytest

from hasten.records import Entry, Plan, Workload
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

SCRIPT = """
import time
import torch

weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], 0.1)
model = torch.nn.Linear(1, 1)
for step in range(1_000):
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    if step % 5 == 4:
        time.sleep(0.2)  # an evaluation
"""


@pytest.mark.child
def test_a_look_ends_where_evaluations_make_it_long(tmp_path, child_python) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=str(child_python)
    )
    trial = TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=60)
    try:
        trial.begin()
        steps, _ = trial.examine(90, timeout_s=60, least_count=8, most_s=0.5)
        assert 8 <= len(steps) < 90
        assert trial.step_count == 1 + len(steps)
        steps, _ = trial.examine(12, timeout_s=60, least_count=12, most_s=0.0)
        assert len(steps) == 12
        steps, _ = trial.examine(12, timeout_s=60, least_count=4, most_s=60.0)
        assert len(steps) == 12
    finally:
        trial.close()
