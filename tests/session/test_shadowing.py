"""Users have modules named like Python's own: hasten stays out, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.protocol import Mode
from hasten.records import Plan
from hasten.trials.child_environment import environment

SCRIPT = "import {name}\nprint({name}.OWN)\n"
APPLIED = ("--set", "intra_op_threads=1", "--set", "malloc_retention=true")


@pytest.mark.child
@pytest.mark.parametrize("name", ["contextlib", "signal", "statistics"])
def test_a_run_beside_such_a_module_is_one_of_plain_python_and_says_so(tmp_path, name) -> None:
    (tmp_path / f"{name}.py").write_text("OWN = 'theirs'\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(name=name))
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "run", *APPLIED, str(tmp_path / "train.py")], cwd="/",
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "theirs\n"
    said = f"hasten: {tmp_path}/{name}.py hides a module of Python's own, which hasten needs"
    assert done.stderr == f"{said}: rename it\n"


@pytest.mark.child
def test_a_module_on_the_path_of_the_user_counts_too(tmp_path) -> None:
    (tmp_path / "queue.py").write_text("OWN = 'theirs'\n")
    plan, env = Plan().with_lever("intra_op_threads", 1), {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(name="queue")], capture_output=True, text=True,
        check=True, env=environment(plan, mode=Mode.RUN, env=env),
    )  # fmt: skip
    assert done.stdout == "theirs\n"
    assert "queue.py hides a module of Python's own" in done.stderr


@pytest.mark.child
def test_a_trial_beside_such_a_module_ends_with_a_sentence(project) -> None:
    project.write("statistics.py", "OWN = 'theirs'\n")
    project.write("train.py", SCRIPT.format(name="statistics"))
    ended = project.hasten("profile", "train.py")
    assert ended.code == 3
    assert "A file of yours hides a module of Python's own, which hasten needs." in ended.err
    assert "statistics.py hides" in ended.err


@pytest.mark.child
@pytest.mark.parametrize("name", ["test", "profile", "os", "json/data"])
def test_what_we_do_not_need_or_hides_nothing_keeps_nobody_out(project, name) -> None:
    place = project.root / f"{name}.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("OWN = 'theirs'\n")
    project.write("train.py", "import torch\nprint(torch.get_num_threads())\n")
    run = project.hasten("run", *APPLIED, "train.py")
    assert (run.code, run.out, run.err) == (0, "1\n", "")


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
