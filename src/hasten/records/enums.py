"""Words that many records use."""

from __future__ import annotations

from enum import StrEnum

Setting = bool | int | float | str


class Phase(StrEnum):
    """One stretch of the training loop. Phases never overlap and add up to the wall clock."""

    DATA = "data"
    TRANSFER = "transfer"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    EXCHANGE = "exchange"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    BETWEEN = "between"

    @property
    def in_step(self) -> bool:
        """True for the phases that a training step is made of."""
        return self not in (Phase.EVALUATION, Phase.CHECKPOINT, Phase.BETWEEN)


class Effect(StrEnum):
    """What a lever does to the arithmetic, mildest first. It selects the proof."""

    EXACT = "exact"
    ROUNDING = "rounding"
    DISTRIBUTION = "distribution"
    PRECISION = "precision"
    LEARNING = "learning"

    @property
    def severity_index(self) -> int:
        """Place in the order EXACT < ROUNDING < DISTRIBUTION < PRECISION < LEARNING."""
        return list(Effect).index(self)

    @staticmethod
    def worst(*effects: Effect) -> Effect:
        """Return the strongest of several effects; EXACT for none.

        >>> Effect.worst(Effect.EXACT, Effect.DISTRIBUTION, Effect.ROUNDING)
        <Effect.DISTRIBUTION: 'distribution'>
        """
        return max((Effect.EXACT, *effects), key=lambda effect: effect.severity_index)


class Assumption(StrEnum):
    """What a lever needs and nothing can prove; the user grants it by its name.

    DATASET_UNCHANGED: item code has no outside effects, and what it reads is not changed by the
    script.
    """

    DATASET_UNCHANGED = "dataset-unchanged"


class Scope(StrEnum):
    """How far a running script can change a lever, which decides how two plans are compared.

    STEP: there and back at any step boundary; compared inside one process, step by step.
    PROCESS: changed in a running process, compared between two processes that take turns.
    LAUNCH: needs a fresh process.
    """

    STEP = "step"
    PROCESS = "process"
    LAUNCH = "launch"


class Verdict(StrEnum):
    """What the evidence says about a candidate."""

    WIN = "win"
    DROP = "drop"
    UNDECIDED = "undecided"
    FAIL = "fail"


class Outcome(StrEnum):
    """What became of a lever in a search."""

    KEPT = "kept"
    DROPPED = "dropped"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a lever that was faster is not in the plan, or why one was not tried.

    FAILED_GATE, UNPROVED: the maths differs, or nothing could be proved about it.
    HIDDEN: it looked faster, and noise hid whether it is.
    NOT_SEEN_AGAIN, NOT_RACED_AGAIN, STALLS: fresh launches were no faster, failed, or stalled.
    LAUNCHES_DIFFER: they were faster, but by no more than launches of the script may differ by.
    STARTS_LATE, FIRST_PASS: its start or its first pass costs more than the training gains.
    EVALUATION: so does what lies between steps, which takes longer under it.
    UNTRIED, UNTRIED_ALONE: it was not tried, or only together with others.
    NO_TIME, EXCLUDED: the budget had no room for its race, or the user or busy CPUs ruled it out.
    """

    FAILED_GATE = "failed-gate"
    UNPROVED = "unproved"
    HIDDEN = "hidden"
    NOT_SEEN_AGAIN = "not-seen-again"
    LAUNCHES_DIFFER = "launches-differ"
    NOT_RACED_AGAIN = "not-raced-again"
    STALLS = "stalls"
    STARTS_LATE = "starts-late"
    FIRST_PASS = "first-pass"
    EVALUATION = "evaluation"
    UNTRIED = "untried"
    UNTRIED_ALONE = "untried-alone"
    NO_TIME = "no-time"
    EXCLUDED = "excluded"


class Entry(StrEnum):
    """How the user's program is started."""

    SCRIPT = "script"
    MODULE = "module"
    NOTEBOOK = "notebook"
    COMMAND = "command"


class Progress(StrEnum):
    """How progress is shown: on a live screen, as one line per event, or not at all."""

    SCREEN = "screen"
    PLAIN = "plain"
    NONE = "none"
