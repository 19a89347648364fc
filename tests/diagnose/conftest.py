"""Scripts that are sick, and their healthy twins with the same surface."""

import sys
from dataclasses import replace

import pytest

from hasten import machine, session
from hasten.records import Entry, Plan, Workload
from hasten.session import setup
from hasten.session.examine import examine
from hasten.session.observe import observe

LOOK_S = 1.0


def look(folder, source, *args, seconds=LOOK_S, step_count=12):
    """Return what is found in a script, by name, and the whole diagnosis under `""`."""
    (folder / "train.py").write_text(source)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py", *args), cwd=str(folder), python=sys.executable
    )
    facts = machine.read(probe=lambda: None)
    with setup.open_runner(workload, session.Options(), facts) as bench:
        seen = observe(bench, Plan(), step_count=step_count)
        granted = frozenset({"dataset-unchanged"})
        diagnosis = examine(bench, Plan(), seen, facts, seconds=seconds, assumed=granted)
    return {"": diagnosis, **{finding.name: finding for finding in diagnosis.findings}}


def pytest_collection_modifyitems(items):
    """Findings are judged by times: nothing may run beside a look."""
    for item in items:
        if "diagnosed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.measures)


@pytest.fixture(scope="module")
def looks():
    """What was seen of the scripts of a module."""
    return {}


@pytest.fixture
def diagnosed(looks, tmp_path_factory, request):
    """Look at a script, once a module; a test that failed and runs again looks anew."""
    if getattr(request.node, "execution_count", 1) > 1:
        looks.clear()

    def diagnose(source, *args, **details):
        key = (source, args, tuple(details.items()))
        if key not in looks:
            looks[key] = look(tmp_path_factory.mktemp("sick"), source, *args, **details)
        return looks[key]

    return diagnose


@pytest.fixture
def machine_of():
    """Return the facts of a machine with so many cores."""

    def make(core_count):
        facts = machine.read(probe=lambda: None)
        return replace(facts, budget=replace(facts.budget, core_count=core_count))

    return make
