import sys
from collections import Counter

import pytest

from upshift.attach.examine.stacks import summarised
from upshift.launch.arm import Arm
from upshift.launch.process import Isolation
from upshift.records import Entry, Plan, Workload

SCRIPT = """
import sys, threading
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORK = range(20_000 if sys.argv[1] == "sick" else 2)

class Rows(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        if index % 4 == 0:
            for _ in (0, 1):
                [x * x for x in WORK]  # data
        return torch.ones(512), 0

model = nn.Sequential(nn.Linear(512, 800), nn.ReLU(), nn.Linear(800, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
seen = 0
for rows, labels in DataLoader(Rows(), batch_size=4):
    guess = model(rows)
    weight = 1 + 0 * sum(x * x for x in WORK)  # loss
    loss = weight * nn.functional.cross_entropy(guess, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sum(x * x for x in WORK)  # other
    if seen == 80:
        ready = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1)
        assert next(iter(ready))[0].shape == (4, 512)
        names = [thread.name for thread in threading.enumerate()]
        print("ours", [name for name in names if name.startswith("upshift-stacks")])
    seen += 1
"""


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    path = tmp_path_factory.mktemp("stacks") / "train.py"
    path.write_text(SCRIPT)

    def run(kind):
        workload = Workload(
            entry=Entry.SCRIPT,
            argv=("train.py", kind),
            cwd=str(path.parent),
            python=sys.executable,
        )
        arm = Arm(workload, Plan(), isolation=Isolation.NONE, patience_s=60)
        try:
            arm.begin()
            arm.turns([(0, 0, 3, True)], timeout_s=60)
            _, found = arm.examine(60, timeout_s=120)
            arm.turns([(0, 0, 40, True)], timeout_s=60)
            return found, arm._process.output()
        finally:
            arm.close()

    return run


def line_of(mark):
    return next(at for at, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))


@pytest.mark.child
@pytest.mark.measures
def test_hot_lines_are_found_with_their_share_and_phase(looked_at) -> None:
    found, output = looked_at("sick")
    assert not found["broken"]
    lines = {line["line"]: line for line in found["stacks.lines"]}
    data, loss, other = (lines[line_of(mark)] for mark in ("data", "loss", "other"))
    assert (data["phase"], loss["phase"], other["phase"]) == ("data", "loss", "other")
    assert data["path"].endswith("train.py")
    assert loss["calls"] == ""
    for one in (loss, other):  # about the same work
        assert 0.15 < one["share_ratio"] / data["share_ratio"] < 1.5
    shares = [line["share_ratio"] for line in found["stacks.lines"]]
    assert shares == sorted(shares, reverse=True)
    assert "ours []\n" in output  # after the look nothing of it is left


@pytest.mark.child
@pytest.mark.measures
def test_a_loop_that_only_trains_has_no_hot_lines(looked_at) -> None:
    found, _ = looked_at("clean")
    assert found["stacks.sample_count"] > 20
    told = [line for line in found["stacks.lines"] if not line["calls"].startswith("torch.")]
    assert [line for line in told if line["share_ratio"] > 0.1] == []


def test_lines_are_counted_over_phases_and_small_ones_left_out() -> None:
    samples = Counter(
        {
            ("/a.py", 3, "data", ""): 30,
            ("/a.py", 3, "loss", "json.loads"): 31,
            ("/a.py", 4, "loss", ""): 1,
            ("", 0, "backward", ""): 38,
        }
    )
    (line,) = summarised(samples)
    assert line == {
        "path": "/a.py", "line": 3, "share_ratio": 0.61, "phase": "loss", "calls": "json.loads",
    }  # fmt: skip
