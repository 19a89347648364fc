"""Stand-ins for tests of stages, levers and plug-ins: machines, a profile, a runner that computes.

A search over a `FakeTrialRunner` runs in milliseconds, with the noise of a real machine and the
same answer for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import exp
from typing import TYPE_CHECKING, Any, TypeAlias

from hasten.compare import Measure, Rule, compare, race
from hasten.errors import HastenError, TooFewSteps
from hasten.protocol import CostsRead, ReadCosts, TraitsRead
from hasten.records import (
    Budget,
    Comparison,
    Cpu,
    LoaderTraits,
    Machine,
    Memory,
    Pair,
    Phase,
    Plan,
    Pressure,
    Profile,
    Step,
    Torch,
    Traits,
    Verdict,
)
from hasten.session import Watcher
from hasten.trials.deadline import NEVER

if TYPE_CHECKING:
    from hasten.protocol import Turn
    from hasten.records import Workload
    from hasten.trials.deadline import Deadline
    from hasten.trials.process import Isolation

LAPTOP = Machine(
    cpu=Cpu(model="Laptop 4-core", socket_count=1, core_count=4, thread_count=8,
            instruction_sets=("avx2",)),
    budget=Budget(core_count=4, limited_by="cores", affinity_count=8, affinity_core_count=4),
    memory=Memory(total_bytes=16 * 2**30, available_bytes=9 * 2**30),
    pressure=Pressure(cpu_some_ratio=0.02, load_ratio=0.3),
    torch=Torch(version="2.5.0", thread_count=4, interop_thread_count=4),
    system="Linux",
    python_version="3.11.7",
)  # fmt: skip
"""A laptop: four cores, no accelerator, nobody else on it."""

SERVER = Machine(
    cpu=Cpu(model="Server 2 x 32-core", socket_count=2, core_count=64, thread_count=128,
            instruction_sets=("avx2", "avx512f", "avx512_bf16", "amx_bf16")),
    budget=Budget(core_count=16, limited_by="quota", affinity_count=128, affinity_core_count=64,
                  quota_cores_ratio=16.0),
    memory=Memory(total_bytes=512 * 2**30, available_bytes=400 * 2**30, limit_bytes=64 * 2**30),
    pressure=Pressure(cpu_some_ratio=0.0, throttled_ratio=0.0, steal_ratio=0.0, load_ratio=0.1),
    torch=Torch(version="2.5.0", thread_count=64, interop_thread_count=64, cuda="12.4",
                accelerator="cuda", accelerators=("Accelerator 80 GB",)),
    system="Linux",
    python_version="3.11.7",
)  # fmt: skip
"""A container on a two-socket server: 16 of 64 cores by quota, one accelerator."""

Noise: TypeAlias = Callable[[random.Random], Iterator[float]]
"""Makes, block after block, the log of a factor on the block's time."""


def steady(sd_ratio: float = 0.02) -> Noise:
    """Return normal noise, independent from block to block."""
    return lambda rng: (rng.gauss(0.0, sd_ratio) for _ in count())


def spiky(sd_ratio: float = 0.02, *, share_ratio: float = 0.15, height_ratio: float = 0.5) -> Noise:
    """Return skewed noise: a share of the blocks is hit by an exponential spike."""

    def noise(rng: random.Random) -> Iterator[float]:
        while True:
            hit = rng.random() < share_ratio
            yield rng.gauss(0.0, sd_ratio) + (rng.expovariate(1 / height_ratio) if hit else 0.0)

    return noise


def drifting(sd_ratio: float = 0.02, *, drift_ratio: float = 0.03, memory: float = 0.95) -> Noise:
    """Return noise on a slow drift, as from a neighbour or a hot processor: AR(1)."""

    def noise(rng: random.Random) -> Iterator[float]:
        level = 0.0
        while True:
            level = memory * level + rng.gauss(0.0, drift_ratio)
            yield level + rng.gauss(0.0, sd_ratio)

    return noise


def periodic(sd_ratio: float = 0.02, *, period_count: int = 7, height_ratio: float = 0.3) -> Noise:
    """Return noise with a spike at every `period_count`-th block, whichever plan runs then."""
    return lambda rng: (
        rng.gauss(0.0, sd_ratio) + (height_ratio if index % period_count == 0 else 0.0)
        for index in count()
    )


def fed(**loader: Any) -> Traits:
    """Return the traits of a script whose batches come from a loader, without workers by default.

    >>> fed(pass_batch_count=50).pass_step_count
    50
    """
    return Traits(loader=LoaderTraits(**{"worker_count": 0, "is_map_style": True, **loader}))


def plant(patch: Any, levers: Mapping[str, Any]) -> None:
    """Replace the installed levers by `levers`, by name; `patch` is pytest's `monkeypatch`."""
    patch.setattr("hasten.lever.names", lambda: tuple(levers))
    patch.setattr("hasten.lever.load", levers.__getitem__)


class RecordingWatcher(Watcher):
    """A watcher that keeps the notes that are said, and shows nothing."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.said.append(text)


@dataclass(kw_only=True)
class FakeTrialRunner:
    """A machine on which a function decides how long a plan takes.

    Attributes:
        cost: seconds per sample of a plan; raises an `HastenError` where the plan crashes.
        noise: what the machine adds; the same blocks for the same seed.
        seed: of the noise.
        launch_count: how often `measure` was called.
        spent_s: simulated seconds so far; `clock` tells them.

    Example:
        >>> cost = lambda plan: 0.9 if dict(plan.settings).get("turbo") else 1.0
        >>> runner = FakeTrialRunner(cost=cost)
        >>> fast = Plan().with_lever("turbo", True)
        >>> str(runner.race(Plan(), fast, rule=Rule(pair_count=24)).verdict)
        'win'
    """

    cost: Callable[[Plan], float]
    noise: Noise = field(default_factory=steady)
    seed: int = 0
    launch_count: int = 0
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        self._coin = random.Random(self.seed)
        self._blocks = self.noise(random.Random(self.seed + 1))

    def clock(self) -> float:
        """Return the simulated time."""
        return self.spent_s

    def measure(self, baseline: Plan, candidate: Plan) -> Measure:
        """Launch two plans and return what measures them, for `race` and `confirm`."""
        self.launch_count += 1
        baseline_s, candidate_s = self.cost(baseline), self.cost(candidate)

        def measure(baseline_first: Sequence[bool]) -> Sequence[Pair]:
            pairs = []
            for first in baseline_first:
                early, late = exp(next(self._blocks)), exp(next(self._blocks))
                pair = Pair(
                    baseline_s=baseline_s * (early if first else late),
                    candidate_s=candidate_s * (late if first else early),
                    baseline_first=first,
                )
                self.spent_s += pair.baseline_s + pair.candidate_s
                pairs.append(pair)
            return pairs

        return measure

    def race(self, baseline: Plan, candidate: Plan, *, rule: Rule) -> Comparison:
        """Return the race between two plans; a crash is a comparison that failed."""
        started_s = self.spent_s
        try:
            measure = self.measure(baseline, candidate)
        except HastenError as error:
            return Comparison(
                baseline=baseline, candidate=candidate, verdict=Verdict.FAIL, failure=str(error)
            )
        seen = race(measure, rule=rule, coin=self._coin, clock=self.clock)
        return compare(baseline, candidate, seen.pairs, rule, self.spent_s - started_s)


@dataclass(kw_only=True)
class FakeScript:
    """A script whose children take simulated time: give `trial` and `clock` to a real runner.

    Attributes:
        cost: seconds that a step computes under a plan.
        start_s: seconds until a child reaches its first step.
        fetch_s: seconds that one process takes to make a batch.
        worker_count: loader workers; with none a step waits for its batch.
        prefetch_count: batches that each worker is asked for ahead.
        life_count: steps after which it ends; None for never.
        later_s: seconds by which a start under a plan takes longer.
        first_pass_s: seconds by which the first pass over the data takes longer under a plan.
        pass_count: steps of a pass over the data; 0 if nothing happens between passes.
        pause_s: seconds that the loop waits for the first batch of a pass under a plan.
        faults: pages that each step of a launch faults in, by the number of the launch.
        traits: what a child says of the script.
        phases: seconds in each phase of a step under a plan, of which `cost` is the sum; all of
            it is FORWARD where there is none.
        noise: the log of a factor on the time of each step, and on that of each batch.
        seed: of the noise.
        spent_s: simulated seconds so far; `clock` tells them.
        launch_count: children so far.
    """

    cost: Callable[[Plan], float]
    start_s: float = 0.0
    fetch_s: float = 0.0
    worker_count: int = 0
    prefetch_count: int = 2
    life_count: int | None = None
    later_s: Callable[[Plan], float] = lambda plan: 0.0
    first_pass_s: Callable[[Plan], float] = lambda plan: 0.0
    pass_count: int = 0
    pause_s: Callable[[Plan], float] = lambda plan: 0.0
    faults: Callable[[int], float] = lambda launch: 0.0
    traits: Traits = field(default_factory=Traits)
    phases: Callable[[Plan], Mapping[Phase, float]] | None = None
    noise: Noise = field(default_factory=lambda: steady(0.0))
    seed: int = 0
    spent_s: float = 0.0
    launch_count: int = 0

    def __post_init__(self) -> None:
        self.factors = self.noise(random.Random(self.seed))

    def clock(self) -> float:
        """Return the simulated time."""
        return self.spent_s

    def trial(
        self, workload: Workload, plan: Plan, *, isolation: Isolation, patience_s: float,
        deadline: Deadline = NEVER,
    ) -> Any:  # fmt: skip
        """Stand in for `hasten.trials.trial_process.TrialProcess`."""
        self.launch_count += 1
        return FakeTrialProcess(script=self, plan=plan, deadline=deadline)

    def spend(self, seconds: float, deadline: Deadline = NEVER) -> None:
        """Let time go by, until the deadline at most, which then raises OutOfTime."""
        self.spent_s += min(seconds, deadline.left_s)
        deadline.check()


@dataclass(kw_only=True)
class FakeTrialProcess:
    """A child of a `FakeScript`; while it is parked, its workers pause, too.

    The queue is that of torch's loader: batch n is made by worker n modulo k, and asked for when
    batch n - k * prefetch is used.
    """

    script: FakeScript
    plan: Plan
    deadline: Deadline = NEVER
    step_count: int = 0
    first_step_s: float = 0.0
    start_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._plans: Sequence[Plan] = (self.plan,)
        self._step_faults = self.script.faults(self.script.launch_count)
        self._born_s, self._now_s = self.script.spent_s, 0.0
        self._free_s = [0.0] * self.script.worker_count
        self._done_s = [self._fetched_s() for _ in range(self._ahead_count)]

    @property
    def _ahead_count(self) -> int:
        return self.script.worker_count * self.script.prefetch_count

    def _fetched_s(self) -> float:
        """Ask the next worker in turn for a batch; return when it will be there."""
        fetch_s = self.script.fetch_s * exp(next(self.script.factors))
        free_s = max(self._now_s, self._free_s.pop(0)) + fetch_s
        self._free_s.append(free_s)
        return free_s

    def _step(self, plan: Plan) -> Step:
        script = self.script
        if self.step_count == script.life_count:
            raise TooFewSteps("It ended.", remedy="Go on.", step_count=self.step_count)
        wait_s = script.fetch_s
        if script.worker_count:
            wait_s = max(0.0, self._done_s.pop(0) - self._now_s)
            self._now_s += wait_s
            self._done_s.append(self._fetched_s())
            self._now_s -= wait_s
        if script.pass_count and self.step_count % script.pass_count == 0:
            wait_s += script.pause_s(plan)
        compute_s = script.cost(plan) * exp(next(script.factors))
        self._now_s += wait_s + compute_s
        script.spend(wait_s + compute_s, self.deadline)
        self.step_count += 1
        phase_ns = {Phase.DATA: int(wait_s * 1e9), Phase.FORWARD: int(compute_s * 1e9)}
        if script.phases is not None:
            scale = 1e9 * compute_s / script.cost(plan)
            phase_ns = {phase: int(scale * s) for phase, s in script.phases(plan).items()}
        return Step(phase_ns=phase_ns)

    def begin(self) -> None:
        """Go to the end of the first step; others that were started meanwhile have done so, too."""
        start_s = self.script.start_s + self.script.later_s(self.plan)
        self.script.spend(max(0.0, self._born_s + start_s - self.script.spent_s), self.deadline)
        self.first_step_s = self._step(self.plan).wall_s
        self.start_s = start_s + self.first_step_s

    def ask(self, command: Any, answer: Any, timeout_s: float | None = None) -> Any:
        """Answer with traits, or with what was paid once."""
        if isinstance(command, ReadCosts):
            first_s = self.script.first_pass_s(self._plans[0])
            return CostsRead(compile_s=0.0, first_pass_s=(first_s, 0.0))
        traits = replace(self.script.traits, cycle_count=max(1, self._ahead_count))
        return TraitsRead(traits=traits, unit="samples")

    def switch(self, plans: Sequence[Plan]) -> None:
        """Learn which plans the turns refer to."""
        self._plans = plans

    def turns(
        self, turns: Sequence[Turn], *, timeout_s: float | None = None
    ) -> tuple[list[list[Step]], dict[str, float]]:
        """Run turns; a real child has at least one to run."""
        if not turns:
            raise ValueError("no turns")
        answer = []
        for index, skip_count, block_count, _ in turns:
            steps = [self._step(self._plans[index]) for _ in range(skip_count + block_count)]
            answer.append(steps[skip_count:])
        faults_count = self._step_faults * self.step_count
        return answer, {"faults_count": faults_count, "cpu_s": self._now_s, "peak_rss_bytes": 1.0}

    def examine(
        self, count: int, *, timeout_s: float, least_count: int, most_s: float
    ) -> tuple[list[Step], dict[str, Any]]:
        """Run steps in which nothing is found."""
        return [self._step(self._plans[0]) for _ in range(count)], {}

    def park(self) -> None:
        """Stand still; nothing is left to do."""

    def resume(self) -> None:
        """Go on; nothing is left to do."""

    def close(self) -> None:
        """End; nothing is left to do."""


def sample_profile(
    phase_s: Mapping[Phase, float] | None = None, *, step_count: int = 50
) -> Profile:
    """Return the profile of a small training run; by default half of its step is DATA.

    >>> sample_profile().share_ratio(Phase.DATA)
    0.5
    """
    phases = dict(phase_s) if phase_s is not None else {
        Phase.DATA: 0.050, Phase.FORWARD: 0.016, Phase.LOSS: 0.001,
        Phase.BACKWARD: 0.025, Phase.OPTIMIZER: 0.007, Phase.OTHER: 0.001,
    }  # fmt: skip
    step_s = sum(seconds for phase, seconds in phases.items() if phase.in_step)
    return Profile(
        step_s=step_s,
        step_low_s=0.98 * step_s,
        step_high_s=1.03 * step_s,
        sample_unit="samples",
        sample_count=32.0,
        phase_s=phases,
        step_count=step_count,
    )
