"""What the tests of attach share: scripts that run plainly, and the same ones under a trial."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import TooFewSteps
from hasten.protocol import ReadTraits, TraitsRead, Turn
from hasten.records import Entry, Plan, Workload
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

COUNT, EXAMINED_COUNT = 6, 4
WHOLE = ((0, 0, COUNT, True),)
COLD = {"plain", "spawn workers"}  # see how Python starts


@dataclass
class Trial:
    """What a trial showed: the steps of one turn, facts, a closer look, and all that it printed."""

    steps: list[Any]
    facts: TraitsRead
    output: str
    turns: list[list[Any]] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)


def attach(path: Path, *, turns, plan=None, python=sys.executable) -> Trial:
    """Run a script under a trial to its end."""
    workload = Workload(entry=Entry.SCRIPT, argv=(str(path),), cwd=str(path.parent), python=python)
    arm = TrialProcess(workload, plan or Plan(), isolation=Isolation.NONE, patience_s=60)
    try:
        arm.begin()
        seen, _ = arm.turns([Turn(*turn) for turn in turns], timeout_s=60)
        _, found = arm.examine(EXAMINED_COUNT, timeout_s=60)
        facts = arm.ask(ReadTraits(), TraitsRead, 60)
        with pytest.raises(TooFewSteps):
            arm.turns([Turn(0, 0, 1 << 40, True)], timeout_s=60)
        arm._process.wait(30)
        return Trial(
            steps=seen[-1], facts=facts, found=found, output=arm._process.output(), turns=seen
        )
    finally:
        arm.close()


def load_scripts():
    spec = spec_from_file_location("attach_scripts", Path(__file__).with_name("scripts.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def scripts(tmp_path_factory) -> dict[str, Path]:
    """Every script as a file."""
    folder, module = tmp_path_factory.mktemp("scripts"), load_scripts()
    paths = {}
    for name, body in module.SCRIPTS.items():
        paths[name] = folder / f"{name.replace(' ', '_')}.py"
        paths[name].write_text(module.HEAD + body)
    return paths


@pytest.fixture(scope="session")
def python_of(child_python):
    """Return what stands for `python` for a script, by its name."""
    return lambda name: sys.executable if name in COLD else child_python


@pytest.fixture(scope="session")
def plain(scripts, python_of):
    """Run a script by name as plain Python would; return what it prints. Each runs once."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

    @functools.cache
    def run(name: str) -> str:
        argv = [python_of(name), str(scripts[name])]
        return subprocess.run(
            argv, env=env, check=True, timeout=200, stdout=subprocess.PIPE, text=True
        ).stdout

    return run


@pytest.fixture(scope="session")
def trial(scripts, python_of, child_python):
    """Run a script by name under a trial; each runs once, whoever asks."""
    done: dict[Any, Trial] = {}

    def run(name: str, *, turns=WHOLE) -> Trial:
        key = (name, tuple(turns))
        if key not in done:
            python = python_of(name) if turns == WHOLE else child_python
            done[key] = attach(scripts[name], turns=turns, python=python)
        return done[key]

    return run
