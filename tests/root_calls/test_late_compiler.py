"""Torch's compiler comes when something of it is wanted, and then as it always is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hasten

TRAINS = """
import json, sys
if sys.argv[1] == "late":
    from hasten.root_calls import late_compiler
    late_compiler.install()
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
made = [torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
        torch.optim.Adam(net.parameters(), fused=True), torch.optim.LBFGS(net.parameters())]
rates = torch.optim.lr_scheduler.StepLR(made[0], 1)

def loss():
    net.zero_grad()
    found = net(torch.ones(4, 6)).square().mean()
    found.backward()
    return found

def step(optimizer):
    optimizer.zero_grad()
    net(torch.ones(4, 6)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step(*([loss] if isinstance(optimizer, torch.optim.LBFGS) else []))

for optimizer in made:
    step(optimizer)
rates.step()
made[0].load_state_dict(made[0].state_dict())
"""
ASKED = """
from hasten.root_calls.late_compiler import is_loaded
assert not is_loaded() and "sympy" not in sys.modules
import inspect
inspect.getmodule(torch.optim.Adam)
assert not is_loaded()

def broken():
    sys.modules["sympy"] = None
    said = []
    for _ in range(2):
        try:
            import torch._dynamo
            torch._dynamo.optimize
        except ImportError as error:
            said.append(str(error))
    del sys.modules["sympy"]
    return said, "torch._dynamo" in sys.modules

said = broken()
from torch._dynamo.eval_frame import OptimizedModule
names = sorted(vars(torch._dynamo))
assert is_loaded() and isinstance(torch.compile(net, backend="eager"), OptimizedModule)
print(json.dumps([said, names]))
"""
COMPILED = """
compiled = torch.compile(step, backend="eager")
for _ in range(2):
    compiled(made[0])
from torch._dynamo.utils import counters
weights = [weight.tolist() for weight in net.parameters()]
print(json.dumps([weights, {name: dict(counters[name]) for name in ("stats", "graph_break")}]))
"""


def told(text, word, python=sys.executable):
    """Run a script, whose compiler may wait; return what it said, without times and processes."""
    done = subprocess.run(
        [python, "-c", TRAINS + text, word], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), [line.partition("]")[2] for line in done.stderr.splitlines()]


@pytest.mark.child
def test_the_compiler_comes_whole_where_something_of_it_is_wanted() -> None:
    import torch._dynamo

    (broken, names), said = told(ASKED, "late")
    assert not said
    assert broken == [["import of sympy halted; None in sys.modules"] * 2, False]
    assert {"config", "disable", "graph_break", "__path__"} <= {*names} <= {*vars(torch._dynamo)}


FILES = {
    "__init__": "from torch import optim",
    "_compile": """
import functools
def _disable_dynamo(fn=None, recursive=True):
    @functools.wraps(fn)
    def inner():
        called = getattr(fn, "__dynamo_disable", None)
        if called is None:
            import torch._dynamo
            called = fn.__dynamo_disable = torch._dynamo.disable(fn)
        return called()
    return inner
""",
    "optim/__init__": "from torch.optim import optimizer",
    "optim/optimizer": """
from torch._compile import _disable_dynamo
def step():
    import torch._dynamo
    torch._dynamo.graph_break()
    return zero()
@_disable_dynamo
def zero():
    pass
""",
    "_dynamo/__init__": """
import time
print("whole")
from . import config, user
time.sleep(0.1)
from .user import disable, graph_break
""",
    "_dynamo/config": 'print("config")',
    "_dynamo/user": """
print("user")
from . import config
def disable(fn):
    return lambda: fn()
def graph_break():
    pass
""",
    "_dynamo/backends/__init__": "",
    "_dynamo/backends/registry": 'print("registry")',
}
"""A torch that says which of its parts run."""
USES = """
import sys, threading
from hasten.root_calls import late_compiler
late_compiler.install()
{before}
from torch.optim import optimizer
optimizer.step()
assert {before!r} or not late_compiler.is_loaded()
def asks():
    import torch
    {text}
threads = [threading.Thread(target=asks) for _ in range({count})]
for each in threads:
    each.start()
for each in threads:
    each.join()
import torch
module = sys.modules["torch._dynamo"]
assert late_compiler.is_loaded() and type(module) is type(sys) and module is torch._dynamo
assert sys.modules["torch._dynamo.config"] is module.config is module.user.config
for part in module, module.config, module.user:
    assert part.__spec__.origin == part.__file__, part
assert not vars(optimizer.zero.__wrapped__) or {before!r}, "it is left alone no more"
optimizer.step()
assert optimizer.zero.__wrapped__.__dynamo_disable is not optimizer.zero.__wrapped__
"""


@pytest.fixture
def used(tmp_path):
    """Return what a torch that says which of its parts run says where a script asks for some."""
    for name, text in FILES.items():
        path = tmp_path / f"torch/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = str(Path(hasten.__file__).parent.parent)

    def use(text: str, *, before: str = "", count: int = 1) -> str:
        script = USES.format(text=text, before=before, count=count)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"}, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return use


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "import torch._dynamo.config as config; assert config is torch._dynamo.user.config",
        "from torch._dynamo.user import disable; assert disable is torch._dynamo.disable",
        "from torch._dynamo import config",
        "torch._dynamo.graph_break()",
        "assert 'disable' in dir(torch._dynamo)",
        "torch._dynamo.disable = torch._dynamo.new = 1; torch._dynamo.config; "
        "assert torch._dynamo.disable == torch._dynamo.new == 1; torch._dynamo.disable = "
        "torch._dynamo.user.disable",
    ],
)
def test_whoever_asks_for_something_of_the_compiler_has_all_of_it_once(used, text) -> None:
    assert used(text) == "whole\nconfig\nuser\n"


def test_a_part_that_only_a_script_imports_runs_once(used) -> None:
    asked = used("import torch._dynamo.backends.registry; import torch._dynamo.backends.registry")
    assert asked == "whole\nconfig\nuser\nregistry\n"


def test_threads_that_ask_at_once_all_have_it(used) -> None:
    assert used("assert torch._dynamo.graph_break", count=4) == "whole\nconfig\nuser\n"


@pytest.mark.parametrize("before", ["import torch._dynamo", "from torch._dynamo import user"])
def test_a_script_that_imports_the_compiler_before_it_trains_has_it_at_once(used, before) -> None:
    text = f"{before}; assert late_compiler.is_loaded()"
    assert used("pass", before=text) == "whole\nconfig\nuser\n"


@pytest.mark.child
def test_what_is_compiled_later_is_what_torch_compiles(warm_python) -> None:
    late, stock = told(COMPILED, "late"), told(COMPILED, "stock", warm_python)
    assert late == stock
    assert stock[0][1]["stats"]
