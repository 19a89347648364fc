"""The search on simulated training machines, on the real bench, in simulated time.

Threads and workers want the same cores, a compiled model changes what a memory layout gives and
how many threads pay, allocators and optimizers step on each other's toes, some levers hurt.
"""

import itertools
import random
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, log

import pytest

from hasten import session
from hasten.lever import Lever
from hasten.records import Comparison, Effect, Entry, Phase, Plan, Scope, Workload
from hasten.search import Candidate, Prior, bounds
from hasten.search.costs import Costs
from hasten.session.observe import observe
from hasten.session.races import Races
from hasten.session.search_driver import MOST_LAUNCHES_COUNT, SearchDriver
from hasten.testing import FakeScript, RecordingWatcher, plant, steady
from hasten.trials.deadline import Deadline
from hasten.trials.process import Isolation
from hasten.trials.runner import TrialRunner

WORKLOAD = Workload(entry=Entry.SCRIPT, argv=("train.py",), cwd="/nowhere", python="python")
SCENARIOS = 25
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = (
    Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER,
)  # fmt: skip
COMPUTE = frozenset({FORWARD, BACKWARD})
STEP = frozenset({FORWARD, BACKWARD, OPTIMIZER, OTHER})

# name: phases, switch, gain_ratio, promising, record of (scripts, helped, log gain)
KINDS = {
    "threads": (STEP, Scope.STEP, 8.0, True, None),
    "workers": (frozenset({DATA}), Scope.PROCESS, 50.0, True, (4, 3, 0.3)),
    "compile": (STEP, Scope.PROCESS, 3.0, True, None),
    "layout": (COMPUTE, Scope.STEP, 2.0, True, (1, 1, 0.16)),
    "malloc": (STEP, Scope.LAUNCH, 3.0, True, (3, 3, 0.17)),
    "allocator": (STEP, Scope.LAUNCH, 1.5, False, None),
    "spinning": (STEP, Scope.LAUNCH, 1.3, False, None),
    "fused": (frozenset({OPTIMIZER}), Scope.STEP, 6.0, True, (1, 1, 0.09)),
    "foreach": (frozenset({OPTIMIZER}), Scope.STEP, 4.0, True, None),
    "batched": (frozenset({DATA}), Scope.STEP, 50.0, True, None),
    "cache": (frozenset({DATA}), Scope.PROCESS, 50.0, False, None),
    "collector": (frozenset({OTHER}), Scope.STEP, 1.5, True, None),
    "harmful": (STEP, Scope.STEP, 2.0, True, None),
    "useless": (COMPUTE, Scope.PROCESS, 1.5, True, None),
    "pointless": (STEP, Scope.LAUNCH, 1.5, False, None),
    "dubious": (STEP, Scope.PROCESS, 1.5, False, None),
}
ALWAYS = ("threads", "workers", "compile", "layout", "malloc", "fused", "harmful", "useless")


@dataclass
class Machine:
    """A simulated script on a simulated machine."""

    seed: int
    levers: dict[str, tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        coin = random.Random(self.seed)
        pick = coin.uniform
        self.cores = coin.choice([2, 4, 8, 16])
        self.own_threads = coin.choice([self.cores, self.cores, 1, 2 * self.cores])
        self.fetch_s = pick(0.002, 0.06)
        self.compute_s = pick(0.03, 0.10)  # of one thread
        self.backward_share = pick(0.5, 0.7)
        self.optimizer_s, self.other_s = pick(0.001, 0.008), pick(0.001, 0.01)
        self.serial, self.compiled_serial = pick(0.05, 0.5), pick(0.1, 0.6)
        self.sync = pick(0.0, 0.02)
        self.layout, self.synergy = pick(0.85, 1.4), pick(0.8, 1.3)
        self.compiled, self.fused_other = pick(0.8, 1.7), pick(1.0, 3.0)
        self.churn, self.malloc, self.allocator = pick(0.0, 0.35), pick(1.2, 4), pick(0.8, 3)
        self.fused, self.foreach = pick(1.0, 4.0), pick(0.9, 3.0)
        self.batched, self.cache = pick(1.0, 8.0), pick(0.5, 3.0)
        self.collector, self.spinning = pick(1.0, 1.3), pick(0.5, 1.5)
        self.harm, self.harmful_data = pick(0.75, 0.97), pick(0.97, 1.0)
        self.stretch = pick(0.3, 1.0)
        others = [name for name in KINDS if name not in ALWAYS]
        names = {*ALWAYS, *(name for name in others if coin.random() < 0.5)}
        ladder = sorted({max(1, self.cores // 4), max(1, self.cores // 2), self.cores})
        rungs = {
            "threads": sorted(ladder, reverse=True),
            "workers": sorted(ladder, key=lambda n: abs(n - max(1, self.cores // 2))),
        }
        self.settings = {name: tuple(rungs.get(name, (True,))) for name in KINDS if name in names}
        self.phases = lru_cache(maxsize=None)(self._phases)

    def cost(self, plan: Plan) -> float:
        """Seconds of a step."""
        return sum(self.phases(plan).values())

    def _phases(self, plan: Plan) -> dict[Phase, float]:
        on = dict(plan.settings)
        threads, workers = on.get("threads", self.own_threads), on.get("workers", 0)
        compiled = "compile" in on
        serial = self.compiled_serial if compiled else self.serial
        sync = self.sync * (self.spinning if "spinning" in on else 1.0)
        scale = serial + (1 - serial) / min(threads, self.cores) + sync * (threads - 1)
        scale *= 1 + max(0, threads - self.cores) / self.cores
        compute_s = self.compute_s / (self.compiled if compiled else 1.0)
        if "layout" in on:
            compute_s /= self.layout * (self.synergy if compiled else 1.0)
        eased = max([1.0, *(getattr(self, name) for name in ("malloc", "allocator") if name in on)])
        if "allocator" in on and "malloc" not in on:
            eased = self.allocator
        churn = self.churn * (0.5 if compiled else 1.0)
        busy_s = compute_s * scale * (1 - churn + churn / eased)
        optimizer_s = self.optimizer_s / max(
            [1.0, *(getattr(self, name) for name in ("fused", "foreach") if name in on)]
        )
        other_s = self.other_s / (self.fused_other if compiled else 1.0)
        other_s /= self.collector if "collector" in on else 1.0
        fetch_s = self.fetch_s
        for name in ("batched", "cache"):
            fetch_s /= getattr(self, name) if name in on else 1.0
        if "harmful" in on:
            busy_s /= self.harm
        if "dubious" in on:
            other_s *= 1.1
        wait_s = fetch_s
        if workers:
            step_s = busy_s + optimizer_s + other_s
            crowd = threads + min(workers, fetch_s / step_s) - self.cores
            busy_s *= 1 + self.stretch * max(0.0, crowd) / self.cores
            step_s = busy_s + optimizer_s + other_s
            pace_s = fetch_s / min(workers, self.cores)
            wait_s = 0.0005 + max(0.0, pace_s - step_s)
        back = self.backward_share
        return {
            DATA: wait_s,
            FORWARD: busy_s * (1 - back),
            BACKWARD: busy_s * back,
            OPTIMIZER: optimizer_s,
            OTHER: other_s,
        }

    def best_s(self) -> float:
        """Seconds of a step under the best plan of all."""
        lame = {"harmful", "useless", "pointless", "dubious"}
        names = sorted(self.settings.keys() - lame)
        choices = [(None, *self.settings[name]) for name in names]
        return min(
            sum(
                self._phases(
                    Plan(tuple((n, s) for n, s in zip(names, plan, strict=True) if s))
                ).values()
            )
            for plan in itertools.product(*choices)
        )


def lever(name) -> Lever:
    phases, switch, gain_ratio, _, _ = KINDS[name]
    return Lever(
        name=name, phases=phases, effect=Effect.EXACT, scope=switch, gain_ratio=gain_ratio,
        settings=lambda context: (True,), snippet=lambda setting: name,
        why_not=lambda context: "no", settle_count=1,
    )  # fmt: skip


LEVERS = {name: lever(name) for name in sorted(KINDS)}


def candidate(name, settings) -> Candidate:
    phases, switch, gain_ratio, bundled, record = KINDS[name]
    prior = record and Prior(
        script_count=record[0], helped_count=record[1], log_gain=record[2], log_spread=0.1
    )
    return Candidate(
        lever=name, phases=phases, settings=settings, gain_ratio=gain_ratio, scope=switch,
        effect=Effect.EXACT, bundled=bundled, prior=prior,
    )  # fmt: skip


@dataclass
class Kept:
    """A journal that forgets."""

    history: tuple[Comparison, ...] = ()
    resumed_count: int = 0
    lost: str = ""

    def append(self, seen) -> None:
        self.history = (*self.history, seen)


@dataclass
class Searched:
    """What a search came to."""

    share: float
    launch_count: int
    race_count: int
    wall_s: float
    plan: Plan


@pytest.fixture
def search_on(monkeypatch):
    """Search on a simulated machine."""
    plant(monkeypatch, LEVERS)

    def run(machine, *, budget_s=inf, sd_ratio=0.04) -> Searched:
        script = FakeScript(
            cost=machine.cost, phases=machine.phases, start_s=3.0, noise=steady(sd_ratio),
            seed=machine.seed,
        )  # fmt: skip
        options = session.Options(budget_s=min(budget_s, 1e6))
        with TrialRunner(
            WORKLOAD, isolation=Isolation.NONE, patience_s=60.0, make_trial=script.trial,
        ) as runner:  # fmt: skip
            baseline = observe(runner, Plan(), step_count=40)
            races = Races(runner, session.Options(), RecordingWatcher(), clock=script.clock)
            races.measure_noise()
            candidates, _ = bounds(
                [candidate(name, settings) for name, settings in machine.settings.items()],
                baseline, least_ratio=0.02,
            )  # fmt: skip
            nothing = Costs(
                step_s=0.0, launch_s=0.0, launches_s=0.0, pair_s=0.0, records_start_s=0.0,
                recorded_count=0, wave_count=0,
            )  # fmt: skip
            journal = Kept()
            driver = SearchDriver(
                candidates, journal, races=races, options=options,
                view=RecordingWatcher(), costs=lambda plan: nothing, spent_s=script.clock,
                note=lambda text: None, deadline=Deadline(clock=script.clock),
                doubtful=lambda plan: {},
            )  # fmt: skip
            driver.run()
            best = log(machine.cost(Plan()) / machine.best_s())
            got = log(machine.cost(Plan()) / machine.cost(driver.best))
            return Searched(
                share=got / best if best > log(1.02) else 1.0,
                launch_count=runner.children.launch_count, race_count=len(journal.history),
                wall_s=script.spent_s, plan=driver.best,
            )  # fmt: skip

    return run


def seeds(*, quick: bool):
    return range(3) if quick else range(SCENARIOS)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_interactions_are_found_in_few_launches(search_on, quick) -> None:
    found = [search_on(Machine(seed)) for seed in seeds(quick=quick)]
    assert max(one.launch_count for one in found) <= MOST_LAUNCHES_COUNT
    assert min(one.share for one in found) >= 0.95


def test_a_budget_of_five_minutes_finds_most_of_it(search_on) -> None:
    found = [search_on(Machine(seed), budget_s=300.0) for seed in (4, 14, 22)]
    assert max(one.wall_s for one in found) <= 320.0
    assert min(one.share for one in found) >= 0.9
