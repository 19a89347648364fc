"""Whole tunings on the CPU: a sick script, a healthy one, and those that are cut short."""

import contextlib
import json
import os
import re
import shlex
import signal
import time

import pytest

# Each sample sleeps, so that a few loader workers are a sure gain; nothing is random but the order.
SICK = """
import sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.arange(8.0) * index / 64, index % 2
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, shuffle=True)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(int(sys.argv[1])):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            time.sleep(0.006)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), flush=True)
        open("log.txt", "a").write("epoch\\n")
    torch.save(model.state_dict(), "weights.pt")
"""
KEYS = {
    "schema", "machine", "workload", "baseline", "findings", "plan", "speedup", "levers", "maths",
    "cost", "assumed", "passes", "state", "applied", "notes",
}  # fmt: skip
OWN = {"hasten.toml", "hasten-report.txt", "out.json"}
QUICK = ("tune", "--progress", "plain", "--budget", "70s", "--only", "loader_workers")
# On a crowded machine a gain is confirmed later.
PATIENT = ("tune", "--progress", "plain", "--budget", "2m", "--only", "loader_workers")


def search_begun(project, process) -> str:
    """Wait until the first race of a search has been kept, and return what was said so far."""
    told, until = "", time.monotonic() + 240
    while "search" not in told or not journal(project):
        os.set_blocking(process.stderr.fileno(), False)
        with contextlib.suppress(TypeError):
            told += process.stderr.read() or ""
        assert process.poll() is None, told
        assert time.monotonic() < until, told
        time.sleep(0.05)
    return told


def journal(project) -> str:
    """Return the races that are kept so far, without the head of the journal."""
    paths = list(project.home.rglob("journals/*.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines()[1:]]
    return "\n".join(line for line in lines if not line.startswith('{"settings"'))


@pytest.mark.slow
@pytest.mark.child
def test_a_slow_dataset_is_healed_by_workers_and_nothing_else_is_touched(project) -> None:
    project.write("train.py", SICK)
    project.write("log.txt", "before\n")
    before = project.tree()
    ended = project.hasten(*PATIENT, "--json", "out.json", "train.py", "1000", limit_s=400)
    assert ended.code == 0, ended.err
    assert project.nothing_left()
    after = project.tree()
    assert {name: after[name] for name in after if name not in OWN} == before
    assert after.keys() - before.keys() == OWN
    document = json.loads((project.root / "out.json").read_text())
    assert document.keys() == KEYS
    assert document["plan"]["loader_workers"] >= 1
    assert document["speedup"]["low"] > 1
    assert "loader_workers" in (project.root / "hasten.toml").read_text()
    assert "loader_workers" in ended.out
    plain = project.python("train.py", "2")
    weights = (project.root / "weights.pt").read_bytes()
    run = project.hasten("run", "train.py", "2")
    assert run.code == 0, run.err
    assert run.out == plain.out
    assert (project.root / "weights.pt").read_bytes() == weights


@pytest.mark.slow
@pytest.mark.child
def test_where_nothing_can_help_the_plan_is_empty_and_it_is_said(project) -> None:
    project.script("time.sleep(0.01)")
    ended = project.hasten(*QUICK, "--json", "out.json", "train.py", limit_s=400)
    assert ended.code == 0, ended.err
    document = json.loads((project.root / "out.json").read_text())
    assert document["plan"] == {}
    assert document["speedup"] is None
    assert re.search(r"no (change|lever|gain)|nothing", ended.out, re.IGNORECASE)
    assert project.nothing_left()


@pytest.mark.slow
@pytest.mark.child
def test_ctrl_c_keeps_the_best_so_far_and_the_same_command_goes_on(project) -> None:
    project.write("train.py", SICK)
    words = ("tune", "--progress", "plain", "--budget", "150s", "train.py", "1000")
    with project.begun(*words) as process:
        search_begun(project, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in (err or "")
    assert "You interrupted the search" in out
    assert "[plan]" in (project.root / "hasten.toml").read_text()
    assert project.nothing_left()
    kept = journal(project)
    assert kept
    with project.begun(*words) as process:
        told = ""
        while "known from an earlier run" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert journal(project).startswith(kept)
    assert project.nothing_left()


@pytest.mark.child
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
)
def test_the_end_of_hasten_is_the_end_of_its_trials(project, number) -> None:
    project.write("train.py", "print('here', file=open('x', 'w'))\n" + SICK)
    with project.begun("tune", "--progress", "plain", "train.py", "1000") as process:
        until = time.monotonic() + 120
        while not project.trials():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "Traceback" not in err
    assert project.nothing_left()
    assert project.tree().keys() == {"train.py"}


@pytest.mark.child
@pytest.mark.measures
def test_a_budget_holds_where_the_shell_that_began_it_is_killed(project) -> None:
    project.script()
    command = shlex.join(
        project.command("tune", "--progress", "plain", "--budget", "10s", "train.py")
    )
    begun_s = time.monotonic()
    argv = ["sh", "-c", f"{command} & echo $!; wait"]
    with project.begun(argv=argv) as shell:
        pid = int(shell.stdout.readline())
        time.sleep(3)
        shell.kill()
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < begun_s + 30:
            time.sleep(0.05)
        assert time.monotonic() < begun_s + 14
    assert project.nothing_left()
