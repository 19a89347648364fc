"""Ranks of one training: told the same at the same step, and as slow as the slowest of them."""

import os
import socket
import sys
from types import SimpleNamespace

import pytest
import torch

from hasten import child, protocol
from hasten.errors import NoRoom
from hasten.protocol import Turn
from hasten.records import Effect, Entry, Plan, Traits, Workload
from hasten.session.recordings import open_prover
from hasten.trials import own_port
from hasten.trials.channel import Channel
from hasten.trials.child_environment import environment
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.exit_errors import error_of
from hasten.trials.process import Exit, best_isolation
from hasten.trials.rank_channels import RankChannels, together
from hasten.trials.trial_process import TrialProcess

# Starts two of itself. Each step fails if the ranks differ in threads, so in what they were told.
SCRIPT = """
import os, subprocess, sys, tempfile

if "RANK" not in os.environ:
    os.environ["STORE"] = os.path.join(tempfile.mkdtemp(), "store")
    start = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen(start, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
import torch
from torch import distributed

distributed.init_process_group(
    "gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=2)
rank = distributed.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(rank)
for step in range(300):
    count = torch.get_num_threads()
    counts = torch.tensor([count, -count])
    distributed.all_reduce(counts, distributed.ReduceOp.MAX)
    assert counts.tolist() == [count, -count], counts
    optimizer.zero_grad()
    model(torch.randn(4 + 2 * rank, 8)).pow(2).mean().backward()
    optimizer.step()
"""
STEP = [8] + [1_000] * 7


@pytest.fixture
def workload(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return Workload(
        entry=Entry.SCRIPT, argv=("train.py",), cwd=str(tmp_path), python=sys.executable
    )


@pytest.mark.child
def test_all_ranks_switch_at_the_same_step(workload) -> None:
    trial = TrialProcess(workload, Plan(), isolation=best_isolation(), patience_s=60.0)
    try:
        trial.begin()
        plans = [Plan().with_lever("intra_op_threads", count) for count in (1, 2)]
        trial.switch(plans)
        turns, usage = trial.turns([Turn(0, 1, 3, True), Turn(1, 2, 5, True)], timeout_s=60.0)
        facts = trial.ask(protocol.ReadTraits(), protocol.TraitsRead, 60.0)
    finally:
        trial.close()
    assert [len(turn) for turn in turns] == [3, 5]
    assert (facts.traits.rank_count, facts.traits.local_rank_count) == (2, 2)
    assert {step.sample_count for turn in turns for step in turn} == {4 + 6}
    assert usage["cpu_s"] > 0.0


@pytest.mark.slow
@pytest.mark.child
def test_a_plan_is_proved_on_all_ranks(workload) -> None:
    with open_prover(
        workload, isolation=best_isolation(), step_s=0.01, start_s=5.0, patience_s=120.0,
        parameter_count=300, code=CompiledCode(),
    ) as prover:  # fmt: skip
        proof = prover.prove(Plan().with_lever("fused_optimizer", True))
    assert (proof.holds, proof.effect) == (True, Effect.ROUNDING), proof


@pytest.fixture
def ranks():
    """Return the parent's end of two conversations, and the children's ends."""
    pairs = [socket.socketpair() for _ in range(2)]
    channels = [Channel(own) for own, _ in pairs]
    yield RankChannels(channels), [Channel(other) for _, other in pairs]
    for pair in pairs:
        for end in pair:
            end.close()


def run(*turns, **usage):
    return protocol.TurnsRun(turns=list(turns), usage={"cpu_s": 1.0, "faults_count": 2.0, **usage})


def test_an_answer_that_comes_late_is_waited_for_without_asking_again(ranks) -> None:
    parent, (first, second) = ranks
    command = protocol.RunTurns(turns=(Turn(0, 0, 1, True),))
    parent.send(command)
    assert first.receive(1.0) == second.receive(1.0) == command
    first.send(run([STEP], peak_rss_bytes=5.0))
    assert parent.hear(0.05) is None
    second.send(run([STEP], peak_rss_bytes=7.0))
    answer = parent.hear(1.0)
    assert answer.usage == {"cpu_s": 2.0, "faults_count": 4.0, "peak_rss_bytes": 12.0}
    assert answer.turns == [[[16, *STEP[1:]]]]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (protocol.ReadTraits(), protocol.TraitsRead(traits=Traits(), unit="samples")),
        (protocol.ReadCosts(), protocol.CostsRead(compile_s=1.0, first_pass_s=(2.0, 1.0))),
    ],
)
def test_what_takes_no_step_is_asked_of_the_first_rank_alone(ranks, command, answer) -> None:
    parent, (first, second) = ranks
    parent.send(command)
    assert first.receive(1.0) == command
    first.send(answer)
    assert parent.hear(1.0) == answer
    with pytest.raises(TimeoutError):
        second.receive(0.05)


def test_no_rank_ends_a_look_by_its_own_clock(ranks) -> None:
    parent, ends = ranks
    parent.send(protocol.Examine(step_count=20, least_count=8, most_s=0.1))
    assert [end.receive(1.0).least_count for end in ends] == [20, 20]


@pytest.mark.parametrize(
    "said", [protocol.Ended(step_count=9), protocol.CommandRefused(why="it is a fake")]
)
def test_a_rank_that_ends_or_refuses_speaks_for_all(said) -> None:
    assert together([said, run([STEP])]) == together([run([STEP]), said]) == said


def test_a_port_that_another_trial_has_leaves_room_for_one(tmp_path) -> None:
    tail = "DistNetworkError: The server socket has failed to listen (port: 29500). EADDRINUSE"
    ended = Exit(1, None)
    error = error_of(ended, when="before its first step", tail=tail, refused=(), folder=tmp_path)
    assert isinstance(error, NoRoom)
    assert "a port that the script needs" in error.problem


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({}, (None, "4321")),
        ({"init_method": "tcp://localhost:12355"}, ("tcp://localhost:4321", "4321")),
        ({"init_method": "file:///tmp/store:1"}, ("file:///tmp/store:1", "4321")),
    ],
)
def test_ranks_of_a_trial_meet_at_its_own_port(asked, got, monkeypatch) -> None:
    met = []

    def meet(backend=None, init_method=None, **rest):
        met.append((init_method, os.environ["MASTER_PORT"]))

    monkeypatch.setattr(torch.distributed, "init_process_group", meet)
    monkeypatch.setenv("MASTER_PORT", "12355")
    monkeypatch.setenv(own_port.KEY, "4321")
    own_port.replace_ports()
    torch.distributed.init_process_group("gloo", **asked)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    torch.distributed.init_process_group("gloo")
    torch.distributed.init_process_group("gloo", init_method="tcp://localhost:29500")
    assert met == [got, (None, "29500"), ("tcp://localhost:29500", "29500")]


def test_trials_log_to_no_server_and_a_run_does() -> None:
    own = {"MLFLOW_RUN_ID": "7f", "MLFLOW_REGISTRY_URI": "http://server"}
    run, trial, _ = (environment(Plan(), mode=mode, env=own) for mode in protocol.Mode)
    assert own.items() <= run.items()
    assert "MLFLOW_RUN_ID" not in trial
    assert trial["MLFLOW_REGISTRY_URI"] == trial["MLFLOW_TRACKING_URI"] == "file:./mlruns"


def test_a_tracker_that_the_code_names_is_left_out_of_trials(monkeypatch) -> None:
    tracker = SimpleNamespace(set_tracking_uri=pytest.fail, set_registry_uri=pytest.fail)
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    child._stay_local()
    tracker.set_tracking_uri("http://server")
    tracker.set_registry_uri(uri="http://server")


def test_torchrun_of_two_trials_takes_two_ports() -> None:
    made = [environment(Plan(), mode=mode, env={}) for mode in protocol.Mode]
    assert "PET_MASTER_PORT" not in made[0]  # a real run is the user's
    assert made[1]["PET_MASTER_PORT"].isdecimal()
