"""The messages of docs/protocol.md, and a child that is nothing but them."""

import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

from hasten import protocol
from hasten.errors import ChildLost, TooFewSteps
from hasten.protocol import (
    Answer,
    Command,
    Mode,
    Order,
    ReadTraits,
    RecordingSpec,
    RunTurns,
    TraitsRead,
    Turn,
)
from hasten.records import (
    CheckpointTraits,
    Entry,
    Phase,
    Plan,
    PrecisionTraits,
    ProductSpeed,
    Traits,
    Workload,
)
from hasten.testing import fed
from hasten.trials.process import Isolation
from hasten.trials.trial_process import TrialProcess

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"

# The whole of a child: it speaks the protocol and needs nothing else of hasten.
FAKE_CHILD = """
import json, os, socket, sys, time

order = json.loads(os.environ["HASTEN_CHILD"])
parent = socket.socket(socket.AF_UNIX)
parent.connect(order["socket"])
lines = parent.makefile()

def say(kind, **content):
    head = {"v": VERSION, "kind": kind, "pid": os.getpid()}
    parent.sendall((json.dumps(head | content) + "\\n").encode())

say("Attached")
say("Ready")
assert json.loads(lines.readline())["kind"] == "Go"
say("FirstStep", step_ns=5_000_000, at_s=time.monotonic())
left = 100
for line in lines:
    command = json.loads(line)
    if command["kind"] == "SetPlans":
        say("PlansSet")
    elif command["kind"] == "RunTurns":
        counted = [turn[2] for turn in command["turns"]]
        left -= sum(turn[1] + turn[2] for turn in command["turns"])
        if left < 0:
            say("Ended", step_count=100)
            sys.exit()
        step = [8] + [1_000] * PHASES
        say("TurnsRun", turns=[[step] * count for count in counted], usage={"cpu_s": 1.0})
    elif command["kind"] == "ReadTraits":
        say("TraitsRead", traits={"thread_count": 2}, unit="samples")
    else:
        say("CommandRefused", why="it is a fake")
"""


TRAITS = replace(
    fed(fetch_s=0.25, draws=True),
    openmp_variables=("OMP_PLACES",),
    precision=PrecisionTraits(inside=ProductSpeed(matmul_ratio=1.5)),
    checkpoints=CheckpointTraits(each_s=(0.5, 0.75), period_s=60.0, period_step_count=600.0),
)


def told(**traits):
    head = {"v": protocol.VERSION, "kind": "TraitsRead", "usage": {}, "unit": "samples"}
    return head | traits


def example(kind):
    """Return a message of a kind, each field with a value that JSON keeps."""
    values = {
        "plans": ({"a": True, "b": 2}, {}),
        "turns": (Turn(0, 1, 2, True), Turn(1, 0, 3, False)),
        "first_pass_s": (1.0, 0.5),
        "usage": {"cpu_s": 1.0},
        "health": {"losses": [1.0]},
        "traits": TRAITS,
    }
    made = {}
    for item in fields(kind):
        if kind is not RunTurns and item.name == "turns":
            made["turns"] = [[[8, 1, 2]]]
        else:
            made[item.name] = values.get(item.name, item.name)
    return kind(**made)


@pytest.mark.parametrize("kind", [*get_args(Command), *get_args(Answer)])
def test_a_message_comes_out_as_it_went_in(kind) -> None:
    message = example(kind)
    assert protocol.decode(protocol.encode(message)) == (message, None)
    assert protocol.decode(protocol.encode(message, 77)) == (message, 77)


@pytest.mark.parametrize(
    "line",
    [
        {"v": protocol.VERSION - 1, "kind": "PlansSet"},
        {"v": protocol.VERSION, "kind": "Sing"},
        {"v": protocol.VERSION},
        {"v": protocol.VERSION, "kind": "Ended"},
        {"v": protocol.VERSION, "kind": "Ended", "step_count": 3, "mood": "good"},
        told(),
        told(traits={"loader.workers": 2}),
        told(traits={"loader": {"worker_count": 2}}),
        told(traits="good"),
        [],
        {"v": protocol.VERSION, "kind": ["Ended"]},
    ],
)
def test_what_another_release_says_is_not_taken_for_ours(line) -> None:
    with pytest.raises(ValueError, match=r"protocol|message"):
        protocol.decode(json.dumps(line).encode())


def test_an_order_comes_out_as_it_went_in() -> None:
    order = Order(
        mode=Mode.VERIFY, plan={"intra_op_threads": 2}, assumed=("dataset-unchanged",), seed=3,
        recording=RecordingSpec(step_count=4, forced_count=2, perturb_ratio=0.5),
    )  # fmt: skip
    assert Order.read(order.write()) == order
    with pytest.raises(ValueError, match="no order of this release"):
        Order.read('{"mode": "run", "mood": "good"}')
    with pytest.raises(ValueError, match="no order of this release"):
        Order.read("null")


def test_the_page_names_every_message_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", PAGE.read_text(), flags=re.MULTILINE))
    kinds = [*get_args(Command), *get_args(Answer), Order, RecordingSpec]
    told = {name: set(re.findall(r"`(\w+)`", content)) for name, content in rows.items()}
    assert told == {kind.__name__: {item.name for item in fields(kind)} for kind in kinds}


@pytest.fixture
def fake(tmp_path):
    source = f"VERSION, PHASES = {protocol.VERSION}, {len(Phase)}\n{FAKE_CHILD}"
    (tmp_path / "fake.py").write_text(source)
    workload = Workload(
        entry=Entry.SCRIPT, argv=("fake.py",), cwd=str(tmp_path), python=sys.executable
    )
    trial = TrialProcess(workload, Plan(), isolation=Isolation.NONE, patience_s=30)
    yield trial
    trial.close()


@pytest.mark.child
def test_a_child_that_speaks_the_protocol_is_all_that_a_trial_needs(fake) -> None:
    fake.begin()
    assert fake.first_step_s == 0.005
    fake.switch((Plan(), Plan()))
    turns, usage = fake.turns([Turn(0, 1, 2, True), Turn(1, 0, 3, True)], timeout_s=30)
    assert [len(steps) for steps in turns] == [2, 3]
    assert turns[0][0].sample_count == 8
    assert turns[0][0].phase_ns[Phase.FORWARD] == 1_000
    assert usage == {"cpu_s": 1.0}
    assert fake.ask(ReadTraits(), TraitsRead, 30).traits == Traits(thread_count=2)
    with pytest.raises(ChildLost, match="it is a fake"):
        fake.examine(2, timeout_s=30)
    with pytest.raises(TooFewSteps) as ended:
        fake.turns([Turn(0, 0, 100, True)], timeout_s=30)
    assert ended.value.step_count == 100
