"""The Python API returns records, prints nothing and writes no file."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import hasten
from hasten.api import options
from hasten.errors import PlanError, ScriptFailed, UsageError
from hasten.records import Effect, Plan
from hasten.testing import RecordingWatcher

TRAINS = """
import torch
model = torch.nn.Linear(64, 64)
for step in range(100_000):
    model.zero_grad()
    model(torch.ones(32, 64)).sum().backward()
"""
# What torch needs beside itself; an environment of its own has these, and nothing of hasten's.
OF_TORCH = (
    "torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "filelock", "fsspec", "typing_extensions.py", "setuptools",
)  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TRAINS)
    return tmp_path


@pytest.mark.child
def test_a_profile_is_a_record(project, capsys) -> None:
    found = hasten.profile("train.py --epochs 3", step_count=20)
    assert found.workload.argv == ("train.py", "--epochs", "3")
    assert found.profile.step_s > 0.0
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in project.iterdir()] == ["train.py"]


@pytest.mark.child
@pytest.mark.slow
def test_a_tuning_is_a_record_and_its_watcher_hears_of_it(project, capsys) -> None:
    watcher = RecordingWatcher()
    tuning = hasten.tune(["train.py"], budget_s=60.0, only=["malloc_retention"], watcher=watcher)
    assert isinstance(tuning.plan, Plan)
    assert tuning.cost.wall_s < 66.0
    assert capsys.readouterr() == ("", "")
    assert not (project / "hasten.toml").exists()


def test_a_plan_file_is_a_record(project) -> None:
    (project / "hasten.toml").write_text("schema = 1\n[plan]\nintra_op_threads = 2\n")
    assert hasten.load_plan().plan == Plan().with_lever("intra_op_threads", 2)
    with pytest.raises(PlanError, match="no plan at gone"):
        hasten.load_plan("gone.toml")


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"only": ["channels-last"]}, "Unknown levers: channels-last"),
        ({"settings": {"intra_op_threads": 0}}, "intra_op_threads"),
        ({"assume": ["everything"]}, "There is no assumption"),
        ({"python": "no-such-python"}, "Cannot find the interpreter"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(project, asked, problem) -> None:
    with pytest.raises(UsageError, match=problem):
        hasten.tune("train.py", **asked)


@pytest.mark.parametrize("command", ["", []])
def test_a_command_without_a_script_is_refused_in_a_sentence(project, command) -> None:
    with pytest.raises(UsageError, match="No script is named"):
        hasten.profile(command)


def test_systems_other_than_linux_are_refused_in_a_sentence(project, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="hasten works on Linux, and this is darwin"):
        hasten.tune("train.py")


def test_names_may_come_from_anything_that_is_walked_through_once(project) -> None:
    found = options(
        only=(name for name in ["huge_pages"]),
        skip=iter(["autocast"]),
        assume=iter(["dataset-unchanged"]),
    )
    assert (found.only, found.skip) == ({"huge_pages"}, {"autocast"})
    assert found.assumed == {"dataset-unchanged"}


def test_a_lever_that_is_set_to_false_is_skipped(project) -> None:
    found = options(settings={"huge_pages": False, "intra_op_threads": 1}, skip=["autocast"])
    assert found.skip == {"autocast", "huge_pages"}
    assert found.applied.settings == (("intra_op_threads", 1),)


def test_a_scale_of_numerics_is_given_by_its_word(project) -> None:
    with pytest.raises(ValueError, match="rigorous"):
        hasten.tune("train.py", numerics="rigorous")
    assert Effect("rounding") is Effect.ROUNDING


def test_the_package_offers_what_it_documents() -> None:
    assert {"profile", "tune", "load_plan"} <= set(hasten.__all__)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        hasten.train  # noqa: B018


@pytest.mark.child
@pytest.mark.slow
def test_hasten_stands_in_an_environment_of_its_own(project) -> None:
    torch = pytest.importorskip("torch")
    place = project / "training"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    packages = next((place / "lib").glob("python*/site-packages"))
    for name in OF_TORCH:
        own = Path(torch.__file__).parents[1] / name
        if own.exists():
            (packages / name).symlink_to(own)
    (project / "train.py").write_text(
        f"import sys\nassert sys.prefix == {str(place)!r}, sys.prefix\n"
        "import importlib.util\nassert importlib.util.find_spec('rich') is None\n"
        f"{TRAINS.replace('100_000', '30')}print('trained')\n"
    )
    with pytest.raises(ScriptFailed):
        hasten.profile("train.py", step_count=10)
    assert hasten.profile("train.py", step_count=10, python=str(python)).profile.step_s > 0.0
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "run", "--python", str(python),
         "--set", "intra_op_threads=1", "train.py"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
