"""The edited source trains as the plan does: weights bit for bit, in real processes."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hasten.errors
from hasten.cli import app
from hasten.records import Entry, ModelTraits, Plan, Traits
from hasten.report import archive
from hasten.report.edits import write_edits
from hasten.testing import fed

ROOT = Path(hasten.errors.__file__).parents[2]
EXAMPLE = ROOT / "examples" / "image_pipeline.py"
SMALL = '''"""A small script in the shape of many."""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 12), torch.randint(0, 3, (40,)))
train_set, test_set = random_split(data, [29, 11])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(test_set, batch_size=8)
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    for x, y in train_loader:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader))
torch.save({"model": model.state_dict()}, sys.argv[1])
'''


def start(*words, cwd, path=""):
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def patched(folder, diff):
    done = subprocess.run(
        ["patch", "-p1", "--fuzz=0"], cwd=folder, input=diff, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert not list(folder.glob("*.rej"))


def weights(path):
    import torch

    return torch.load(path)["model"]


@pytest.fixture
def train(tmp_path, workload):
    """Train a script under a plan, and a copy of it with the plan's edits as plain python."""

    def both(script, plan, traits, *argv):
        for name in ("plan", "edited"):
            (tmp_path / name).mkdir()
            shutil.copy(script, tmp_path / name / "train.py")
        edited = replace(
            workload, entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path / "edited")
        )
        applied = Plan(tuple(sorted(plan.items())))
        made = write_edits(edited, applied, traits=traits, env={})
        patched(tmp_path / "edited", made.diff)
        levers = [word for pair in plan.items() for word in ("--set", "{}={}".format(*pair))]
        under = ("-m", "hasten", "run", *levers, "train.py", *argv)
        said = start(*under, cwd=tmp_path / "plan", path=str(ROOT / "src"))
        return made, said, start("train.py", *argv, cwd=tmp_path / "edited")

    return both


@pytest.mark.child
@pytest.mark.slow
def test_an_example_with_its_edits_ends_with_the_weights_of_the_plan(train, tmp_path) -> None:
    import torch

    plan = {
        "autocast": "bfloat16", "channels_last": True, "flush_denormals": True,
        "garbage_collector": 10, "intra_op_threads": 1, "malloc_retention": True,
    }  # fmt: skip
    traits = Traits(model=ModelTraits(has_conv2d=True, conv_input_dimension_count=4))
    data = str(tmp_path / "pictures")
    argv = ("--data", data, "--pictures", "32", "--epochs", "2", "--batch-size", "16")
    made, _, _ = train(EXAMPLE, plan, traits, *argv)
    (note,) = made.notes
    assert "the inputs at train.py:123 stay as they are" in note
    ends = [weights(tmp_path / name / "out" / "checkpoint.pt") for name in ("plan", "edited")]
    assert len(ends[0]) > 10
    for name, weight in ends[0].items():
        assert torch.equal(weight, ends[1][name]), name


@pytest.mark.slow
@pytest.mark.child
def test_exact_edits_leave_shuffles_and_draws_as_they_are(train, tmp_path) -> None:
    import torch

    (tmp_path / "small.py").write_text(SMALL)
    plan = {"loader_workers": 2, "malloc_retention": True}
    traits = fed(draws=False)
    made, said, also_said = train(tmp_path / "small.py", plan, traits, "end.pt")
    assert "num_workers=2" in made.diff
    own = start("small.py", "end.pt", cwd=tmp_path)
    assert said == also_said == own
    ends = [weights(tmp_path / name / "end.pt") for name in ("plan", "edited", ".")]
    for name, weight in ends[2].items():
        assert torch.equal(weight, ends[0][name]), name
        assert torch.equal(weight, ends[1][name]), name


@pytest.fixture
def kept(tmp_path, monkeypatch, tuning):
    """A tuning that `hasten report` knows, of a script in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("import torch\n\nopt = torch.optim.SGD(ps, 1)\n")
    plan = Plan().with_lever("fused_optimizer", True).with_lever("intra_op_threads", 2)
    workload = replace(tuning.workload, argv=("train.py",), cwd=str(tmp_path))
    archive.remember(replace(tuning, plan=plan, workload=workload), Path("hasten.toml"))
    return tmp_path


def test_report_prints_the_diff_alone_and_the_notes_aside(kept) -> None:
    done = CliRunner().invoke(app, ["report", "--edits"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("hasten: fused_optimizer: the first update")
    patched(kept, done.stdout)
    assert (kept / "train.py").read_text() == (
        "import torch\n\ntorch.set_num_threads(2)\n\nopt = torch.optim.SGD(ps, 1, fused=True)\n"
    )
    again = CliRunner().invoke(app, ["report", "--edits"])
    assert not again.stdout


def test_a_lever_that_was_deleted_from_the_plan_file_is_not_written(kept) -> None:
    (kept / "hasten.toml").write_text("schema = 1\n\n[plan]\nintra_op_threads = 2\n\n[evidence]\n")
    done = CliRunner().invoke(app, ["report", "--edits", "hasten.toml"])
    assert done.exit_code == 0, done.output
    assert "+torch.set_num_threads(2)" in done.stdout
    assert "fused" not in done.output


def test_a_broken_script_is_told_in_one_sentence(kept) -> None:
    (kept / "train.py").write_text("import torch\nif x\n")
    done = CliRunner().invoke(app, ["report", "--edits"])
    assert done.exit_code == 2
    assert not done.stdout
    assert "line 2 is not Python that can be read.\n         Mend that line." in done.stderr


def test_a_run_never_loads_the_library_for_edits() -> None:
    code = (
        "import sys, hasten.cli, hasten.session, hasten.report.plan_file, hasten.lever as l; "
        "l.discover(); print('libcst' in sys.modules)"
    )
    assert start("-c", code, cwd=ROOT, path=str(ROOT / "src")) == "False\n"
