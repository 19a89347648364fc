"""The child: how hasten comes into the user's process, and what it must not leave there."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

import hasten.errors
from hasten.after_import import AfterImport, after_import
from hasten.child import AppliedLevers, LeverOmissions, prepare
from hasten.errors import PlanError
from hasten.protocol import Attached, Mode, RecordingSpec
from hasten.records import LossEnvelope, Plan
from hasten.trials.channel import Listener
from hasten.trials.child_environment import environment

SRC = Path(hasten.errors.__file__).parents[1]
TRAINING = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).mean().backward()
    optimizer.step()
print(model.weight.tolist())
"""
BOARDS = """
import gc
import torch
from hasten.loader.engine import LoaderEngine
engines = [engine for engine in gc.get_objects() if type(engine) is LoaderEngine]
print([(engine.request.count, len(engine.setups), len(engine.offers)) for engine in engines])
"""


def python(code, plan=None, *, mode=Mode.RUN, path="", start=sys.executable, **details):
    """Run code in a process that hasten comes into; without a plan, plainly."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    if path:
        env["PYTHONPATH"] = path
    if plan is not None:
        env = environment(plan, mode=mode, env=env, **details)
    return subprocess.run(
        [start, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def begun(warm_python, tmp_path):
    """Run code as `python` does, where torch is there already; `first` runs before hasten comes."""

    def run(code, plan, *, first="", **details):
        (tmp_path / "sitecustomize.py").write_text(first)
        return python(code, plan, start=warm_python, path=str(tmp_path), **details)

    return run


@cache
def plainly(code):
    """Run code without hasten, once for all tests."""
    return python(code)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that has not been imported yet."""
    (tmp_path / "fresh_module.py").write_text("VALUE = __loader__\nSPEC = __spec__.loader\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield "fresh_module"
    sys.meta_path[:] = before
    sys.modules.pop("fresh_module", None)


def test_follows_an_import_once_and_leaves_the_module_as_it_would_be(module) -> None:
    import importlib

    seen = []
    after_import(module, lambda: seen.append(module in sys.modules))
    loaded = importlib.import_module(module)
    assert seen == [True]
    assert type(loaded.__loader__).__name__ == "SourceFileLoader"
    assert loaded.__spec__.loader is loaded.__loader__
    assert loaded.VALUE is loaded.SPEC is loaded.__loader__
    importlib.reload(loaded)
    assert seen == [True]
    assert not [finder for finder in sys.meta_path if isinstance(finder, AfterImport)]


def test_a_module_that_is_there_already_is_followed_at_once(module) -> None:
    import importlib

    importlib.import_module(module)
    seen, before = [], list(sys.meta_path)
    after_import(module, lambda: seen.append(True))
    assert seen == [True]
    assert sys.meta_path == before


def test_several_followers_of_one_module_all_act_the_last_one_first_in_line(module) -> None:
    import importlib

    seen = []
    after_import(module, lambda: seen.append("pinned"))
    after_import(module, lambda: seen.append("attached"))
    loaded = importlib.import_module(module)
    assert seen == ["pinned", "attached"]
    assert type(loaded.__loader__).__name__ == "SourceFileLoader"


def test_a_library_that_only_looks_for_the_module_does_not_end_the_waiting(module) -> None:
    import importlib.util

    seen = []
    after_import(module, lambda: seen.append(True))
    for _ in range(2):
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.loader.get_filename(module) == spec.origin
    assert seen == []
    importlib.import_module(module)
    assert seen == [True]


def test_a_missing_module_is_missing_as_ever() -> None:
    import importlib

    after_import("no_such_module_anywhere", lambda: None)
    finder = sys.meta_path[0]
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")
    finally:
        sys.meta_path.remove(finder)


class Quiet:
    """A training in which nothing happens."""

    def __init__(self) -> None:
        self.applied = []

    def on_optimizer(self, apply):
        self.applied.append(apply)
        return lambda: None

    on_root = on_training = on_optimizer


def test_an_unknown_lever_is_named_with_those_that_there_are() -> None:
    with pytest.raises(PlanError, match=r"no_such_lever.*\n?.*Choose from: .*fused_optimizer"):
        AppliedLevers(Quiet()).switch({"no_such_lever": True})
    with pytest.raises(PlanError, match="no_such_lever"):
        environment(Plan().with_lever("no_such_lever", True), mode=Mode.RUN, env={})


def test_switching_undoes_what_differs_and_keeps_what_stays(monkeypatch) -> None:
    from types import SimpleNamespace

    from hasten import child

    done = []

    def lookup(plan):
        for name, setting in plan.settings:
            yield SimpleNamespace(name=name, apply=applied(name)), setting

    def applied(name):
        def apply(training, setting):
            done.append(f"{name}={setting}")
            return lambda: done.append(f"undo {name}={setting}")

        return apply

    monkeypatch.setattr(child, "lookup", lookup)
    levers = AppliedLevers(Quiet())
    levers.switch({"a": 1, "b": 2})
    levers.switch({"a": 1, "b": 3})
    levers.switch({})
    assert done == ["a=1", "b=2", "undo b=2", "b=3", "undo a=1", "undo b=3"]


def test_a_lever_that_raises_later_is_excused_and_its_object_stays() -> None:
    quiet, said = Quiet(), []

    def breaks(*_):
        raise ArithmeticError("broken")

    offered = LeverOmissions(quiet, said.append)
    offered.on_optimizer(breaks)
    offered.on_training(breaks)
    optimizer, begin = quiet.applied
    assert optimizer("optimizer") is None
    assert begin() is None
    assert [str(error) for error in said] == ["broken"] * 2


def test_questions_are_refused_in_a_trial_only(monkeypatch) -> None:
    import builtins

    monkeypatch.setattr("hasten.child.after_import", lambda name, then: None)
    monkeypatch.setattr(builtins, "input", lambda prompt="": "an answer")
    prepare(json.dumps({"mode": "run", "plan": {}}))
    assert input("name? ") == "an answer"
    prepare(json.dumps({"mode": "trial", "plan": {}, "socket": ""}))
    with pytest.raises(EOFError, match=r"asks for input \('name\? '\)"):
        input("name? ")


def test_the_path_of_the_script_is_as_without_us() -> None:
    code = "import sys; print(sys.path)"
    assert python(code, Plan()).stdout == python(code).stdout


def test_no_torch_no_trace() -> None:
    code = "import sys; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy')])"
    done = python(code, Plan())
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_the_users_own_sitecustomize_still_runs_first(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nprint('own', 'hasten.child' in sys.modules)\n"
    )
    done = python("import sitecustomize; print(sitecustomize.__file__)", Plan(), path=str(tmp_path))
    assert done.stdout.splitlines() == ["own False", str(tmp_path / "sitecustomize.py")]


def test_a_sitecustomize_that_raises_does_not_keep_us_out(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('own fault')\n")
    code = "import sys; print('hasten.child' in sys.modules)"
    done = python(code, Plan(), path=str(tmp_path))
    assert done.stdout == "True\n"
    assert "own fault" in done.stderr


@pytest.mark.child
def test_an_empty_plan_gives_the_output_of_plain_python() -> None:
    own, plain = python(TRAINING, Plan()), plainly(TRAINING)
    assert plain.returncode == 0
    assert (own.stdout, own.stderr, own.returncode) == (plain.stdout, plain.stderr, 0)


@pytest.mark.child
def test_a_lever_that_raises_in_a_real_run_is_left_out_with_one_line(begun) -> None:
    broken = (
        "import hasten.levers.fused_optimizer as fused\n"
        "import hasten.levers.intra_op_threads as threads\n"
        "import dataclasses\n"
        "def at_once(training, setting): raise ArithmeticError('at once')\n"
        "def later(optimizer): raise ArithmeticError('later')\n"
        "fused.LEVER = dataclasses.replace(\n"
        "    fused.LEVER, apply=lambda training, setting: training.on_optimizer(later))\n"
        "threads.LEVER = dataclasses.replace(threads.LEVER, apply=at_once)\n"
    )
    plan = Plan().with_lever("fused_optimizer", True).with_lever("intra_op_threads", 1)
    done = begun(TRAINING, plan, first=broken)
    assert done.stderr.splitlines() == [
        "hasten: left out intra_op_threads=1: at once",
        "hasten: left out fused_optimizer=True: later",
    ]
    assert done.returncode == 0
    assert done.stdout == plainly(TRAINING).stdout


UNFIT = """
import torch
def loop(*optimizers):
    table = torch.nn.Embedding(9, 3, sparse="{kind}" == "sparse")
    line = torch.nn.Linear(3, 3)
    made = [make(table, line) for make in optimizers]
    for _ in range(3):
        line(table(torch.tensor([1, 2]))).sum().backward()
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
first = lambda table, line: torch.optim.SGD(table.parameters(), 0.1)
second = lambda table, line: torch.optim.Adam(line.parameters())
rms = lambda table, line: torch.optim.RMSprop(line.parameters())
"""


@pytest.mark.child
@pytest.mark.parametrize(
    ("kind", "optimizers", "told"),
    [
        ("sparse", "first", "torch has no fused SGD for sparse gradients or such weights"),
        ("sparse", "first, second", None),
        ("sparse", "second, first", None),
        ("sparse", "first, rms", "torch has no fused RMSprop"),
        ("dense", "first", None),
    ],
)
def test_a_lever_that_no_optimizer_can_have_is_left_out_with_one_line(
    begun, kind, optimizers, told
) -> None:
    code = UNFIT.format(kind=kind) + f"loop({optimizers})\n"
    done = begun(code, Plan().with_lever("fused_optimizer", True))
    line = f"hasten: left out fused_optimizer=True: {told}"
    assert done.stderr.splitlines() == ([line] if told else [])
    assert done.returncode == 0


# A newer torch lacks what one part of ours needs: while it is made, once its seams are in, and in
# the middle of putting in what watches the losses.
LACKS = {
    "the seams": "watch.SeamGroups = gone",
    "what follows the seams": "watch.stay_eager = gone",
    "what watches the losses": "loss_guard.Guard = gone",
    "half of what watches the losses": "del training_health.TrainingHealthMonitor._ends",
    "all of it": "sys.modules['hasten.instrument'] = None",
}
BROKEN = """
import sys
from hasten.instrument import loss_guard, training_health, watch
def gone(*args, **kwargs):
    raise AttributeError("module 'torch._C' has no attribute '_new'\\n  see there")
{lacks}
"""
OURS = f"""
import os, torch
print(torch._C.get_num_threads(), "HASTEN_CHILD" in os.environ)
from torch.optim import optimizer
from torch.utils.data import dataloader
touched = (
    torch.nn.Module.__call__, dataloader.DataLoader.__iter__, torch.Tensor.to,
    dataloader._BaseDataLoaderIter.__next__, torch.autograd.backward, torch.autograd.grad,
    torch.set_num_threads,
)
codes = [getattr(one, "__code__", None) for one in touched]
print([code for code in codes if code and code.co_filename.startswith({str(SRC / "hasten")!r})])
print(*map(len, (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)))
"""


@pytest.mark.child
@pytest.mark.parametrize("lacks", LACKS.values(), ids=LACKS)
def test_a_real_run_goes_on_under_plain_torch_where_ours_does_not_fit_it(begun, lacks) -> None:
    plan = Plan().with_lever("intra_op_threads", 3).with_lever("fused_optimizer", True)
    broken = BROKEN.format(lacks=lacks)
    envelope = asdict(LossEnvelope(moves=(0.1,)))
    done = begun(OURS + TRAINING, plan, first=broken, envelope=envelope)
    plain = plainly(OURS + TRAINING)
    assert plain.returncode == 0, plain.stderr
    assert (done.stdout, done.returncode) == (plain.stdout, 0), done.stderr
    assert done.stderr.startswith("hasten: left out the plan: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.child
def test_a_process_that_a_broken_run_starts_is_plain_python_and_says_nothing() -> None:
    again = (
        "import subprocess\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n"
    )
    code = BROKEN.format(lacks=LACKS["the seams"]) + "import torch\n" + again
    done = python(code, Plan().with_lever("fused_optimizer", True))
    why = "module 'torch._C' has no attribute '_new'"
    assert (done.stdout, done.stderr) == ("", f"hasten: left out the plan: {why}\n")


OWN_STDERR = {"a log": "log = sys.stderr = io.StringIO()", "none": "sys.stderr.close(); log = None"}


@pytest.mark.child
@pytest.mark.parametrize("own", OWN_STDERR.values(), ids=OWN_STDERR)
def test_what_the_script_has_in_place_of_stderr_gets_no_line(begun, own) -> None:
    broken = (
        "import dataclasses\n"
        "import hasten.levers.fused_optimizer as fused\n"
        "def later(optimizer): raise ArithmeticError('later')\n"
        "fused.LEVER = dataclasses.replace(\n"
        "    fused.LEVER, apply=lambda training, setting: training.on_optimizer(later))\n"
    )
    code = f"import io, sys\n{own}\n{TRAINING}\nprint(log and log.getvalue())"
    done = begun(code, Plan().with_lever("fused_optimizer", True), first=broken)
    assert done.returncode == 0
    assert done.stdout.endswith(f"\n{'' if own.startswith('log') else None}\n")


@pytest.mark.child
def test_a_reason_of_several_lines_is_told_by_its_first(begun) -> None:
    broken = (
        "import hasten.levers.intra_op_threads as threads\n"
        "import dataclasses\n"
        "def at_once(training, setting): raise ArithmeticError('first\\n  second\\n')\n"
        "threads.LEVER = dataclasses.replace(threads.LEVER, apply=at_once)\n"
    )
    done = begun(TRAINING, Plan().with_lever("intra_op_threads", 1), first=broken)
    assert done.stderr == "hasten: left out intra_op_threads=1: first\n"


TELLS_WHAT_IS_ASSUMED = """
import dataclasses
import hasten.levers.intra_op_threads as threads
def apply(training, setting):
    print(training.assumed, flush=True)
    return lambda: None
threads.LEVER = dataclasses.replace(threads.LEVER, apply=apply)
"""


@pytest.mark.child
@pytest.mark.parametrize("mode", list(Mode))
def test_levers_learn_what_the_user_granted(mode, tmp_path) -> None:
    listener = Listener(tmp_path / "s")
    take = RecordingSpec(step_count=2, forced_count=0)
    details = {} if mode is Mode.RUN else {"socket": str(tmp_path / "s")}
    details |= {"recording": take, "folder": str(tmp_path)} if mode is Mode.VERIFY else {}
    done = python(
        TELLS_WHAT_IS_ASSUMED + "import torch\nimport os\nos._exit(0)\n",
        Plan().with_lever("intra_op_threads", 1), mode=mode,
        assumed=["dataset-unchanged"], **details,
    )  # fmt: skip
    listener.close()
    assert (done.stdout, done.stderr) == ("frozenset({'dataset-unchanged'})\n", "")


@pytest.mark.child
def test_all_levers_of_a_real_run_act_on_the_same_loaders() -> None:
    plan = (
        Plan()
        .with_lever("loader_workers", 1)
        .with_lever("worker_threads", 1)
        .with_lever("sample_cache", "64MiB")
    )
    done = python(BOARDS, plan)
    assert (done.stdout, done.stderr) == ("[(1, 1, 1)]\n", "")


@pytest.mark.child
def test_a_run_whose_levers_leave_loaders_alone_has_no_data_engine(begun) -> None:
    code = f"{TRAINING}\nimport sys\nprint('hasten.loader.engine' in sys.modules)"
    apart = begun(code, Plan().with_lever("fused_optimizer", True))
    assert apart.stdout.endswith("False\n"), apart.stderr
    assert begun(code, Plan().with_lever("loader_workers", 2)).stdout.endswith("True\n")


@pytest.mark.child
def test_a_lever_that_is_not_installed_is_left_out_of_a_real_run(warm_python) -> None:
    order = json.dumps({"mode": "run", "plan": {"no_such_lever": 1}})
    env = {**environment(Plan(), mode=Mode.RUN, env=os.environ), "HASTEN_CHILD": order}
    done = subprocess.run(
        [warm_python, "-c", TRAINING], env=env, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert len(done.stderr.splitlines()) == 1
    assert "left out no_such_lever=1" in done.stderr


@pytest.mark.child
def test_a_helper_that_starts_after_the_trainer_was_found_is_left_alone(begun, tmp_path) -> None:
    done = begun(TRAINING, Plan(), mode=Mode.TRIAL, socket=str(tmp_path / "gone"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.child
@pytest.mark.parametrize(
    ("tracker", "text", "begin", "mode"),
    [
        ("wandb", "def init(project=None, mode=None): print(mode)", "init", "disabled"),
        (
            "neptune",
            "class Run:\n    def __init__(self, project=None, mode=None): print(mode)\n"
            "def init_run(**options): return Run(**options)",
            "init_run",
            "debug",
        ),
    ],
)
def test_a_trial_begins_no_run_of_a_tracker_whatever_the_script_asks_for(
    tmp_path, tracker, text, begin, mode
) -> None:
    (tmp_path / f"{tracker}.py").write_text(text)
    code = f"import {tracker}\n{tracker}.{begin}(project='p', mode='online')\n"
    trial = python(code, Plan(), mode=Mode.TRIAL, path=str(tmp_path), socket=str(tmp_path / "gone"))
    assert (trial.stdout, trial.stderr) == (f"{mode}\n", "")
    assert python(code, Plan(), path=str(tmp_path)).stdout == "online\n"


@pytest.mark.child
def test_a_process_beside_the_one_that_is_followed_goes_on_by_itself(begun, tmp_path) -> None:
    listener = Listener(tmp_path / "s")
    with ThreadPoolExecutor(1) as pool:
        two = pool.submit(begun, TRAINING, Plan(), mode=Mode.TRIAL, socket=str(tmp_path / "s"))
        channel, _ = listener.adopt(Attached, until=time.monotonic() + 60, alive=lambda: True)
        channel.close()  # as where another rank said first that it trains
        listener.close()
        done = two.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == plainly(TRAINING).stdout


@pytest.mark.child
def test_a_job_that_a_real_run_submits_does_not_get_its_plan() -> None:
    env = environment(
        Plan().with_lever("garbage_collector", "freeze"), mode=Mode.RUN, env=os.environ
    )
    code = "import torch, os; print('HASTEN_CHILD' in os.environ)"
    said = "hasten: left out the plan: this is another machine, or another job\n"
    for job, told in ((env.get("SLURM_JOB_ID"), ("True\n", "")), ("4711", ("False\n", said))):
        there = {**env, "SLURM_JOB_ID": job} if job else env
        done = subprocess.run(
            [sys.executable, "-c", code], env=there, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == told


DRY_RUN = """
import torch
model = torch.nn.Linear(3, 1)
out = model(torch.zeros(1, 3))
"""


@pytest.mark.parametrize(
    "train", ["out.sum().backward()\n", "torch.optim.SGD(model.parameters(), 0.1).step()\n"]
)
def test_a_program_that_the_script_starts_gets_the_plan_only_before_training(train) -> None:
    """A script that has called a model, to see that it can, may still start ranks that train."""
    again = "import os, json; order = json.loads(os.environ['HASTEN_CHILD'])\n"
    again += "print(order['plan'], order['envelope'] is None)"
    start = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {again!r}], check=True)\n"
    )
    plan = Plan().with_lever("fused_optimizer", True)
    envelope = asdict(LossEnvelope(moves=(0.1,)))
    done = python(start + DRY_RUN + start + train + start, plan, envelope=envelope)
    before, called, after = done.stdout.splitlines()
    assert before == called == "{'fused_optimizer': True} False"
    assert after == "{} True"


LAUNCHES = """
from torch.distributed.launcher import api
from torch.distributed.run import main

def tell(rdzv_handler, max_restarts, **rest):
    print(rdzv_handler, max_restarts)
    raise SystemExit(0)

api.rdzv_registry.get_rendezvous_handler = lambda parameters: parameters.endpoint
api.WorkerSpec = tell
c10d = "--rdzv-backend c10d --rdzv-endpoint"
for words in (f"{c10d} localhost:29400", "--rdzv-backend c10d", f"{c10d} far:29400 --nnodes 2"):
    main([*words.split(), "--max-restarts", "3", "train.py"])
"""


@pytest.mark.child
def test_torchrun_of_a_trial_meets_at_no_named_endpoint_and_restarts_nothing(tmp_path) -> None:
    done = python(LAUNCHES, Plan(), mode=Mode.TRIAL, socket=str(tmp_path / "gone"))
    told = done.stdout.splitlines()
    assert told == ["localhost:0 0", "localhost:0 0", "far:29400 0"], done.stderr


def test_levers_come_in_where_torch_was_imported_before_the_script_began(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch")
    code = (
        "from torch.utils.data import DataLoader; print(DataLoader.__iter__.__code__.co_filename)"
    )
    plan = Plan().with_lever("loader_workers", 2)
    assert python(code, plan, path=str(tmp_path)).stdout.startswith(str(SRC / "hasten"))
