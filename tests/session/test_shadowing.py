"""Users have modules named like Python's own: theirs stay theirs, and ours stay Python's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.protocol import Mode
from hasten.records import Plan
from hasten.trials.child_environment import environment

# What the user has adds to what Python has, or torch itself could not be imported.
MODULE = """
import os
print("own module")
place = os.path.join(os.path.dirname(os.__file__), "{name}")
if os.path.isdir(place):
    __path__ = [place]
    place = os.path.join(place, "__init__")
exec(compile(open(place + ".py").read(), place, "exec"))
OWN = True
"""
SCRIPT = """
print("begun")
import torch
from torch.utils.data import DataLoader, TensorDataset
print("torch")
torch.set_num_threads(1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.ones(40, 3)), batch_size=4)
for _ in range({passes}):
    for batch, in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
print("trained")
import {name}
assert {name}.OWN and {name}.__file__ == {file!r}, {name}.__file__
print("done")
"""
APPLIED = ("--set", "intra_op_threads=1", "--set", "loader_workers=1", "--set",
          "malloc_retention=true", "--set", "sample_cache=64MiB")  # fmt: skip


def one_quick(name, *others):
    return [name, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


TORCH_NEEDS = one_quick("selectors", "struct", "dataclasses")


@pytest.fixture
def started(tmp_path):
    work = tmp_path / "work"
    work.mkdir()

    def start(name, *words, passes=1, module=MODULE, folder=work, env=None):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(module.format(name=name))
        script = SCRIPT.format(name=name, file=str(folder / f"{name}.py"), passes=passes)
        (work / "train.py").write_text(script)
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
        return subprocess.run(
            [sys.executable, *words], cwd=work, env=base | (env or {}),
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

    return start


def ran(done):
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.child
@pytest.mark.parametrize("name", TORCH_NEEDS)
def test_a_module_that_torch_needs_too_is_imported_by_the_script_alone(started, name) -> None:
    said = ran(started(name, "-m", "hasten", "run", *APPLIED, "train.py"))
    assert said[0] == "begun"
    assert said[-1] == "done"
    assert said.count("own module") == 1


@pytest.mark.child
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("statistics", ("train.py",)),
        pytest.param("shlex", ("-m", "train"), marks=pytest.mark.slow),
    ],
)
def test_the_output_is_that_of_plain_python(started, name, words) -> None:
    alone = "print('own module')\nOWN = True\n"
    plain = ran(started(name, *words, module=alone))
    own = ran(started(name, "-m", "hasten", "run", *APPLIED, *words, module=alone))
    assert own[0] == "begun"
    assert sorted(own) == sorted(plain)  # torch may want it, too, at the first time that is needed


@pytest.mark.child
@pytest.mark.parametrize(
    "name", one_quick("contextlib", "dataclasses", "importlib", "types", "warnings")
)
def test_what_our_start_needs_is_the_scripts_own_where_it_has_one(tmp_path, name) -> None:
    (tmp_path / f"{name}.py").write_text("OWN = 'theirs'\n")
    (tmp_path / "train.py").write_text(f"import {name}\nprint({name}.OWN)\n")
    words = [sys.executable, "-m", "hasten", "run", *APPLIED, str(tmp_path / "train.py")]
    done = subprocess.run(
        words, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("theirs\n", "")


@pytest.mark.child
def test_a_module_on_the_path_of_the_user_is_the_users(started, tmp_path) -> None:
    folder = tmp_path / "lib"
    env = environment(
        Plan().with_lever("intra_op_threads", 1), mode=Mode.RUN, env={"PYTHONPATH": str(folder)}
    )
    said = ran(started("signal", "train.py", folder=folder, env=env))
    assert said[0] == "begun"
    assert said.count("own module") == 1


@pytest.mark.slow
@pytest.mark.child
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("selectors", ("train.py",)),
        pytest.param("statistics", ("-m", "train"), marks=pytest.mark.slow),
    ],
)
def test_a_trial_starts(started, name, words) -> None:
    own = ("-m", "hasten", "profile", "--quiet", "--steps", "20", "--set", "loader_workers=1")
    done = started(name, *own, *words, passes=100_000)
    assert done.returncode == 0, done.stderr
    assert "hasten profile" in done.stdout


def test_every_module_of_pythons_own_that_we_import_there_is_known() -> None:
    import ast

    from hasten.trials import own_imports

    package = os.path.dirname(os.path.dirname(own_imports.__file__))
    parts = ("instrument", "root_calls", "trials", "levers", "loader", "records", "verify")
    folders = [os.path.join(package, name) for name in parts]
    files = [
        os.path.join(package, name) for name in ("child.py", "errors.py", "lever.py", "units.py")
    ]
    for folder in folders:
        for at, _, names in os.walk(folder):
            files += [os.path.join(at, name) for name in names if name.endswith(".py")]
    imported = set()
    for file in files:
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module)
    own = {name for name in imported if name.partition(".")[0] in sys.stdlib_module_names}
    assert own <= set(own_imports.NEEDED), "add them to own_imports.NEEDED"
