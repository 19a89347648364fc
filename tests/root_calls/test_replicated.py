"""Root calls that are shared among ranks which each run the script: the same training as alone."""

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import hasten

PROGRAM = Path(__file__).with_name("spread_out.py")
SHARED = (
    "normalized", "attention_with_dropout", "loss_in_the_model", "summed_loss", "recurrent",
    "rivals", "twice_through_one_graph", "other_sizes", "experts", "frozen_in_between",
    "drawn_in_every_way", "complex_weights", "stumbling", "unused_and_frozen",
)  # fmt: skip
STAYS = {
    "exacting": "a batch cannot be shared among processes: AssertionError",
    "keeping_a_mean": "a batch cannot be shared among processes: its buffers differ",
    "sometimes_normalized": "a batch cannot be shared among processes: the shares",
    "keeping_the_last": "a batch cannot be shared among processes: its buffers differ",
    "samples_that_depend_on_one_another": "a batch cannot be shared among processes: its outputs",
    "speaking": "the model's code may print or write files: forward names print",
}

pytestmark = pytest.mark.child


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@cache
def played(ranks, names=(*SHARED, *STAYS, "other_domains", "more_domains")):
    """Play scenes in so many processes; return what came of them, by rank."""
    source, port = str(Path(hasten.__file__).parent.parent), free_port()
    environment = {**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, *map(str, (rank, ranks, port)), *names],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    found = [process.communicate(timeout=300) for process in processes]
    assert not any(process.returncode for process in processes), found
    return [json.loads(output) for output, _ in found]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SHARED)
def test_ranks_train_as_one_process_does_and_are_equal_to_the_bit(name, ranks) -> None:
    seen = [rank[name] for rank in played(ranks)]
    assert {one["excused"] for one in seen} == {""}
    assert len({one["weights"] for one in seen}) == 1
    for one in seen:
        assert one["shared"]
        assert max(one["distance"], one["told"]) <= 1e-9
        assert one["generator"]


@pytest.mark.parametrize("name", ["other_domains", "more_domains"])
def test_shares_that_normalize_at_other_layers_are_left_to_each_rank(name) -> None:
    for one in (rank[name] for rank in played(2)):
        assert one["excused"] == "the shares normalize by batch at different layers"
        assert one["shared"]
        assert max(one["distance"], one["told"]) <= 1e-9


@pytest.mark.parametrize("name", STAYS)
def test_every_rank_makes_by_itself_the_calls_that_cannot_be_shared(name) -> None:
    for one in (rank[name] for rank in played(2)):
        assert one["excused"].startswith(STAYS[name])
        assert (one["distance"], one["told"], one["generator"]) == (0.0, 0.0, True)
        assert one["printed"]
