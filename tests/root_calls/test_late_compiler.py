"""Torch's compiler comes when something of it is wanted, and then as it always is."""

import json
import subprocess
import sys

import pytest

TRAINS = """
import contextlib, json, os, sys, threading
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

def apart(ask):
    # what a fork of this process says
    sys.stdout.flush()
    reading, writing = os.pipe()
    if not os.fork():
        try:
            said = ask()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as stream:
        return json.load(stream)

def ran(text):
    with contextlib.suppress(ImportError):
        exec(text, {})
    module = sys.modules["torch._dynamo"]
    alone = torch.optim.Optimizer.zero_grad.__wrapped__
    return [is_loaded(), type(module).__name__, sorted(vars(module)), bool(vars(alone))]

def in_threads():
    found = []
    def ask():
        found.append(torch._dynamo.optimize is not None)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found

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

def changed():
    torch._dynamo.disable = torch._dynamo.of_the_script = "of the script"
    is_there = callable(torch._dynamo.optimize)
    return is_there, torch._dynamo.disable, torch._dynamo.of_the_script

def parts(text):
    # the parts of the compiler that an import gives, and those that the compiler uses
    space = {}
    exec(text, space)
    from torch._dynamo import convert_frame
    compiled = torch.compile(net, backend="eager")
    used = {"config": convert_frame.config, "OptimizedModule": type(compiled),
            "registry": torch._dynamo.backends.registry}
    (name, value), = ((name, value) for name, value in space.items() if name in used)
    spec = getattr(value, "__spec__", None) or sys.modules[value.__module__].__spec__
    return value is used[name], os.path.isfile(spec.origin)

ways = ["import torch._dynamo", "import torch._dynamo.nothing",
        "import torch; torch._dynamo.graph_break()",
        "import inspect, torch; inspect.getmodule(torch.optim.Adam)"]
imports = ["import torch._dynamo.config as config",
           "import torch._dynamo.backends.registry as registry",
           "from torch._dynamo.eval_frame import OptimizedModule",
           "import torch; assert 'optimize' in dir(torch._dynamo); config = torch._dynamo.config"]
told = [apart(lambda: ran(way)) for way in ways]
same = [apart(lambda: parts(text)) for text in imports]
print(json.dumps([told, same, apart(changed), apart(in_threads), apart(broken)]))
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
def test_whoever_asks_for_something_of_the_compiler_has_all_of_it() -> None:
    import torch._dynamo

    (ways, same, changed, threads, broken), said = told(ASKED, "late")
    assert not said
    *loading, look = ways
    for is_there, kind, names, left_alone in loading:
        assert (is_there, kind) == (True, "module")
        assert (
            {"config", "disable", "graph_break", "__path__"} <= {*names} <= {*vars(torch._dynamo)}
        )
        assert not left_alone, "it is torch's again"
    assert (look[:2], look[3]) == ([False, "_WaitingCompiler"], True)
    assert same == [[True, True]] * 4, "nothing of the compiler is there twice"
    assert changed == [True, "of the script", "of the script"]
    assert threads == [True] * 4
    assert broken == [["import of sympy halted; None in sys.modules"] * 2, False]


@pytest.mark.child
def test_a_script_that_imports_the_compiler_before_it_trains_has_it_at_once() -> None:
    text = "\nassert 'sympy' in sys.modules\nprint(json.dumps(0))"
    done = subprocess.run(
        [sys.executable, "-c", TRAINS.replace("import torch\n", "import torch._dynamo\n") + text,
         "late"], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.child
def test_what_is_compiled_later_is_what_torch_compiles(warm_python) -> None:
    late, stock = told(COMPILED, "late"), told(COMPILED, "stock", warm_python)
    assert late == stock
    assert stock[0][1]["stats"]
