"""What is reported in the end: gates, rows and the whole tuning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hasten.records.enums import Reason
from hasten.records.finding import Diagnosis
from hasten.records.measurements import LEAST_RATIO
from hasten.records.plan import Plan
from hasten.records.traits import Traits

if TYPE_CHECKING:
    from hasten.records.enums import Effect, Outcome, Setting
    from hasten.records.machine import Machine
    from hasten.records.measurements import Comparison, Interval, Noise, Profile
    from hasten.records.plan import Workload

_WITHOUT_EVIDENCE = (
    Reason.HIDDEN,
    Reason.LAUNCHES_DIFFER,
    Reason.NOT_RACED_AGAIN,
    Reason.UNPROVED,
)
_ANOTHER_TIME = (Reason.NO_TIME, Reason.EXCLUDED)
REPEATABLE, STRUCTURE = "G0 repeatable", "G1 structure"
"""The names of the gates that every proof has; they compare no numbers of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of the maths: passed, failed, or (None) not decided."""

    name: str
    passed: bool | None
    message: str
    distance_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was shown about the arithmetic of a plan.

    Attributes:
        baseline_losses: mean loss of each recorded step of the script as it is.
        candidate_losses: the same under the plan; as many steps, empty where none was recorded.
        taught_count: how many first steps began with the weights of the script as it
            is; after these the candidate trains on its own.
    """

    effect: Effect
    gates: tuple[Gate, ...] = ()
    baseline_losses: tuple[float, ...] = ()
    candidate_losses: tuple[float, ...] = ()
    taught_count: int = 0

    @property
    def holds(self) -> bool:
        """True when no gate failed."""
        return all(gate.passed is not False for gate in self.gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEnvelope:
    """How a script trains without levers: what the first steps of a real run are held against.

    Attributes:
        by_hand: the script updates its weights itself; then a step is a backward pass.
        losses: the median loss of each window of eight steps.
        spreads: the robust standard deviation of the losses in each window.
        losses_range: the lowest and the highest single loss.
        moves: how far the weights moved in each window, relative to their size.
        step_s: seconds between two steps, None where that is not to be compared.
    """

    by_hand: bool = False
    losses: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    losses_range: tuple[float, float] = (0.0, 0.0)
    moves: tuple[float, ...] = ()
    step_s: float | None = None

    @property
    def highest(self) -> float:
        """The highest single loss."""
        return self.losses_range[1]

    def only_what_is_sure(self) -> LossEnvelope:
        """Return the part that holds under other arguments, too: numbers, and weights that move.

        Another batch size or another data set has other losses.
        """
        return replace(self, losses=(), spreads=(), step_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverReport:
    """One row of the report: a lever, what was tried, and what came of it.

    Attributes:
        why: one sentence with the figure.
        reason: the kind of that sentence, where something depends on it.
    """

    lever: str
    setting: Setting | None
    outcome: Outcome
    why: str
    effect: Effect
    speedup: Interval | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the tuning itself took."""

    wall_s: float
    launch_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The gain of the whole training, where it is less than that of a step.

    Attributes:
        step_count: steps of a pass; 0 where that is unknown.
        longer_s: seconds that the first pass takes longer than later ones.
        outside_s: seconds of evaluation, checkpoints and the like for each step.
        outside_under_s: the same under the plan.
        pass_count: passes of the training.
        is_assumed: nobody said how long the training is.
        first_ratio: gain of the first pass.
        whole: gain of all passes, and of what lies between them.
    """

    step_count: int
    longer_s: float
    outside_s: float
    outside_under_s: float
    pass_count: int
    is_assumed: bool
    first_ratio: float
    whole: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """Everything that one `profile` found out; `assumed` is what the user granted, by name."""

    machine: Machine
    workload: Workload
    profile: Profile
    diagnosis: Diagnosis
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Everything that one `tune` found out: the input of every report.

    Attributes:
        envelope: how the script trains without levers, None where no proof recorded it.
        diagnosis: what makes the untouched script slow.
        races: every race of the search, in order.
        interrupted: the user ended it before its answer was confirmed.
        out_of_time: its budget ended before its answer was confirmed.
        confirmed: the fresh launches behind `speedup`.
        traits: what the child saw of the script, as levers read it.
        assumed: what the user granted by `--assume`, by name.
        passes: the gain of the first pass and of all, where `speedup` is of later ones only.
        applied: levers that the user set by hand: part of the plan, and of what it is compared
            with.
    """

    machine: Machine
    workload: Workload
    baseline: Profile
    plan: Plan
    proof: Proof
    cost: Cost
    tuned: Profile | None = None
    speedup: Interval | None = None
    means_ratio: float | None = None
    noise: Noise | None = None
    levers: tuple[LeverReport, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    out_of_time: bool = False
    envelope: LossEnvelope | None = None
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    races: tuple[Comparison, ...] = ()
    confirmed: Comparison | None = None
    traits: Traits = field(default_factory=Traits)
    assumed: tuple[str, ...] = ()
    passes: Passes | None = None
    applied: Plan = field(default_factory=Plan)

    @property
    def detectable_ratio(self) -> float | None:
        """The smallest relative gain that could have been published; None where unknown.

        It is what the fresh launches resolved, where there were any, else what the script against
        itself lets expect; never below the least gain that is published at all.
        """
        if self.speedup is not None:
            return max(LEAST_RATIO, self.speedup.mid_ratio / self.speedup.low_ratio - 1.0)
        return max(LEAST_RATIO, self.noise.resolution_ratio) if self.noise else None

    @property
    def unfinished(self) -> bool:
        """Whether it ended before its answer was confirmed."""
        return self.interrupted or self.out_of_time

    @property
    def is_partial(self) -> bool:
        """Whether there are levers that a search with more time or freedom would have tried."""
        return any(row.reason in _ANOTHER_TIME for row in self.levers)

    @property
    def undecided(self) -> bool:
        """Whether it is unfinished, or all that was faster is lost for want of evidence."""
        lost = any(row.reason in _WITHOUT_EVIDENCE for row in self.levers)
        return self.unfinished or (lost and self.finds_nothing)

    @property
    def finds_nothing(self) -> bool:
        """Whether the plan has nothing beyond what the user set."""
        return self.plan == self.applied
