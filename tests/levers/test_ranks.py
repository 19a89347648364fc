"""ranks: where it is offered, and that a run under it trains as the script does."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hasten.lever import ScriptContext, check_plan, discover, provided
from hasten.levers.ranks import LEVER
from hasten.protocol import ReadTraits, TraitsRead, Turn
from hasten.records import CompilerTraits, Entry, ModelTraits, Plan, Traits, Workload
from hasten.testing import LAPTOP, SERVER
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

MODEL = ModelTraits(parameter_count=1000, device="cpu")


def context(machine=LAPTOP, **traits):
    return ScriptContext(machine=machine, traits=Traits(**{"model": MODEL, **traits}))


def cores(count):
    return replace(LAPTOP, budget=replace(LAPTOP.budget, core_count=count))


def ran(folder, *words):
    return subprocess.run(
        [sys.executable, *words, "train.py"], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (1, ()),
        (2, ("2x1",)),
        (3, ("2x1",)),
        (4, ("2x2", "4x1")),
        (6, ("2x3", "4x1")),
        (64, ("8x8", "16x4", "4x16", "32x2", "2x32", "64x1")),
    ],
)
def test_ranks_times_threads_fill_the_cores(count, settings) -> None:
    found = LEVER.settings(context(cores(count)))
    assert found == settings
    for setting in found:
        check_plan(Plan().with_lever("ranks", setting))


@pytest.mark.parametrize(
    ("machine", "traits", "why"),
    [
        (LAPTOP, {"model": ModelTraits()}, "the loop calls no module with parameters"),
        (SERVER, {"model": replace(MODEL, device="cuda")}, "the model is on cuda"),
        (LAPTOP, {"rank_count": 2}, "several processes train together already"),
        (LAPTOP, {"compiler": CompilerTraits(is_used=True)}, "the script uses torch.compile"),
        (LAPTOP, {"model": replace(MODEL, unshared="Linear has hooks")}, "Linear has hooks"),
        (cores(1), {}, "the job has one core"),
    ],
)
def test_says_what_stands_against_it(machine, traits, why) -> None:
    assert LEVER.settings(context(machine, **traits)) == ()
    assert LEVER.why_not(context(machine, **traits)).startswith(why)


@pytest.mark.parametrize(
    ("other", "setting"),
    [("torch_compile", "default"), ("device_placement", "cuda"), ("intra_op_threads", 1)],
)
def test_levers_that_leave_nothing_to_one_another_are_not_joined(other, setting) -> None:
    traits = Traits(model=MODEL)
    beside = discover()[other]
    assert not beside.redundant_with(setting, traits)
    assert beside.redundant_with(setting, provided(Plan().with_lever("ranks", "2x1"), traits))
    if other != "intra_op_threads":
        assert not LEVER.redundant_with("2x1", traits)
        assert LEVER.redundant_with("2x1", provided(Plan().with_lever(other, setting), traits))


UNSHARED = """
import torch
from torch import nn

net, other, loss = nn.LSTM(4, 4, 2, dropout=0.5), nn.Linear(4, 4), nn.Tanh()
optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
LATER
while True:
    optimizer.zero_grad()
    for model in (MODELS,):
        found = model(torch.randn(3, 2, 4))
    (found[0] if model is net else found).square().mean().backward()
    optimizer.step()
"""
SCRIPT = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    x = torch.randn(9, 4)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
    children = len(file.read().split())
print(f"{loss.item():.12f} {torch.get_rng_state().sum().item()} {torch.get_num_threads()}")
print(children, file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.child
@pytest.mark.parametrize(
    ("models", "later", "told"),
    [
        ("net", "", "LSTM drops out between its layers in one operation"),
        ("net, other", "", ""),
        ("loss, net", "", "LSTM drops out between its layers in one operation"),
        (
            "other",
            "def late(loss, second):\n    loss.backward(create_graph=second)",
            "shares have no gradients of gradients, and train.py has create_graph in <module>",
        ),
    ],
)
def test_the_unmodified_script_shows_what_cannot_be_shared(
    child_python, tmp_path, models, later, told
) -> None:
    """So no trial is launched to be told; one model that may be shared is enough to try."""
    (tmp_path / "train.py").write_text(UNSHARED.replace("MODELS", models).replace("LATER", later))
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=child_python
    )
    trial = TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=60.0)
    try:
        trial.begin()
        trial.turns([Turn(0, 0, 3, True)], timeout_s=60.0)
        traits = trial.ask(ReadTraits(), TraitsRead, 60.0).traits
    finally:
        trial.close()
    assert traits.model.unshared == told
    found = ScriptContext(machine=cores(2), traits=traits)
    assert (LEVER.why_not(found), LEVER.settings(found)) == (told, () if told else ("2x1",))


@pytest.mark.child
def test_a_run_prints_what_the_script_prints_and_leaves_nothing(tmp_path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain, ours = ran(tmp_path), ran(tmp_path, "-m", "hasten", "run", "--set", "ranks=3x1")
    assert (ours.returncode, ours.stdout) == (3, plain.stdout), ours.stderr
    assert (plain.stderr.split(), ours.stderr.split()) == (["0"], ["2"])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


CONVOLUTIONS = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8),
    nn.Flatten(), nn.Linear(128, 2),
)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    loss = net(torch.randn(9, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


@pytest.mark.slow
@pytest.mark.child
def test_normalization_among_ranks_keeps_channels_last(tmp_path) -> None:
    (tmp_path / "train.py").write_text(CONVOLUTIONS)
    setting = ("--set", "ranks=2x1", "--set", "channels_last=true")
    plain, ours = ran(tmp_path), ran(tmp_path, "-m", "hasten", "run", *setting)
    assert (plain.returncode, ours.returncode, ours.stderr) == (0, 0, "")
    assert float(ours.stdout) == pytest.approx(float(plain.stdout), rel=1e-4)
