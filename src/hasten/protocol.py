"""What parent and child say to each other: one JSON object per line, see docs/protocol.md.

Standard library only: the child runs in the user's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003  the type of fields
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from hasten.records import Setting, Traits  # noqa: TC001  the same
from hasten.records.codec import revive

VERSION = 12
"""Incremented with every change of a message, so that releases cannot misread each other."""


class Mode(StrEnum):
    """What a child is started for."""

    RUN = "run"
    TRIAL = "trial"
    VERIFY = "verify"


# ---- what a child is told by its environment


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSpec:
    """What is special about one recorded run.

    Attributes:
        step_count: steps to record.
        forced_count: how many of them start from the weights of `teacher`.
        teacher: the folder of weights to start from; None leaves weights behind for others.
        keeps: leave batches and gradients behind, too.
        feeds: train on the batches and the gradients of `teacher`.
        perturb_ratio: multiply each weight by one plus or minus this.
        perturb_seed: the seed of the coin that picks plus or minus.
        reseed: draw other numbers after each batch than the run that left it; None draws the same.
    """

    step_count: int
    forced_count: int
    teacher: str | None = None
    keeps: bool = False
    feeds: bool = False
    perturb_ratio: float = 0.0
    perturb_seed: int = 1
    reseed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a child is started to do, passed as JSON in its environment.

    Attributes:
        plan: the settings of the levers.
        assumed: what the user granted, by name.
        socket: where the parent listens, in a trial and a verification.
        mark: a file whose existence says that this code was reached.
        place: the machine of a real run, see `trials.child_environment.place`.
        envelope: what the first steps of a real run are held against.
        seed: of all that the script leaves unseeded, in a trial and a verification.
        recording: what a verification records.
        folder: where its tensors go.
        team: the ranks of a real run that share batches: `rank`, `count`, `address` and `port`, and
            a `seed` of all that the script leaves unseeded.
    """

    mode: Mode
    plan: Mapping[str, Setting] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    socket: str = ""
    mark: str = ""
    place: Mapping[str, Any] | None = None
    envelope: Mapping[str, Any] | None = None
    seed: int = 0
    recording: RecordingSpec | None = None
    folder: str = ""
    team: Mapping[str, Any] | None = None

    def write(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Order:
        """Return the order that `write` encoded.

        Raises:
            ValueError: it is not an order of this release.
        """
        try:
            order = revive(cls, json.loads(text))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no order of this release: {error}") from error
        if not isinstance(order, cls):
            raise ValueError(f"no order of this release: {text}")
        return order


# ---- what a waiting child is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Train until the first step boundary: no other child of the parent is computing now."""


ENDLESS_COUNT = 1 << 60
"""The step count of a turn that lasts until the script ends."""
FORKED = "forked"
"""The file beside the socket of a trial in which a forked process has stepped an optimizer."""


class Turn(NamedTuple):
    """A stretch of steps under one plan.

    Attributes:
        plan_index: which of the plans of `SetPlans`.
        skip_count: steps that settle what the switch disturbed, not counted.
        step_count: steps that are counted.
        is_watched: whether they are timed.
    """

    plan_index: int
    skip_count: int
    step_count: int
    is_watched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPlans:
    """Set the plans that turns refer to, each the settings of its levers; switch to the first."""

    plans: tuple[Mapping[str, Setting], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTurns:
    """Run these turns."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTraits:
    """Say what the script is like; that takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCosts:
    """Say what was paid once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Look closely at the next `step_count` steps.

    Attributes:
        step_count: the most steps.
        least_count: steps after which the look ends early, if it has taken `most_s` by then:
            between two steps may lie an evaluation, say.
        most_s: seconds of the look that are enough.
    """

    step_count: int
    least_count: int
    most_s: float


# ---- what a child says


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """This process has imported torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """This process is about to call a model for the first time, and waits for `Go`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """This process trains, and stands at its first step boundary.

    Attributes:
        step_ns: nanoseconds of the first step.
        at_s: when it ended, by `time.monotonic`, less the seconds spent waiting for `Go`.
        rank: of this process among those that train together.
        rank_count: these processes on this machine; each of them says this.
    """

    step_ns: int
    at_s: float
    rank: int = 0
    rank_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansSet:
    """This process now runs under the first of the plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsRun:
    """The turns are over.

    Attributes:
        turns: for each turn, the counted steps; for each step, its samples, then nanoseconds in
            each phase, in the order of `records.Phase`.
        usage: what the process has used so far: `faults_count`, `cpu_s`, `peak_rss_bytes`; with an
            accelerator also what `accelerators.usage` tells, and for these turns `caught_up_ratio`.
    """

    turns: list[list[list[int]]]
    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraitsRead:
    """What the script is like.

    Attributes:
        traits: for the levers, the findings and the edits.
        unit: what a step consumes: samples or tokens.
    """

    traits: Traits
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsRead:
    """What was paid once.

    Attributes:
        compile_s: seconds that went into compiling.
        first_pass_s: seconds by which a run's first pass over its data takes longer than later
            ones, and the seconds that the trial spent instead.
    """

    compile_s: float
    first_pass_s: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a closer look found: facts by `examiner.name`, and the steps as in `TurnsRun`."""

    found: dict[str, Any]
    turns: list[list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a verification left behind, beside its tensors; see `verify.recorded_run.RecordedRun`.

    Attributes:
        health: the losses, weight movements and updates, for the loss envelope.
        rank: as in `FirstStep`; each rank writes its tensors into a folder of its own.
        rank_count: as in `FirstStep`.
    """

    steps: int
    forced: int
    batches: list[Any]
    outlines: list[Any]
    orders: list[Any]
    structure: list[str]
    samples: list[int]
    losses: list[float]
    losses_at: list[int]
    weights: str
    sizes: list[int]
    averages: Any
    fetch_draws: list[Any]
    model_draws: list[Any]
    fed: int
    gradients_taught: bool
    overflows: list[int] = field(default_factory=list)
    health: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    rank_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script has come to its end, after `step_count` steps."""

    step_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRefused:
    """The child refuses what it was asked to do."""

    why: str


Command = Go | SetPlans | RunTurns | ReadTraits | ReadCosts | Examine
Answer = (
    Attached
    | Ready
    | FirstStep
    | PlansSet
    | TurnsRun
    | TraitsRead
    | CostsRead
    | Examined
    | Recorded
    | Ended
    | CommandRefused
)
Message = Command | Answer
_KINDS: Mapping[str, type[Message]] = {
    kind.__name__: kind for kind in (*Command.__args__, *Answer.__args__)
}


def encode(message: Message, pid: int | None = None) -> bytes:
    """Return a message as a line, with the sender's own process id."""
    sender = {} if pid is None else {"pid": pid}
    content = {item.name: getattr(message, item.name) for item in fields(message)}
    line = json.dumps(
        {"v": VERSION, "kind": type(message).__name__, **sender, **content}, default=asdict
    )
    return f"{line}\n".encode()


def decode(line: bytes) -> tuple[Message, int | None]:
    """Return the message of a line and the pid of its sender, None where it gave none.

    Raises:
        ValueError: it is not a message of this release.
    """
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"no message: {found!r}")
    version, kind, pid = (found.pop(name, None) for name in ("v", "kind", "pid"))
    if version != VERSION or str(kind) not in _KINDS:
        raise ValueError(f"protocol {version!r}, message {kind!r}")
    try:
        return revive(_KINDS[kind], found), pid
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"message {kind!r}: {error}") from error
