import json
import sys
from collections import Counter
from math import sqrt

import pytest

from hasten.errors import TooFewSteps
from hasten.instrument.examine.stacks import _library, libraries, summarised
from hasten.protocol import Turn
from hasten.records import Entry, Plan, Workload
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

# Beside what is looked at, the script measures its lines itself: short and long calls into C that
# keep Python's lock, one that lets go of it, and plain Python.
SCRIPT = """
import atexit, json, signal, sys, time, threading, zlib
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)  # two that share a core with another test wait for each other
hot, rings = sys.argv[1] == "sick", []
if "taken" in sys.argv:
    signal.signal(signal.SIGALRM, lambda *rung: rings.append(rung))
spent = dict.fromkeys(("data", "loss", "other", "freed"), 0.0)
seen = -1

def timed(name, begun):
    if 20 <= seen < 120:
        spent[name] += time.perf_counter() - begun

class Rows(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        if index % 4 == 0 and hot:
            begun = time.perf_counter()
            [x * x for x in range(40_000)]  # data
            timed("data", begun)
        return torch.ones(512), 0

model = nn.Sequential(nn.Linear(512, 800), nn.ReLU(), nn.Linear(800, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
words, text = [str(x * 7919 % 10_007) for x in range(6_000)], bytes(range(256)) * 1500
for rows, labels in DataLoader(Rows(), batch_size=4):
    seen += 1
    guess = model(rows)
    if hot:
        begun = time.perf_counter()
        sorted(words)  # loss
        timed("loss", begun)
    loss = nn.functional.cross_entropy(guess, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if hot:
        begun = time.perf_counter()
        sum(x * x for x in range(20_000))  # other
        timed("other", begun)
        begun = time.perf_counter()
        zlib.compress(text)  # freed
        timed("freed", begun)
    if seen == 130:
        ready = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1)
        assert next(iter(ready))[0].shape == (4, 512)
        names = [thread.name for thread in threading.enumerate()]
        handler = signal.getsignal(signal.SIGALRM)
        told = {"threads": names, "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
                "handler": getattr(handler, "__name__", "none"), "spent": spent, "rung": len(rings)}
        print("told", json.dumps(told))
"""

PHASES = {"data": "data", "loss": "loss", "other": "other", "freed": "other"}


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    path = tmp_path_factory.mktemp("stacks") / "train.py"
    path.write_text(SCRIPT)

    def run(*words):
        workload = Workload(
            entry=Entry.SCRIPT,
            argv=("train.py", *words),
            cwd=str(path.parent),
            python=sys.executable,
        )
        arm = TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=60)
        try:
            arm.begin()
            arm.turns([Turn(0, 0, 19, True)], timeout_s=60)
            _, found = arm.examine(100, timeout_s=120)
            arm.turns([Turn(0, 0, 20, True)], timeout_s=60)
            (line,) = (w for w in arm._process.output().splitlines() if w.startswith("told "))
            return found, json.loads(line.removeprefix("told "))
        finally:
            arm.close()

    return run


def line_of(mark):
    return next(at for at, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))


@pytest.mark.measures
@pytest.mark.child
def test_hot_lines_are_found_with_their_share_and_phase(looked_at) -> None:
    found, told = looked_at("sick")
    assert not found["broken"]
    lines = {line["line"]: line for line in found["stacks.lines"]}
    hot = {mark: lines.get(line_of(mark)) for mark in PHASES}
    assert all(hot.values()), (found, told)
    assert {mark: line["phase"] for mark, line in hot.items()} == PHASES
    assert hot["data"]["path"].endswith("train.py")
    assert hot["loss"]["calls"] == ""
    seen_ratio, spent_s = sum(line["share_ratio"] for line in hot.values()), told["spent"]
    count = seen_ratio * found["stacks.sample_count"]
    for mark, line in hot.items():  # as the script itself measured them
        truth_ratio = spent_s[mark] / sum(spent_s.values())
        error = 4 * sqrt(truth_ratio * (1 - truth_ratio) / count) + 0.1 * truth_ratio
        assert line["share_ratio"] / seen_ratio == pytest.approx(truth_ratio, abs=error), mark
    shares = [line["share_ratio"] for line in found["stacks.lines"]]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.slow
@pytest.mark.child
def test_a_script_that_has_an_alarm_of_its_own_keeps_it_and_is_not_looked_at(looked_at) -> None:
    found, told = looked_at("sick", "taken")
    assert not found["broken"]
    assert found["stacks.lines"] == []
    assert told["rung"] == 0


@pytest.mark.slow
@pytest.mark.child
def test_after_the_look_nothing_of_it_is_left(looked_at) -> None:
    for words, handler in ((("clean",), "none"), (("clean", "taken"), "<lambda>")):
        _, told = looked_at(*words)
        assert not [name for name in told["threads"] if name.startswith("hasten-pulse")]
        assert told["alarm"] == 0.0
        assert told["handler"] == handler


@pytest.mark.measures
@pytest.mark.child
@pytest.mark.slow
def test_a_loop_that_only_trains_has_no_hot_lines(looked_at) -> None:
    found, _ = looked_at("clean")
    assert found["stacks.sample_count"] > 20
    told = [line for line in found["stacks.lines"] if not line["calls"].startswith("torch.")]
    assert [line for line in told if line["share_ratio"] > 0.1] == []


def test_lines_are_counted_over_phases_and_small_ones_left_out() -> None:
    samples = Counter(
        {
            ("/a.py", 3, "data", "", ""): 30,
            ("/a.py", 3, "loss", "json.loads", "json"): 31,
            ("/a.py", 4, "loss", "", ""): 1,
            ("", 0, "backward", "", ""): 38,
        }
    )
    (line,) = summarised(samples)
    assert line == {
        "path": "/a.py", "line": 3, "share_ratio": 0.61, "phase": "loss", "calls": "json.loads",
    }  # fmt: skip


def test_libraries_are_counted_outside_of_all_phases() -> None:
    samples = Counter(
        {
            ("/a.py", 3, "other", "json.dump", "json"): 5,
            ("/a.py", 4, "other", "json.loads", "json"): 2,
            ("/a.py", 5, "other", "torch.save", ""): 9,
            ("/a.py", 6, "data", "csv.reader", "csv"): 9,
        }
    )
    assert libraries(samples) == {"json": 7}


@pytest.mark.parametrize(
    ("inner", "calls", "library"),
    [
        ("PIL.Image", "matplotlib.pyplot.savefig", "matplotlib"),
        ("tensorboard.writer", "torch.utils.tensorboard.writer.add", "tensorboard"),
        ("torch.nn.functional", "lightning.Trainer.fit", ""),  # torch is at work
        ("hasten.instrument.hooks", "lightning.Trainer.fit", ""),
        ("train", "", ""),  # the script itself
    ],
)
def test_a_library_is_at_work_where_torch_is_not(inner, calls, library) -> None:
    names = {"__name__": inner, "sys": sys}
    exec("frame = sys._getframe()", names)
    assert _library(names["frame"], calls) == library


@pytest.mark.child
def test_a_script_that_ends_while_it_is_looked_at_ends_as_it_would(tmp_path) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, time, torch\n"
        "atexit.register(time.sleep, 0.2)\n"
        "weights = torch.ones(3, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weights], lr=0.1)\n"
        "for step in range(40):\n"
        "    weights.sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.005)\n"
    )
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )
    arm = TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=60)
    try:
        arm.begin()
        with pytest.raises(TooFewSteps):
            arm.examine(100, timeout_s=60)
        ended = arm._process.wait(30)
        assert (ended.code, ended.signal) == (0, None)
    finally:
        arm.close()
