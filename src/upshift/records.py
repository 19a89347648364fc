"""The nouns: every value that passes from one stage to the next.

Read this file first. All records are frozen, keyword-only and free of behaviour beyond
their own invariants. Durations are seconds (`_s`) or nanoseconds (`_ns`), sizes are bytes
(`_bytes`), ratios above 1 mean better. Unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    REDRAW = "redraw"
    PRECISION = "precision"
    LEARNING = "learning"

    @property
    def severity_index(self) -> int:
        """Place in the order EXACT < ROUNDING < REDRAW < PRECISION < LEARNING."""
        return list(Effect).index(self)

    @staticmethod
    def worst(*effects: Effect) -> Effect:
        """Return the strongest of several effects; EXACT for none.

        >>> Effect.worst(Effect.EXACT, Effect.REDRAW, Effect.ROUNDING)
        <Effect.REDRAW: 'redraw'>
        """
        return max((Effect.EXACT, *effects), key=lambda effect: effect.severity_index)


class Switch(StrEnum):
    """How far a running script can change a lever, which decides how two plans are compared.

    STEP: there and back at any step boundary; compared inside one process, step by step.
    CHILD: changed in a running process, compared between two parked processes.
    LAUNCH: needs a fresh process.
    """

    STEP = "step"
    CHILD = "child"
    LAUNCH = "launch"


class Verdict(StrEnum):
    """What the evidence says of a candidate."""

    WIN = "win"
    DROP = "drop"
    UNDECIDED = "undecided"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """One thing about this machine that costs speed or trust, with its remedy."""

    name: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors of this machine, as the kernel tells them.

    Attributes:
        model: the name that the kernel gives, or None.
        socket_count: processor packages.
        core_count: physical cores, by distinct thread siblings.
        thread_count: logical CPUs that are online.
        instruction_sets: those of interest that the CPU has: avx2, avx512f, avx512_bf16, amx_bf16.
    """

    model: str | None = None
    socket_count: int | None = None
    core_count: int | None = None
    thread_count: int | None = None
    instruction_sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The cores that this job may use, and every limit that was found.

    Attributes:
        core_count: the whole number of physical cores to plan with, at least 1.
        limited_by: which limit decided: affinity, quota, slurm or cores.
        affinity_count: logical CPUs in the affinity mask.
        affinity_core_count: physical cores that the mask touches.
        quota_cores_ratio: CPU quota of the strictest cgroup, in cores (7.65), None if unlimited.
        slurm_count: CPUs that Slurm gave this task.
    """

    core_count: int
    limited_by: str
    affinity_count: int | None = None
    affinity_core_count: int | None = None
    quota_cores_ratio: float | None = None
    slurm_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory that the job may use; `limit_bytes` is the strictest cgroup limit."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How contended the machine is right now, each as a share of time.

    Attributes:
        cpu_some_ratio: share of the last 10 s in which some task waited for a CPU.
        throttled_ratio: share of quota periods in which this cgroup was throttled.
        steal_ratio: share of CPU time that the hypervisor took since boot.
        load_ratio: one-minute load average over logical CPUs.
    """

    cpu_some_ratio: float | None = None
    throttled_ratio: float | None = None
    steal_ratio: float | None = None
    load_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One OpenMP or BLAS library that is loaded into a torch process."""

    kind: str
    name: str
    path: str
    thread_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch says of itself in a fresh process of the user's Python."""

    version: str
    thread_count: int | None = None
    interop_thread_count: int | None = None
    cuda: str | None = None
    accelerators: tuple[str, ...] = ()
    runtimes: tuple[Runtime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about this machine, read once and never written."""

    cpu: Cpu
    budget: Budget
    memory: Memory = field(default_factory=Memory)
    pressure: Pressure = field(default_factory=Pressure)
    torch: Torch | None = None
    system: str = ""
    python_version: str = ""
    caveats: tuple[Caveat, ...] = ()


class Entry(StrEnum):
    """How the user's program is started."""

    SCRIPT = "script"
    MODULE = "module"
    NOTEBOOK = "notebook"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The user's own training command, untouched.

    Attributes:
        entry: whether `argv` begins with a script, a module name, a notebook or a program.
        argv: the script (module, notebook, program) and its own arguments.
        cwd: the working directory.
        python: the interpreter that runs it.
    """

    entry: Entry
    argv: tuple[str, ...]
    cwd: str
    python: str

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that the user would have typed."""
        lead = {
            Entry.SCRIPT: (self.python,),
            Entry.MODULE: (self.python, "-m"),
            Entry.NOTEBOOK: (self.python, "-m", "upshift.launch.notebook"),
            Entry.COMMAND: (),
        }[self.entry]
        return (*lead, *self.argv)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which levers are pulled, and how far. The empty plan is the user's script as it is."""

    settings: tuple[tuple[str, Setting], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.settings]
        if names != sorted(set(names)):
            raise ValueError(f"settings must be sorted by lever and unique, got {names}")

    def pull(self, lever: str, setting: Setting) -> Plan:
        """Return this plan with `lever` at `setting`.

        >>> Plan().pull("intra_op_threads", 8).pull("fused_optimizer", True).settings
        (('fused_optimizer', True), ('intra_op_threads', 8))
        """
        kept = {**dict(self.settings), lever: setting}
        return replace(self, settings=tuple(sorted(kept.items())))

    def without(self, lever: str) -> Plan:
        """Return this plan with `lever` left as the script has it."""
        return Plan(tuple((name, s) for name, s in self.settings if name != lever))

    def only(self, levers: frozenset[str]) -> Plan:
        """Return the part of this plan that concerns `levers`."""
        return Plan(tuple((name, s) for name, s in self.settings if name in levers))

    def differing(self, other: Plan) -> frozenset[str]:
        """Return the levers whose setting is not the same in both plans."""
        return frozenset(name for name, _ in set(self.settings) ^ set(other.settings))

    def __str__(self) -> str:
        return ", ".join(f"{name}={setting}" for name, setting in self.settings) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step: nanoseconds per phase, which add up to its wall clock.

    Attributes:
        phase_ns: nanoseconds in each phase that occurred, also EVALUATION and CHECKPOINT.
        sample_count: samples (or tokens) that the step consumed; at least 1.
    """

    phase_ns: Mapping[Phase, int]
    sample_count: int = 1

    @property
    def wall_s(self) -> float:
        """Seconds of training in this step, without evaluation and checkpoints."""
        return sum(ns for phase, ns in self.phase_ns.items() if Phase(phase).in_step) * 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio with its 95 % interval: `low <= mid <= high`."""

    low_ratio: float
    mid_ratio: float
    high_ratio: float

    def __post_init__(self) -> None:
        if not self.low_ratio <= self.mid_ratio <= self.high_ratio:
            raise ValueError(f"an interval needs low <= mid <= high, got {self}")

    @property
    def is_gain(self) -> bool:
        """True when even the pessimistic end is faster."""
        return self.low_ratio > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One block of steps of each of two plans, run next to one another in random order.

    Attributes:
        baseline_s: seconds per sample of the baseline's block.
        candidate_s: seconds per sample of the candidate's block.
        baseline_first: what the coin said.
        pressure_ratio: share of time that tasks waited for a CPU meanwhile, None if unknown.
    """

    baseline_s: float
    candidate_s: float
    baseline_first: bool
    pressure_ratio: float | None = None

    @property
    def log_ratio(self) -> float:
        """Log of the speed-up that this pair shows; positive when the candidate is faster."""
        return log(self.baseline_s / self.candidate_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What the A/A run says this machine can resolve.

    Attributes:
        sd_ratio: robust standard deviation of a pair's log ratio.
        pair_s: seconds that one pair takes.
        resolution_ratio: the smallest relative gain that the budget can show (0.03 is 3 %).
        bias: the A/A speed-up; its interval holds 1 on an honest bench.
    """

    sd_ratio: float
    pair_s: float
    resolution_ratio: float
    bias: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A race between two plans and what it proved.

    Attributes:
        failure: why there is no race; then `verdict` is FAIL and `pairs` is empty.
        means_ratio: ratio of plain mean times, beside the robust `speedup`: a median hides
            periodic stalls.
    """

    baseline: Plan
    candidate: Plan
    verdict: Verdict
    speedup: Interval | None = None
    means_ratio: float | None = None
    pairs: tuple[Pair, ...] = ()
    wall_s: float = 0.0
    failure: str = ""

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.FAIL) != bool(self.failure):
            raise ValueError("a comparison fails exactly when it says why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of a training step goes, and what the process used meanwhile.

    Attributes:
        step_s: median seconds of a step.
        step_low_s: first quartile of the steps.
        step_high_s: third quartile of the steps.
        sample_unit: `samples` or `tokens`.
        sample_count: samples in a step, on average.
        phase_s: mean seconds per step in each phase; they add up to the mean wall.
        step_count: steps that were observed.
        peak_rss_bytes: largest resident set of the training process.
        faults_count: minor page faults per step.
        cores_ratio: cores that were really busy, of the training process and its workers.
        flops: floating point operations of one step, by torch's counter.
        peak_flops: float32 multiply-add operations per second that this machine reached in a
            matrix product.
        copy_bytes: bytes per second of a large memory copy on this machine.
        own_cost: time of a step with our hooks over time without, None where not measured.
    """

    step_s: float
    step_low_s: float
    step_high_s: float
    sample_unit: str
    sample_count: float
    phase_s: Mapping[Phase, float]
    step_count: int
    peak_rss_bytes: int | None = None
    faults_count: float | None = None
    cores_ratio: float | None = None
    flops: float | None = None
    peak_flops: float | None = None
    copy_bytes: float | None = None
    own_cost: Interval | None = None

    @property
    def samples_per_s(self) -> float:
        """Throughput of training alone: evaluation and checkpoints are not in it."""
        training_s = sum(s for phase, s in self.phase_s.items() if Phase(phase).in_step)
        return self.sample_count / training_s

    def share_ratio(self, *phases: Phase) -> float:
        """Return the share of a training step that `phases` take."""
        training_s = sum(s for phase, s in self.phase_s.items() if Phase(phase).in_step)
        return sum(self.phase_s.get(phase, 0.0) for phase in phases) / training_s

    @property
    def efficiency_ratio(self) -> float | None:
        """Achieved over reachable floating point rate, None where either is unknown."""
        if self.flops is None or self.peak_flops is None:
            return None
        training_s = sum(s for phase, s in self.phase_s.items() if Phase(phase).in_step)
        return self.flops / training_s / self.peak_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of the maths: passed, failed, or (None) not decided."""

    name: str
    passed: bool | None
    says: str
    distance_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was shown about the arithmetic of a plan."""

    effect: Effect
    gates: tuple[Gate, ...] = ()

    @property
    def holds(self) -> bool:
        """True when no gate failed."""
        return all(gate.passed is not False for gate in self.gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverReport:
    """One row of the report: a lever, what was tried, and what came of it.

    Attributes:
        outcome: kept, dropped, rejected, skipped or failed.
        why: one sentence with the figure.
    """

    lever: str
    setting: Setting | None
    outcome: str
    why: str
    effect: Effect
    speedup: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the tuning itself took."""

    wall_s: float
    launch_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Everything that one `tune` found out: the only input of every report."""

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
