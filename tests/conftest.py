"""What tests of several stages share."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import uuid
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import hypothesis
import pytest

import hasten

SRC = Path(hasten.__file__).parents[1]
collect_ignore = ["corpus"]  # scripts to run, not to import
OPERATORS = Path(__file__).with_name("torchvision_ops")
# Where torch finds a device; see accelerator/.
DEVICES = os.environ.get("PYTHONPATH", "").split(os.pathsep)
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(SRC), str(OPERATORS), *filter(None, DEVICES)]),
    "PATH": os.environ["PATH"],
}


def _load(path):
    """Import a file that lies in no package."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = _load(Path(__file__).with_name("suite.py"))
TORCH = ("torch", "torch._dynamo")  # the first optimizer would import the second
LONGEST = {
    f"test_{name}.py": index
    for index, name in enumerate(
        ("corpus", "shared_run", "run", "scripts", "child", "prover", "script", "bad_input",
         "harmless", "budget", "ranks", "slurm", "epoch_iterator", "stale", "trial_process")
    )
}  # fmt: skip
CHILD = ("hasten.child", "hasten.instrument.watch", "hasten.loader.engine")
LOOK_S, PATIENCE_S = 1.0, 120.0
SESSION = uuid.uuid4().hex
# How long an example takes is a matter of who else is on the machine.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
os.environ[suite.MARK] = ENVIRONMENT[suite.MARK] = SESSION


def pytest_configure() -> None:
    """Let programs under test be interrupted, also where the tests run under nohup or with `&`.

    An ignored signal stays ignored across exec; a shell ignores SIGINT for what it runs with `&`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _load(OPERATORS / "sitecustomize.py")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Keep the test files that pytest has rewritten, also under PYTHONDONTWRITEBYTECODE.

    `make test` runs it three times, and each time that took 10 of 20 seconds.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    yield
    sys.dont_write_bytecode = before


def pytest_collection_modifyitems(items) -> None:
    """Begin with the files that take longest, so that no process is left alone with one."""
    items.sort(key=lambda item: LONGEST.get(item.path.name, len(LONGEST)))
    for item in items:  # findings are judged by times: nothing may run beside a look
        if "diagnosed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.measures)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Judge the skip of a test."""
    outcome = yield
    suite.refuse_skip(outcome.get_result(), os.environ)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    """Judge the skip of a whole module."""
    outcome = yield
    suite.refuse_skip(outcome.get_result(), os.environ)


@pytest.fixture(autouse=True)
def nothing_left(request):
    """End what a test started and left running; one that passed fails by it."""
    if sys.platform != "linux":
        yield
        return
    before, failed_count = suite.running(), request.session.testsfailed
    yield
    failed = request.session.testsfailed > failed_count
    found = suite.left(before, SESSION, 0.0 if failed else suite.MOMENT_S)
    suite.end(before, SESSION)
    assert failed or not found, f"the test left processes: {found}"


@pytest.fixture(scope="session")
def eventually():
    """Wait until a condition is true; return whether it became so in time."""
    return suite.eventually


@pytest.fixture(scope="session")
def python_with():
    """Return what stands for `python` with modules loaded, where a test need not see it start.

    See warm_python.py.
    """
    if sys.platform != "linux":
        yield lambda *_, **__: sys.executable
        return
    served = _load(Path(__file__).with_name("warm_python.py")).served
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda *more, **how: stack.enter_context(served(ENVIRONMENT, *TORCH, *more, **how))
        )


@pytest.fixture(scope="session")
def warm_python(python_with):
    """What stands for `python`, with torch loaded."""
    return python_with()


@pytest.fixture(scope="session")
def child_python(python_with):
    """The same with what trials and real runs load of hasten, where nobody asks when it comes."""
    return python_with(*CHILD, frozen=True)


@pytest.fixture(scope="session")
def thawed_python(python_with):
    """The same, but that its collector has as much to go through as if it had started alone."""
    return python_with(*CHILD)


@pytest.fixture(scope="session")
def gathered(child_python):
    """Run a program under a Python that is warm, or given; return the `facts` that it gathered."""

    def run(program: str, *, timeout_s: float = 600.0, python: str = child_python):
        done = subprocess.run(
            [python, "-c", f"{program}\nprint(json.dumps(facts))"],
            capture_output=True, text=True, timeout=timeout_s, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def look(folder, python, source, *args, seconds=LOOK_S, step_count=12, probe=lambda: None):
    """Return what is found in a script, by name, and the whole diagnosis under `""`."""
    from hasten import machine
    from hasten.records import Entry, Plan, Workload
    from hasten.session.examine import examine
    from hasten.session.observe import observe
    from hasten.trials.process import Isolation
    from hasten.trials.runner import TrialRunner

    (folder / "train.py").write_text(source)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("train.py", *args), cwd=str(folder), python=python
    )
    facts = machine.with_torch(machine.read(), probe())
    with TrialRunner(workload, isolation=Isolation.NONE, patience_s=PATIENCE_S) as bench:
        seen = observe(bench, Plan(), step_count=step_count)
        granted = frozenset({"dataset-unchanged"})
        diagnosis = examine(bench, Plan(), seen, facts, seconds=seconds, assumed=granted)
    return {"": diagnosis, **{finding.name: finding for finding in diagnosis.findings}}


@pytest.fixture(scope="module")
def looks():
    """What was seen of the scripts of a module."""
    return {}


@pytest.fixture
def diagnosed(looks, tmp_path_factory, request, thawed_python):
    """Look at a script, once a module; a test that failed and runs again looks anew."""
    if getattr(request.node, "execution_count", 1) > 1:
        looks.clear()

    def diagnose(source, *args, python=thawed_python, **details):
        key = (source, args, tuple(details.items()))
        if key not in looks:
            folder = tmp_path_factory.mktemp("sick")
            looks[key] = look(folder, python, source, *args, **details)
        return looks[key]

    return diagnose
