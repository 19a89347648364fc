"""What was seen: steps, pairs, comparisons, profiles."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  msgspec reads the types of the fields
from dataclasses import dataclass
from math import log

from hasten.records.enums import Phase, Verdict
from hasten.records.plan import Plan  # noqa: TC001  the same

LEAST_RATIO = 0.02
"""A gain, or a share of a step, below this is worth nobody's time."""
_LARGE_GAIN_RATIO = 1.2
_SAYS_NOTHING_RATIO = 1000.0
_MOST_RATIO = 0.5


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
    """A ratio with its 95% interval: `low <= mid <= high`."""

    low_ratio: float
    mid_ratio: float
    high_ratio: float

    def __post_init__(self) -> None:
        if not self.low_ratio <= self.mid_ratio <= self.high_ratio:
            raise ValueError(f"an interval needs low <= mid <= high, got {self}")

    @property
    def says_nothing(self) -> bool:
        """True when too few pairs make it so wide that its ends mean nothing."""
        return self.high_ratio / self.low_ratio >= _SAYS_NOTHING_RATIO

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
        resolution_ratio: the smallest relative gain that the budget can show (0.03 is 3%).
        bias: the A/A speed-up; its interval contains 1 where nothing favours one turn.
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
        phase_s: mean seconds per step of the candidate in each phase, None where not seen.
        baseline_phase_s: the same for the baseline.
        later_s: seconds by which a start under the candidate is later than one under the
            baseline, compiling included; None where not measured.
        first_pass_ratio: by how much a first pass over the data takes longer than later ones under
            the candidate, in later passes under the baseline.
        baseline_first_pass_ratio: the same under the baseline.
        outside_ratio: what passes outside of steps, in steps under the baseline.
    """

    baseline: Plan
    candidate: Plan
    verdict: Verdict
    speedup: Interval | None = None
    means_ratio: float | None = None
    pairs: tuple[Pair, ...] = ()
    wall_s: float = 0.0
    failure: str = ""
    phase_s: Mapping[Phase, float] | None = None
    baseline_phase_s: Mapping[Phase, float] | None = None
    later_s: float | None = None
    first_pass_ratio: float = 0.0
    baseline_first_pass_ratio: float = 0.0
    outside_ratio: float = 0.0

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.FAIL) != bool(self.failure):
            raise ValueError("a comparison fails exactly when it says why")

    @property
    def longer_ratio(self) -> float:
        """How much longer the candidate's first pass is, in later passes under the baseline."""
        return self.first_pass_ratio - self.baseline_first_pass_ratio

    def whole_ratio(self, pass_count: float) -> float:
        """Return the speed-up of a training of so many passes, 0 where there is no figure.

        Where both first passes take as long as later ones, or alike, it is that of the steps.
        """
        if self.speedup is None:
            return 0.0
        if not self.longer_ratio:
            return self.speedup.mid_ratio
        own = 1.0 + self.outside_ratio + self.baseline_first_pass_ratio / pass_count
        other = self.outside_ratio + self.first_pass_ratio / pass_count
        return own / (1.0 / self.speedup.mid_ratio + other)

    @property
    def excludes_gain(self) -> bool:
        """Whether its interval rules out a large gain.

        A short race in noise is dropped even without that: time is better spent on another.
        """
        return self.speedup is not None and self.speedup.high_ratio < _LARGE_GAIN_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of a training step goes, and what the process used meanwhile.

    Attributes:
        step_s: median seconds of a step.
        step_low_s: first quartile of the steps.
        step_high_s: third quartile of the steps.
        sample_unit: `samples`, `tokens`, or `steps` where nobody can tell what a step takes in.
        sample_count: samples in a step, on average.
        phase_s: mean seconds per step in each phase; they add up to the mean wall.
        step_count: steps that were observed.
        peak_rss_bytes: largest resident set of the training process.
        device_count: accelerators that it has tensors on, None without one.
        peak_device_bytes: most memory that its tensors took on accelerators, None without one.
        others_device_ratio: share of an accelerator's memory that other processes hold, and the
            driver; None where that is unknown.
        caught_up_ratio: share of the steps at whose end the accelerator had caught up with the
            host and had to wait for it; None without one.
        faults_count: minor page faults per step.
        cores_ratio: cores that were really busy, of the training process and its workers.
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
    device_count: int | None = None
    peak_device_bytes: int | None = None
    others_device_ratio: float | None = None
    caught_up_ratio: float | None = None
    faults_count: float | None = None
    cores_ratio: float | None = None
    own_cost: Interval | None = None

    @property
    def is_host_ahead(self) -> bool:
        """Whether an accelerator is behind the host at the end of most steps."""
        return self.caught_up_ratio is not None and self.caught_up_ratio < _MOST_RATIO

    @property
    def mean_step_s(self) -> float:
        """Mean seconds of a step, without evaluation and checkpoints."""
        return sum(s for phase, s in self.phase_s.items() if Phase(phase).in_step)

    @property
    def span_s(self) -> float:
        """Mean seconds from step to step, with evaluation and checkpoints."""
        return sum(self.phase_s.values())

    @property
    def samples_per_s(self) -> float:
        """Throughput of training alone."""
        return self.sample_count / self.mean_step_s

    def share_ratio(self, *phases: Phase) -> float:
        """Return the share of a training step that `phases` take."""
        return sum(self.phase_s.get(phase, 0.0) for phase in phases) / self.mean_step_s
