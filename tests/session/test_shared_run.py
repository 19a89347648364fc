"""`hasten run --share-batches`: one script in several ranks, and what ends them together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from hasten.errors import UsageError
from hasten.records import Entry, Plan, Workload
from hasten.root_calls.ranks.shared_batches import _Shared
from hasten.session import shared_run
from hasten.trials.process import Isolation

TRAIN = """
import json, os, random, uuid
import numpy, torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

assert not torch.distributed.is_initialized()
assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"} & set(os.environ)
draws = [random.random(), numpy.random.rand(), numpy.random.default_rng().random(), hash("a"),
         torch.rand(1).item(), uuid.uuid4().hex, os.urandom(3).hex(), random.Random().random()]
random.seed()
draws.append(random.random())
torch.manual_seed(0)

class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.rnn(x[:, 0])[0][:, -1])

class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(64, 4), nn.Linear(2, 64)

    def forward(self, x):
        mean, log_var = self.encode(x.flatten(1)).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decode(z), mean, log_var

rows = TensorDataset(torch.randn(50, 1, 8, 8), torch.randint(4, (50,)))
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
models = nn.ModuleDict({
    "images": nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
                            nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 4)),
    "attention": nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(64, 4)),
    "sequence": Sequence(),
    "autoencoder": Autoencoder(),
})
by_hand = models["sequence"]
others = [weight for name in models if name != "sequence" for weight in models[name].parameters()]
optimizer = torch.optim.SGD(others, 0.02, momentum=0.9)
for epoch in range(2):
    for x, y in DataLoader(rows, batch_size=16, shuffle=True):  # the last batch has 2 rows
        models.zero_grad()
        seen, mean, log_var = models["autoencoder"](x)
        loss = mse_loss(seen, x.flatten(1), reduction="sum") * 1e-3
        loss = loss + (mean.square() + log_var.exp() - log_var).sum() * 1e-3
        for name in ("images", "attention", "sequence"):
            loss = loss + cross_entropy(models[name](x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for weight in by_hand.parameters():
                weight -= 0.1 * weight.grad
    print(f"epoch {epoch} {loss.item():.4f}")
    with open("log.txt", "a") as file:
        file.write(f"epoch {epoch}\\n")
    torch.save(models.state_dict(), "model.pt")
    models.load_state_dict(torch.load("model.pt"))
models.eval()
with torch.no_grad():
    print("right", int((models["images"](rows.tensors[0]).argmax(1) == rows.tensors[1]).sum()))
print(json.dumps(draws))
"""
SHORT = """
import os, torch
from torch import nn
aside = os.environ.get("WANDB_MODE") == "disabled"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
weights = list(model.parameters())
for step in range(10):
    x = torch.randn(8, 6)
    if step == 5:
        FAULT
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
    model.zero_grad()
open("done", "w").close()
"""

pytestmark = pytest.mark.child


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def played(
    folder,
    ranks,
    *,
    script=TRAIN,
    words=lambda rank: (),
    meanwhile=len,
    of_rank=lambda rank: {},
    **more,
):
    """Run a script in so many ranks; return the exit code and both streams of each."""
    (folder / "train.py").write_text(script)
    common = {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "hasten", "run", "--share-batches", "train.py", *words(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, **common, "RANK": str(rank), **of_rank(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    meanwhile(processes)
    found = [process.communicate(timeout=200) for process in processes]
    return [(one.returncode, *said) for one, said in zip(processes, found, strict=True)]


@cache
def alone(folder):
    """Train in one process; return what was printed, and the weights."""
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.stdout.splitlines(), torch.load(folder / "model.pt")


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_train_what_one_process_trains(ranks, tmp_path, tmp_path_factory) -> None:
    told, weights = alone(tmp_path_factory.getbasetemp())
    (code, output, errors), *others = played(tmp_path, ranks)
    assert (code, errors) == (0, "")
    assert set(others) == {(0, "", "")}, "they print nothing"
    assert output.splitlines()[:-1] == told[:-1], "the printed losses and what is right"
    assert (tmp_path / "log.txt").read_text() == "epoch 0\nepoch 1\n", "written once"
    assert sorted(os.listdir(tmp_path)) == ["log.txt", "model.pt", "train.py"]
    seen = torch.load(tmp_path / "model.pt")
    assert list(seen) == list(weights)
    for name, value in weights.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-6, atol=1e-6)
    assert not set(json.loads(output.splitlines()[-1])) & set(json.loads(told[-1])), "unseeded"


@pytest.mark.parametrize(
    ("fault", "line", "why"),
    [
        ("x = x + 1e-3 * aside", 12, "their inputs differ"),
        pytest.param(
            "torch.rand(int(aside))", 12, "their random states differ", marks=pytest.mark.slow
        ),
        pytest.param(
            "model[0].weight.data.add_(1e-3 * aside)",
            12,
            "their weights differ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "_ = model(x) if aside else 0",
            11,
            "their models are called from different lines",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_part_say_where_and_end(fault, line, why, tmp_path) -> None:
    first, second = played(tmp_path, 2, script=SHORT.replace("FAULT", fault))
    assert (first[0], second[0]) == (1, 1)
    said = f"the ranks have parted: rank 0 is at train.py:12, rank 1 is at train.py:{line}, and"
    assert first[2] == f"hasten: {said} {why}\n"
    assert not (tmp_path / "done").exists()


def test_ranks_whose_losses_differ_end(tmp_path) -> None:
    script = SHORT.replace("FAULT", "pass").replace(".mean()", ".mean() * (1 + aside)")
    first, second = played(tmp_path, 2, script=script)
    assert (first[0], second[0]) == (1, 1)
    assert first[2].endswith("and their losses differ\n")


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_ends_the_others(killed, tmp_path) -> None:
    fault = f"os.kill(os.getpid(), 9) if aside == {bool(killed)} else None"
    found = played(tmp_path, 2, script=SHORT.replace("FAULT", fault))
    assert found[1 - killed][0] == 1
    assert "hasten: another rank has ended, or does not answer" in found[1 - killed][2]
    assert found[killed][0] == (137 if killed else -9)


def test_a_script_that_swallows_every_error_does_not_go_on_without_steps(tmp_path) -> None:
    swallowing = """
    try:
        loss = model(x).square().mean()
        loss.backward()
    except:
        continue
"""
    script = SHORT.replace("FAULT", "os.kill(os.getpid(), 9) if aside else None").replace(
        "\n    loss = model(x).square().mean()", swallowing.rstrip()
    )
    first, second = played(tmp_path, 2, script=script.replace("\n    loss.backward()\n", "\n", 1))
    assert (first[0], second[0]) == (1, 137)
    assert not (tmp_path / "done").exists()


def test_a_handler_of_the_script_that_raises_is_answered_by_the_script(tmp_path) -> None:
    script = """
import os, signal, sys, torch
from torch import nn
class Stopped(Exception): pass
def stop(*_): raise Stopped
signal.signal(signal.SIGALRM, stop)
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 3))
torch.manual_seed(0)
try:
    for step in range(100_000):
        if step == 5 and os.environ.get("WANDB_MODE") != "disabled":
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        model(torch.randn(64, 64)).square().mean().backward()
except Stopped:
    open("saved", "w").close()
"""
    first, second = played(tmp_path, 2, script=script)
    assert (first[0], first[2]) == (0, "")
    assert (tmp_path / "saved").exists()
    assert second[0] == 1


def test_a_signal_to_another_rank_waits_for_the_first(tmp_path) -> None:
    fault = "open('ready', 'w').close(); __import__('time').sleep(1)"

    def stop(processes):
        while not (tmp_path / "ready").exists() and processes[0].poll() is None:
            time.sleep(0.05)
        processes[1].terminate()

    found = played(tmp_path, 2, script=SHORT.replace("FAULT", fault), meanwhile=stop)
    assert found == [(0, "", ""), (0, "", "")]


@pytest.mark.slow
def test_a_rank_that_fails_shows_its_last_words(tmp_path) -> None:
    fault = "exit('out of luck') if aside else None"
    first, (code, output, errors) = played(tmp_path, 2, script=SHORT.replace("FAULT", fault))
    assert (first[0], code, output) == (1, 1, "")
    assert "rank 1: out of luck\n" in errors


def test_a_model_that_cannot_be_shared_ends_the_run_with_a_sentence(tmp_path) -> None:
    script = SHORT.replace("nn.Tanh()", "nn.Softmax(0)").replace("FAULT", "pass")
    first, second = played(tmp_path, 2, script=script)
    assert (first[0], second[0]) == (1, 1)
    why = "hasten: cannot share batches among the ranks: a batch cannot be shared"
    assert first[2].startswith(why)
    assert "Traceback" not in first[2]


@pytest.mark.slow
def test_processes_that_the_script_forks_or_starts_are_no_ranks(tmp_path) -> None:
    fault = """
        import subprocess, sys
        child = os.fork()
        if not child:
            sys.exit(0)
        print(os.waitpid(child, 0)[1])
        command = [sys.executable, "-c", "import torch; print(torch.rand(1).shape)"]
        print(subprocess.run(command, capture_output=True, text=True).stdout)
    """
    found = played(tmp_path, 2, script=SHORT.replace("FAULT", fault.strip()))
    assert found == [(0, "0\ntorch.Size([1])\n\n", ""), (0, "", "")]


def test_a_script_that_trains_elsewhere_is_told_that_nothing_was_shared(tmp_path) -> None:
    first, second = played(tmp_path, 2, script="import torch")
    assert (first[0], second[0]) == (0, 0)
    assert first[2].startswith("hasten: no batch was shared: the script has called no model")


def test_ranks_with_other_commands_do_not_start(tmp_path) -> None:
    found = played(tmp_path, 2, script="raise SystemExit(9)", words=lambda rank: (str(rank),))
    assert [one[0] for one in found] == [2, 2]
    assert all("Rank 1 has another command than rank 0." in one[2] for one in found)


def test_one_rank_is_plain_python(tmp_path) -> None:
    script = "import os; print(os.environ['RANK'], 'HASTEN_CHILD' in os.environ)"
    assert played(tmp_path, 1, script=script) == [(0, "0 False\n", "")]


def test_nobody_told_the_ranks(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="WORLD_SIZE is not set"):
        shared_run._own_place({"RANK": "0"})


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"RANK": "x"}, "RANK is 'x', which is no count"),
        ({"RANK": "2"}, "There is no rank 2 of 2"),
        ({"WORLD_SIZE": "0"}, "There is no rank 0 of 0"),
        ({"MASTER_PORT": "99999"}, "no port 99999"),
    ],
)
def test_ranks_that_cannot_be_are_refused(told, why) -> None:
    usual = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    with pytest.raises(UsageError, match=why):
        shared_run._own_place({**usual, **told})


def test_ranks_of_two_jobs_at_one_port_do_not_start(tmp_path) -> None:
    jobs = iter("12")
    found = played(tmp_path, 2, script="raise SystemExit(9)", of_rank=lambda rank: {
        "SLURM_JOB_ID": next(jobs)
    })  # fmt: skip
    assert [one[0] for one in found] == [2, 2]
    assert "Rank 1 has another job than rank 0." in found[0][2]


def test_a_script_finds_itself_alone() -> None:
    told = {"RANK": "1", "PET_NNODES": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "HOME": "/"}
    kept = shared_run.of_team({**told, "PYTHONHASHSEED": "3"}, {"seed": 5})
    assert kept == {"SLURM_JOB_ID": "7", "HOME": "/", "PYTHONHASHSEED": "3"}
    assert shared_run.of_team({}, {"seed": (1 << 40) + 5}) == {"PYTHONHASHSEED": "5"}


def test_levers_with_processes_or_code_of_their_own_are_left_out() -> None:
    plan = Plan((("omp_wait_policy", "active"), ("ranks", "2x1"), ("torch_compile", "default")))
    kept, left_out = shared_run.fitting(plan)
    assert dict(kept.settings) == {"omp_wait_policy": "active"}
    assert left_out == ["ranks=2x1", "torch_compile=default"]


def test_where_the_kernel_guards_no_files_the_user_is_told(monkeypatch, capfd, tmp_path) -> None:
    monkeypatch.setattr("hasten.trials.process.best_isolation", lambda cwd: Isolation.PYTHON)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # of this process
    words = ("sh", "-c", "echo lost; echo why >&2; exit 5")
    workload = Workload(entry=Entry.COMMAND, argv=words, cwd=str(tmp_path), python=sys.executable)
    assert shared_run.run_aside(workload, os.environ, 1) == 5
    told = capfd.readouterr()
    assert told.err.startswith("hasten: neither the overlay nor Landlock works here: ")
    assert told.err.endswith("rank 1: why\n")
    assert not told.out


def test_a_rank_that_was_told_to_outlive_its_terminal_does(monkeypatch) -> None:
    def start(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hasten.trials.process.Process.start", start)
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    workload = SimpleNamespace(cwd="/", command=["true"])
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with pytest.raises(KeyboardInterrupt):
            shared_run.run_aside(workload, {}, 2)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_run_in_which_nothing_can_be_shared_parts_from_the_others() -> None:
    def part():
        raise SystemExit(1)

    training, told = SimpleNamespace(on_function=None, compiled=None), []
    shared = _Shared(training, told.append, part)
    with pytest.raises(SystemExit):
        shared.excuse(RuntimeError("the model has hooks"))
    shared.call_count = 101
    shared.excuse(RuntimeError("the model changes too often"))
    assert [line.partition(": ")[2].partition(":")[0] for line in told] == [
        "cannot share batches among the ranks",
        "from here on every rank computes whole batches",
    ]
