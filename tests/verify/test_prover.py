"""The proof on real runs: harmless levers pass, planted faults do not."""

import shutil
import sys
from dataclasses import replace

import pytest

from upshift.launch.process import best_isolation
from upshift.launch.verification import recorded
from upshift.records import Effect, Entry, Plan, Workload
from upshift.session.proof import Prover
from upshift.verify import gates
from upshift.verify.evidence import read_evidence

STEPS = 12
# Sets no seed: weights, dropout, order and noise come from generators that are pinned.
SCRIPT = """
import sys
import numpy as np
import torch
from torch import nn
torch.set_num_threads(1)
fault = sys.argv[1]
data = torch.utils.data.TensorDataset(
    torch.from_numpy(np.random.default_rng().normal(size=(96, 3, 8, 8)).astype("float32")),
    torch.randint(0, 4, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
    nn.Linear(8 * 64, 4))
lr, decay = 0.05, 0.01
if fault == "lr": lr *= 1.005
if fault == "decay": decay = 0.0
if fault == "frozen": model[0].requires_grad_(False)
if fault == "momentum": model[1].momentum = 0.2
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
step = 0
for epoch in range(20):
    model.train()
    if fault == "eval": model[1].eval()
    for x, y in loader:
        step += 1
        if fault == "batch" and step == 5: x = x.flip(0)
        loss = nn.functional.cross_entropy(model(x), y)
        if fault == "half": loss = loss / 2
        optimizer.zero_grad()
        loss.backward()
        if fault == "hidden lr":
            for p in model.parameters(): p.grad *= 1.005
        if fault == "skip" and step == 3: continue
        optimizer.step()
"""
pytestmark = pytest.mark.child


@pytest.fixture(scope="module")
def workload(tmp_path_factory) -> Workload:
    folder = tmp_path_factory.mktemp("proof")
    (folder / "train.py").write_text(SCRIPT)
    argv = ("train.py", "none")
    return Workload(entry=Entry.SCRIPT, argv=argv, cwd=str(folder), python=sys.executable)


@pytest.fixture(scope="module")
def record(workload, tmp_path_factory):
    """Record the script with a planted fault, or with another floor."""
    known = {}
    taught = tmp_path_factory.mktemp("taught")

    def run(fault="none", *, again=0, floor_seed=None):
        key = (fault, again, floor_seed)
        if key not in known:
            with recorded(
                replace(workload, argv=("train.py", fault)), Plan(), step_count=STEPS,
                forced_count=6, teacher=taught if any(taught.iterdir()) else None,
                isolation=best_isolation(), patience_s=120, floor_seed=floor_seed,
            ) as (message, folder):  # fmt: skip
                if not any(taught.iterdir()):
                    for path in folder.glob("weights*"):
                        shutil.copy(path, taught)
                known[key] = read_evidence(message, folder)
        return known[key]

    return run


@pytest.fixture(autouse=True)
def _baseline_first(record):
    """The script as it is leaves the weights that every other run starts its steps from."""
    record()


def test_an_unseeded_script_repeats_itself_to_the_bit(record) -> None:
    first, second = record(), record(again=1)
    assert gates.repeatable(first, second).passed is True
    assert first.step_count == STEPS
    assert len(set(first.batches)) == STEPS


def test_one_changed_bit_per_weight_is_seen_and_is_rounding(record) -> None:
    floors = [record(floor_seed=1)]
    assert not record().equals(floors[0])
    assert gates.within_floor(record(), floors[0], floors).passed is True


@pytest.mark.parametrize("fault", ["lr", "decay", "frozen", "eval"])
def test_a_fault_in_the_settings_is_caught_by_the_structure(record, fault) -> None:
    gate = gates.same_structure(record(), record(fault), redraws=False)
    assert gate.passed is False, gate.says


@pytest.mark.parametrize("fault", ["half", "hidden lr", "batch", "skip"])
def test_a_fault_in_the_arithmetic_is_caught_by_a_gate(record, fault) -> None:
    structure = gates.same_structure(record(), record(fault), redraws=False)
    rounding = gates.within_floor(record(), record(fault), [record(floor_seed=1)])
    assert False in (structure.passed, rounding.passed), (structure.says, rounding.says)


def test_a_fault_in_what_is_learned_without_gradients_is_not_exact(record) -> None:
    assert gates.same_bits(record(), record("momentum")).passed is False


def test_harmless_levers_are_proved(workload) -> None:
    with Prover(
        workload, isolation=best_isolation(), step_s=0.01, start_s=5.0, patience_s=120.0,
        parameter_count=3000,
    ) as prover:  # fmt: skip
        for plan in (
            Plan().pull("channels_last", True).pull("fused_optimizer", True),
            Plan().pull("malloc_retention", True),
        ):
            proof = prover.prove(plan)
            assert proof.holds, [gate.says for gate in proof.gates]
            assert proof.gates
    assert proof.effect is Effect.EXACT
