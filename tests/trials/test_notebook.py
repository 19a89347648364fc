"""Notebooks stand where a script does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hasten.errors
from hasten.trials.notebook import code_cells

SRC = Path(hasten.errors.__file__).parents[1]
TRAINING = [
    "%matplotlib inline\nimport os, sys\nprint(__name__, sys.argv, os.path.basename(os.getcwd()))",
    "!echo two is $((1+1))\nimport torch\ntorch.set_num_threads(1)\ntorch.manual_seed(0)",
    "%%time\nclass Net(torch.nn.Linear):\n    pass\nmodel = Net(4, 2)",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for step in range(40):\n"
    "    optimizer.zero_grad()\n"
    "    loss = model(torch.randn(8, 4)).pow(2).mean()\n"
    "    loss.backward()\n"
    "    optimizer.step()\n",
    "print('loss', loss.item())",
    "loss",
]


def write(folder, cells) -> Path:
    """Write a notebook with a heading and these code cells."""
    shown = [{"cell_type": "markdown", "metadata": {}, "source": ["# A heading"]}]
    shown += [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell.splitlines(True)}
        for cell in cells
    ]
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": shown}
    path = folder / "train.ipynb"
    path.write_text(json.dumps(content))
    return path


def start(folder, *words, module="hasten.trials.notebook", **env):
    """Run a module of ours in a folder."""
    return subprocess.run(
        [sys.executable, "-m", module, *words], cwd=folder, capture_output=True, text=True,
        check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SRC), "HOME": str(folder), "COLUMNS": "300", **env},
    )  # fmt: skip


def test_code_cells_come_in_order_and_text_is_left_out(tmp_path) -> None:
    assert code_cells(write(tmp_path, ["a = 1\nb = 2", "c = 3"])) == ["a = 1\nb = 2", "c = 3"]


def test_a_cell_that_was_profiled_is_just_run(tmp_path) -> None:
    cells = ["%load_ext hasten", "%%hasten profile --steps 20\ntrain()\n", "%%time\n%%hasten"]
    assert code_cells(write(tmp_path, cells)) == [cells[0], "train()\n", cells[2]]


@pytest.mark.child
def test_without_ipython_the_remedy_is_said(tmp_path) -> None:
    (tmp_path / "IPython").mkdir()
    (tmp_path / "IPython" / "__init__.py").write_text("raise ImportError")
    write(tmp_path, ["1"])
    done = start(tmp_path, "train.ipynb", PYTHONPATH=f"{tmp_path}{os.pathsep}{SRC}")
    assert done.returncode == 2
    assert done.stderr == ("hasten: A notebook needs IPython.\n         Run: pip install ipython\n")


@pytest.mark.child
@pytest.mark.parametrize("text", ["", "print(1)", "[]", '{"cells": [{}]}', "5", '{"cells": 5}'])
def test_a_file_that_is_no_notebook_is_refused_in_a_sentence(tmp_path, text) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    done = start(tmp_path, "train.ipynb")
    assert done.returncode == 2
    assert done.stderr.startswith("hasten: train.ipynb is not a notebook.")


@pytest.mark.child
def test_cells_run_in_order_as_main_with_magics_and_arguments(tmp_path) -> None:
    pytest.importorskip("IPython")
    pytest.importorskip("matplotlib")
    before = write(tmp_path, [*TRAINING[:1], "!echo two is $((1+1))", "%%time\nx = 3", "x"])
    content = before.read_bytes()
    done = start(tmp_path, "train.ipynb", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    name = tmp_path.name
    assert f"__main__ ['train.ipynb', '--epochs', '3'] {name}\ntwo is 2\n" in done.stdout
    assert "Wall time" in done.stdout
    assert before.read_bytes() == content


MAGICS = {
    "!echo $((1+1))": "2\n",
    "!printf '%s-%s\\n' {name} $name": "net-net\n",
    "files = !echo a; echo b\nprint(files.n == 'a\\nb', len(files))": "True 2\n",
    "!pip --version | cut -c1-4": "pip \n",
    "!exit 3\nprint(_exit_code)": "3\n",
    "%env MODE=fast\n!echo $MODE": "env: MODE=fast\nfast\n",
    "%cd -q .\nimport os\nprint(os.path.basename(os.getcwd()) == FOLDER)": "True\n",
    "%%capture kept\nprint('not shown')": "",
    "print(kept.stdout == 'not shown\\n')": "True\n",
    "%%bash -s {name}\necho bash $1": "bash net\n",
    "%%sh\necho sh": "sh\n",
    "%%writefile note.txt\nhello": "Writing note.txt\n",
    "%run other.py": "other ran as __main__\n",
    "%load_ext autoreload\n%autoreload 2": "",
    "import asyncio\nawait asyncio.sleep(0)\nprint('awaited')": "awaited\n",
    "print('last', end=';');": "last;",
    "1 + 1;": "",
}


@pytest.mark.child
def test_shells_and_magics_mean_what_they_mean_in_jupyter(tmp_path) -> None:
    pytest.importorskip("IPython")
    (tmp_path / "other.py").write_text("print('other ran as', __name__)\n")
    marked = [f"{cell}\n" for cell in MAGICS]
    marks = [f"print('<{index}>')" for index in range(len(marked))]
    cells = [f"name, FOLDER = 'net', {tmp_path.name!r}"]
    for mark, cell in zip(marks, marked, strict=True):
        cells += [mark, cell]
    write(tmp_path, cells)
    done = start(tmp_path, "train.ipynb")
    assert done.returncode == 0, done.stderr
    parts = dict(re.findall(r"<(\d+)>\n(.*?)(?=<\d+>\n|\Z)", done.stdout, re.DOTALL))
    assert {cell: parts[str(index)] for index, cell in enumerate(MAGICS)} == MAGICS
    assert (tmp_path / "note.txt").read_text() == "hello\n"


@pytest.mark.child
@pytest.mark.parametrize("cell", ["%%bash\nexit 4", "%no_such_magic", "%%no_such_magic\n1"])
def test_a_magic_that_fails_ends_the_run(tmp_path, cell) -> None:
    pytest.importorskip("IPython")
    write(tmp_path, [cell, "print('never')"])
    done = start(tmp_path, "train.ipynb")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.child
def test_the_first_failing_cell_ends_the_run_with_its_traceback(tmp_path) -> None:
    pytest.importorskip("IPython")
    write(tmp_path, ["print('first')", "raise ValueError('second')", "print('third')"])
    done = start(tmp_path, "train.ipynb")
    assert (done.returncode, done.stdout) == (1, "first\n")
    assert "ValueError: second" in done.stderr
    assert "notebook.py" not in done.stderr


@pytest.mark.child
@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("sys.exit('bad')", 1)])
def test_the_exit_code_of_a_cell_is_that_of_the_run(tmp_path, ending, code) -> None:
    pytest.importorskip("IPython")
    write(tmp_path, [f"import sys\n{ending}", "print('never')"])
    done = start(tmp_path, "train.ipynb")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == ("bad\n" if code == 1 else "")


@pytest.mark.slow
@pytest.mark.child
def test_a_training_notebook_is_profiled_and_run(tmp_path) -> None:
    pytest.importorskip("IPython")
    write(tmp_path, TRAINING[1:])
    profiled = start(tmp_path, "profile", "--progress", "plain", "train.ipynb", module="hasten")
    assert profiled.returncode == 0, profiled.stderr
    plain = start(tmp_path, "train.ipynb")
    run = start(tmp_path, "run", "--set", "malloc_retention=true", "train.ipynb",
                module="hasten")  # fmt: skip
    assert run.returncode == 0, run.stderr
    losses = [line for line in plain.stdout.splitlines() if "loss" in line]
    assert losses
    assert losses == [line for line in run.stdout.splitlines() if "loss" in line]
