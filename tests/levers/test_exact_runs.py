"""Every exact lever, from the command line to the last bit: found by itself, as levers are."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hasten
from hasten.lever import ScriptContext, discover
from hasten.records import Effect, Traits
from hasten.records.codec import revive
from hasten.testing import LAPTOP, sample_profile

pytestmark = [pytest.mark.child, pytest.mark.slow]
NAMES = [name for name, lever in discover().items() if lever.effect is Effect.EXACT]
SRC = Path(hasten.__file__).parents[1]
# Passes with a short last batch, evaluations between them, all kinds of learned state, and habits
# that levers are made for: gradients filled with zeros, a norm that is hardly ever too large.
SCRIPT = """
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(50, 3, 12, 12), torch.randint(0, 4, (50,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
    nn.Linear(800, 4))
average = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average, model.parameters()):
                a.mul_(0.99).add_(p, alpha=0.01)
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
states = [*model.state_dict().values(), *average, torch.rand(1), torch.tensor(right)]
states += [v for s in optimizer.state.values() for v in s.values()]
print(hashlib.sha256(b"".join(s.numpy().tobytes() for s in states)).hexdigest())
"""
TRAITS = """
import json, runpy, sys
from dataclasses import asdict
import torch
from hasten.instrument import Watch
from hasten.instrument.traits import TraitsReader
watch = Watch(measuring=True)
reader = TraitsReader(watch.fetches)
watch.observers.append(reader)
watch.install()
runpy.run_path("train.py")
print(json.dumps(asdict(reader.read())))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("exact")
    (place / "train.py").write_text(SCRIPT)
    return place


@pytest.fixture(scope="module")
def run(folder):
    env = {**os.environ, "PYTHONPATH": str(SRC), "HOME": str(folder)}

    def begin(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1], done.stderr

    return begin


@pytest.fixture(scope="module")
def context(run):
    traits = revive(Traits, json.loads(run("-c", TRAITS)[0]))
    return ScriptContext(machine=LAPTOP, baseline=sample_profile(), traits=traits)


@pytest.fixture(scope="module")
def ends(run, context):
    """What the script prints, plainly and under the first setting of each lever."""
    words = {"": ("train.py",)}
    for name in NAMES:
        for setting in discover()[name].settings(context)[:1]:
            said = str(setting).lower() if isinstance(setting, bool) else setting
            applied = ("--set", f"{name}={said}", "train.py")
            words[name] = ("-m", "hasten", "run", *applied)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(words, pool.map(lambda line: run(*line), words.values()), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_run_under_an_exact_lever_ends_with_the_same_bits(name, ends, context) -> None:
    if name not in ends:
        pytest.skip(f"{name} does not apply: {discover()[name].why_not(context)}")
    assert ends[name][0] == ends[""][0]
    assert "left out" not in ends[name][1]
