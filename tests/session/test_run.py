"""`hasten run` is plain python, but for the speed."""

import itertools
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EMPTY = 'schema = 1\n[machine]\n[command]\nentry = "script"\nargv = ["{}"]\n[plan]\n[evidence]\n'
APPLIED = ("--set", "malloc_retention=true")
EXACT = (*APPLIED, "--set", "loader_workers=2")
# Saves the weights at the end of a script that does not.
SAVES = """
import sys
sys.argv.pop(0)
import runpy, torch
made, init = [], torch.optim.Optimizer.__init__
def noted(self, *args, **kwargs):
    init(self, *args, **kwargs)
    made.append(self)
torch.optim.Optimizer.__init__ = noted
torch.set_num_threads(1)
runpy.run_path(sys.argv[0], run_name="__main__")
torch.save([p.detach() for group in made[0].param_groups for p in group["params"]], "weights.pt")
"""
START = """
import json, os, sys
print(json.dumps([__name__, __file__, sys.argv, os.getcwd(), sys.path[0], __spec__ is None]))
print(sys.stdin.read())
"""
WORKERS = """
import multiprocessing, sys
def work(x):
    import torch
    return int(torch.tensor(x) ** 2)
if __name__ == "__main__":
    import torch
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, pool.map(work, [1, 2, 3]), flush=True)
"""
CRASH = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        try:
            return x / self.nothing
        except AttributeError as error:
            raise ValueError("no weights") from error
def train():
    Net()(torch.ones(2))
train()
"""
SIGNALS = """
import os, signal, sys, time
import torch
def stop(number, frame):
    print("saving", signal.Signals(number).name, flush=True)
    sys.exit(5)
if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, stop)
os.write(1, b"ready\\n")  # no lock of a buffer is held when the signal comes
time.sleep(60)
"""


def without_seconds(text: str) -> str:
    return re.sub(r"[\d.]+ (ms|s)\b", "TIME", text)


@pytest.mark.slow
@pytest.mark.child
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits.py", ["--epochs", "1"]),
        ("image_pipeline.py", ["--epochs", "1", "--pictures", "96"]),
        ("char_transformer.py", ["--epochs", "1", "--iterations", "3", "--width", "32"]),
    ],
)
def test_an_empty_plan_gives_the_same_output_and_the_same_bits(project, name, words) -> None:
    if name != "char_transformer.py":
        pytest.importorskip("sklearn" if name == "digits.py" else "PIL")
    torch = pytest.importorskip("torch")
    project.write("saves.py", SAVES)
    project.write("hasten.toml", EMPTY.format("saves.py"))
    given = ["saves.py", str(EXAMPLES / name), *words]
    if name == "image_pipeline.py":
        given += ["--data", str(project.root / "data"), "--out", str(project.root / "out")]
    plain = project.python(*given)
    expected = torch.load(project.root / "weights.pt")
    (project.root / "weights.pt").unlink()
    run = project.hasten("run", *given)
    assert plain.code == run.code == 0, run.err
    assert without_seconds(run.out) == without_seconds(plain.out)
    found = torch.load(project.root / "weights.pt")
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.slow
@pytest.mark.child
def test_exact_levers_leave_the_weights_and_a_fused_optimizer_the_keys_as_they_are(project) -> None:
    torch = pytest.importorskip("torch")
    project.write(
        "train.py",
        "import sys, torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "torch.set_num_threads(1)\n"
        "torch.manual_seed(0)\n"
        "data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for epoch in range(2):\n"
        "    for x, y in DataLoader(data, batch_size=8, shuffle=True):\n"
        "        optimizer.zero_grad()\n"
        "        loss = torch.nn.functional.cross_entropy(model(x), y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    print(loss.item())\n"
        "print(model.register_forward_hook(print).id)  # a pickled model holds it\n"
        "torch.save({'m': model.state_dict(), 'o': optimizer.state_dict()}, sys.argv[1])\n",
    )
    plain = project.python("train.py", "plain.pt")
    exact = project.hasten("run", *EXACT, "train.py", "exact.pt")
    fused = project.hasten("run", "--set", "fused_optimizer=true", "train.py", "fused.pt")
    assert (plain.code, exact.code, fused.code) == (0, 0, 0), exact.err + fused.err
    assert exact.out == plain.out
    saved = {n: torch.load(project.root / f"{n}.pt") for n in ("plain", "exact", "fused")}
    for name, value in saved["plain"]["m"].items():
        assert torch.equal(value, saved["exact"]["m"][name])
        assert torch.allclose(value, saved["fused"]["m"][name], atol=1e-5)
    for part, key in itertools.product(("exact", "fused"), ("param_groups", "state")):
        assert len(saved["plain"]["o"][key]) == len(saved[part]["o"][key]) > 0
    for groups in zip(*(saved[n]["o"]["param_groups"] for n in saved), strict=True):
        assert groups[0].keys() == groups[1].keys() == groups[2].keys()


@pytest.mark.child
@pytest.mark.parametrize("way", ["script", "module", "bash"])
def test_the_script_starts_as_it_would_under_plain_python(project, way) -> None:
    project.write("pack/__init__.py", "")
    project.write("pack/train.py", START)
    project.write("train.sh", 'python pack/train.py "$@"\n')
    words = {
        "script": ["pack/train.py", "a b", "--set", "x"],
        "module": ["-m", "pack.train", "a b", "--plan", "x"],
        "bash": ["--", "bash", "train.sh", "a b", "--force"],
    }[way]
    argv = words[1:] if way == "bash" else [sys.executable, *words]
    plain = project.hasten(argv=argv, stdin_text="typed")
    run = project.hasten("run", *APPLIED, *words, stdin_text="typed")
    assert plain.code == run.code == 0, run.err
    assert run.out == plain.out
    assert "typed" in run.out


@pytest.mark.child
def test_the_exit_code_is_the_script_s(project) -> None:
    project.write("train.py", "import torch, sys\nsys.exit(7)\n")
    assert project.hasten("run", *APPLIED, "train.py").code == 7


@pytest.mark.child
def test_a_traceback_shows_the_script_s_frames_alone(project) -> None:
    project.write("train.py", CRASH)
    plain = project.python("train.py")
    run = project.hasten("run", *APPLIED, "train.py")
    assert plain.code == run.code == 1
    assert run.err == plain.err


@pytest.mark.child
@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, "handled"), (signal.SIGTERM, "plain"), (signal.SIGINT, "plain")],
)
def test_signals_reach_the_script(project, number, kind) -> None:
    project.write("train.py", SIGNALS)
    ends = []
    for argv in (
        [sys.executable, "train.py", kind],
        project.command("run", *APPLIED, "train.py", kind),
    ):
        with project.begun(argv=argv) as process:
            while process.stdout.readline() != "ready\n":
                assert process.poll() is None
            while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
                time.sleep(0.05)  # between the two lines a traceback would name the other one
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            ends.append((process.returncode, out, err))
    assert ends[0] == ends[1]
    assert project.nothing_left()


@pytest.mark.child
def test_worker_processes_start_by_every_method(project) -> None:
    project.write("train.py", WORKERS)
    plain = project.python("train.py")
    run = project.hasten("run", *APPLIED, "train.py")
    assert plain.code == run.code == 0, run.err
    assert run.out == plain.out
    assert run.err == plain.err


FED = """
import torch
from torch.utils.data import DataLoader
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return torch.full((50_000,), float(index))
loader, model = DataLoader(Rows(), batch_size=4), torch.nn.Linear(50_000, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for rows in loader:
        model(rows).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.child
def test_workers_of_ours_that_die_with_the_script_leave_no_folder(project) -> None:
    """Those of plain python come to their own end before."""
    project.write("train.py", FED)
    run = project.hasten("run", "--set", "loader_workers=2", "train.py")
    assert (run.code, run.err) == (0, "")
    assert not list(Path(project.env["TMPDIR"]).glob("pymp-*"))


GUARDED = """schema = 1
[command]
entry = "script"
argv = ["train.py", "{word}"]
[plan]
intra_op_threads = 1
malloc_retention = true
[guard]
step = "optimizer"
losses = [1.0, 0.9]
spreads = [0.1, 0.1]
range = [0.5, 1.6]
moves = [0.01, 0.01]
"""
TRAINS = """
import sys, torch
torch.manual_seed(0)
torch.set_num_threads(2)
data = torch.randn(64, 8)
labels = (data.sum(1) > 0).long()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data), labels)
    if sys.argv[1] == "spoiled" and step >= 11:
        loss = loss * float("nan")
    loss.backward()
    optimizer.step()
used = torch.__config__.parallel_info().split("get_num_threads() : ")[1][0]
print(used, torch.get_num_threads(), torch.autograd.backward.__name__, hasattr(
    torch.autograd.backward, "__wrapped__"))
sys.exit(7)
"""


@pytest.mark.child
def test_a_run_that_goes_astray_goes_on_without_its_levers_and_says_so(project) -> None:
    project.write("train.py", TRAINS)
    project.write("hasten.toml", GUARDED.format(word="spoiled"))
    run = project.hasten("run", "train.py", "spoiled")
    assert run.code == 7
    assert run.out == "2 2 backward False\n"
    (said,) = [line for line in run.err.splitlines() if "step 12" in line]
    assert "the loss is nan" in said
    assert "Disabled: intra_op_threads=1." in said
    assert "Only a new process is without: malloc_retention=True." in said


@pytest.mark.child
def test_a_run_that_trains_as_it_should_hears_nothing_of_the_guard(project) -> None:
    project.write("train.py", TRAINS)
    project.write("hasten.toml", GUARDED.format(word="sound"))
    run = project.hasten("run", "train.py", "sound")
    assert (run.code, run.out, run.err) == (7, "1 2 backward True\n", "")  # watched to the end


@pytest.mark.child
def test_a_plan_without_an_envelope_runs_unwatched(project) -> None:
    project.write("train.py", TRAINS)
    project.write("hasten.toml", GUARDED.format(word="spoiled").partition("[guard]")[0])
    run = project.hasten("run", "train.py", "spoiled")
    assert (run.code, run.out, run.err) == (7, "1 2 backward False\n", "")


LATE_PRUNING = """
import hashlib, sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
                      nn.Flatten(), nn.Linear(8 * 16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for step in range(70):
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step >= 60:
        w = model[3].weight.data.flatten()
        w[w.abs() < 0.05] = 0
        model[0].weight.detach().numpy().reshape(-1)[:50] = 0
hashlib.sha256(model[3].weight.detach().numpy()).hexdigest()
assert model[:4](x).is_contiguous()
print(int((model[3].weight == 0).sum() + (model[0].weight == 0).sum()))
torch.save({"m": model.state_dict(), "o": optimizer.state_dict(),
            "g": [p.grad for p in model.parameters()]}, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.child
def test_what_a_script_writes_late_through_flat_weights_is_there_under_channels_last(
    project,
) -> None:
    torch = pytest.importorskip("torch")
    project.write("train.py", LATE_PRUNING)
    plain = project.python("train.py", "plain.pt")
    run = project.hasten("run", "--set", "channels_last=true", "train.py", "last.pt")
    assert plain.code == run.code == 0, run.err
    assert run.out == plain.out
    own, other = (torch.load(project.root / name) for name in ("plain.pt", "last.pt"))
    for key in own["m"]:
        assert own["m"][key].stride() == other["m"][key].stride()
        assert torch.allclose(own["m"][key], other["m"][key], atol=1e-3)
    moments = [(state["momentum_buffer"].stride()) for state in own["o"]["state"].values()]
    assert moments == [s["momentum_buffer"].stride() for s in other["o"]["state"].values()]
    assert [g.stride() for g in own["g"]] == [g.stride() for g in other["g"]]


@pytest.mark.child
def test_a_lever_may_wait_for_a_function_of_torch_while_torch_is_being_imported(project) -> None:
    project.write("late.py", "import torch; print(hasattr(torch.compile, '__wrapped__'))\n")
    assert project.hasten("run", "--set", "channels_last=true", "late.py").out == "True\n"


LIVES_TO_THE_END = """
import sys, threading, time
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((4,), float(i))
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    for _ in range(2):
        for batch in loader:
            pass
    unfinished = iter(loader)
    next(unfinished)
    wait = threading.Event().wait
    main = sys.modules["__main__"]
    threading.Thread(target=lambda module: wait(), args=[main], daemon=True).start()
"""


@pytest.mark.child
def test_data_that_lives_until_python_clears_its_modules_ends_without_a_word(project) -> None:
    project.write("train.py", LIVES_TO_THE_END)
    levers = ("--set", "sample_cache=1MiB", "--set", "loader_workers=1")
    run = project.hasten("run", *levers, "--assume", "dataset-unchanged", "train.py")
    assert (run.code, run.err) == (0, "")
