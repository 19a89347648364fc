"""How close the chosen number of workers comes to the best of a full sweep.

There are ten synthetic loaders, from 0.1 ms to about 20 ms per item. Some only compute, others also
wait, as for storage, and all feed a training step of the same length. The sweep times every
count from 0 up; the choice sees only one pass without workers, and may ask for probes.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from loader_race import Failed, Living, TrialProcess, living

from hasten import machine, search
from hasten.lever import ScriptContext, discover
from hasten.loader import worker_counts
from hasten.records import (
    LEAST_RATIO,
    Comparison,
    Interval,
    LoaderTraits,
    Phase,
    Plan,
    Profile,
    Traits,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LEVER = "loader_workers"
NEAR_RATIO = 1.05
MOST_RACES = 25
LARGEST_COUNT = 6
# (milliseconds of computing per item, milliseconds of waiting)
LOADERS = (
    (0.1, 0.0), (0.3, 0.0), (1.0, 0.0), (2.0, 0.0), (5.0, 0.0), (20.0, 0.0),
    (0.1, 1.0), (0.2, 5.0), (1.0, 2.0), (0.5, 20.0),
)  # fmt: skip

SCRIPT = '''\
import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

LOADERS = %(loaders)r
BATCH, STEP_MS = 8, 4.0


def spin(count):
    total = 0
    for value in range(count):
        total += value
    return total


def calibrate():
    """Return how much spinning makes a millisecond: work, not time, so that contention counts."""
    best_s = 1.0
    for _ in range(20):
        started_s = time.perf_counter()
        spin(20_000)
        best_s = min(best_s, time.perf_counter() - started_s)
    return int(20_000 / best_s / 1000)


class Synthetic(Dataset):
    def __init__(self, busy_ms, waiting_ms, length, spins_per_ms):
        self.spins = int(busy_ms * spins_per_ms)
        self.waiting_s = waiting_ms / 1e3
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        spin(self.spins)
        if self.waiting_s:
            time.sleep(self.waiting_s)
        return torch.full((64,), float(index))


def run(loader, spins):
    started_s, waited_s, busy_s, batch_count = time.perf_counter(), 0.0, 0.0, 0
    batches = iter(loader)
    while True:
        asked_s, asked_cpu_s = time.perf_counter(), time.process_time()
        batch = next(batches, None)
        if batch is None:
            break
        waited_s += time.perf_counter() - asked_s
        busy_s += time.process_time() - asked_cpu_s
        batch_count += 1
        spin(spins)
    wall_s = time.perf_counter() - started_s
    return {
        "wall_s": wall_s / batch_count,
        "fetch_s": waited_s / batch_count,
        "fetch_cpu_s": busy_s / batch_count,
        "step_s": (wall_s - waited_s) / batch_count,
    }


def main():
    torch.set_num_threads(1)
    spins_per_ms = calibrate()
    place, loaders = None, {}
    for line in sys.stdin:
        words = [int(word) for word in line.split()]
        if words[0] != place:
            place, loaders = words[0], {}
        if words[1] not in loaders:
            busy_ms, waiting_ms = LOADERS[place]
            step_ms = BATCH * (busy_ms + waiting_ms) + STEP_MS
            batch_count = max(8, min(100, int(%(block_ms)d / step_ms)))
            dataset = Synthetic(busy_ms, waiting_ms, BATCH * batch_count, spins_per_ms)
            loaders[words[1]] = DataLoader(
                dataset, BATCH, num_workers=words[1], persistent_workers=words[1] > 0
            )
            run(loaders[words[1]], 0)  # workers start
        print(json.dumps(run(loaders[words[1]], int(STEP_MS * spins_per_ms))), flush=True)


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """What one pass without workers shows about a loop.

    Attributes:
        fetch_s: seconds to make a batch.
        fetch_cpu_s: the CPU seconds among them.
        step_s: seconds of the rest of a step.
    """

    fetch_s: float
    fetch_cpu_s: float
    step_s: float


def chosen_count(facts: LoopFacts, probe: Callable[[int], float], *, pair_count: int) -> list[int]:
    """Return all worker counts that hasten tries, ending with the one it chooses.

    The counts and the order of races are those of hasten itself; only the races are shorter.

    Args:
        facts: the loop without workers.
        probe: returns the seconds per step with a number of workers.
        pair_count: blocks of each of two counts in a race.
    """
    settings = worker_counts.counts(context_of(facts))
    if not settings:
        return [0]
    candidates = (candidate_of(settings),)
    history: list[Comparison] = []
    while proposal := search.propose(
        candidates, history, limits=search.BudgetLimits(launches_left=MOST_RACES - len(history))
    ):
        history.append(_race(proposal, probe, pair_count))
    tried = dict.fromkeys(count_of(seen.candidate) for seen in history)
    chosen = count_of(search.incumbent(candidates, history))
    return [*(count for count in tried if count != chosen), chosen]


def context_of(facts: LoopFacts) -> ScriptContext:
    """Return what a profile and a child would report about this loop."""
    step_s = facts.fetch_s + facts.step_s
    profile = Profile(
        step_s=step_s,
        step_low_s=step_s,
        step_high_s=step_s,
        sample_unit="samples",
        sample_count=8,
        phase_s={Phase.DATA: facts.fetch_s, Phase.FORWARD: facts.step_s},
        step_count=30,
        cores_ratio=(facts.fetch_cpu_s + facts.step_s) / step_s,
    )
    loader = LoaderTraits(
        worker_count=0,
        is_map_style=True,
        fetch_s=facts.fetch_s,
        fetch_cpu_ratio=min(1.0, facts.fetch_cpu_s / facts.fetch_s),
    )
    return ScriptContext(
        machine=machine.read(probe=lambda: None), baseline=profile, traits=Traits(loader=loader)
    )


def candidate_of(settings: tuple[int, ...]) -> search.Candidate:
    """Return the lever as a candidate for the search."""
    lever = discover()[LEVER]
    return search.Candidate(
        lever=lever.name,
        phases=lever.phases,
        settings=settings,
        gain_ratio=lever.gain_ratio,
        scope=lever.scope,
        effect=lever.effect,
    )


def count_of(plan: Plan) -> int:
    """Return the number of workers in a plan; the script itself has none."""
    return int(dict(plan.settings).get(LEVER, 0))


def _race(proposal: search.Proposal, probe: Callable[[int], float], pair_count: int) -> Comparison:
    counts = {plan: count_of(plan) for plan in (proposal.baseline, proposal.candidate)}
    logs = []
    for _ in range(pair_count):
        walls_s = {plan: probe(counts[plan]) for plan in random.sample(list(counts), 2)}
        logs.append(log(walls_s[proposal.baseline] / walls_s[proposal.candidate]))
    ratio = exp(median(logs))
    return Comparison(
        baseline=proposal.baseline,
        candidate=proposal.candidate,
        verdict=Verdict.WIN if ratio >= 1 + LEAST_RATIO else Verdict.DROP,
        speedup=Interval(low_ratio=ratio, mid_ratio=ratio, high_ratio=ratio),
    )


def measure(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each synthetic loader."""
    script = Path(folder, "choice.py")
    block_ms = 60 if quick else 300
    script.write_text(SCRIPT % {"loaders": LOADERS, "block_ms": block_ms})
    counts = (0, 1, 2, LARGEST_COUNT) if quick else tuple(range(LARGEST_COUNT + 1))
    arm = TrialProcess(name="choice", command=(sys.executable, str(script)))
    places = range(0, len(LOADERS), 3) if quick else range(len(LOADERS))
    with living(arm, folder) as process:
        return [_row(process, place, counts, round_count=1 if quick else 2) for place in places]


def _row(process: Living, place: int, counts: Sequence[int], *, round_count: int) -> dict[str, Any]:
    busy_ms, waiting_ms = LOADERS[place]
    row: dict[str, Any] = {"loader": f"{busy_ms:g} ms busy, {waiting_ms:g} ms waiting"}
    try:
        first = process.ask(f"{place} 0")
        facts = LoopFacts(**{name: first[name] for name in LoopFacts.__annotations__})
        *tried, chosen = chosen_count(
            facts, lambda count: _wall_s(process, place, count), pair_count=2 * round_count + 1
        )
        asked = sorted({*counts, chosen})
        walls_s = _sweep(process, place, asked, round_count)
        best = min(walls_s, key=lambda count: median(walls_s[count]))
        near = 1.0 if chosen == best else _again(process, place, chosen, best, round_count)
    except Failed as failure:
        return {**row, "failed": str(failure)}
    by = f"tried {', '.join(map(str, tried)) or 'no other'}"
    return {**row, "chosen": chosen, "best": best, "ratio": near, "by": by}


def _wall_s(process: Living, place: int, count: int) -> float:
    return float(process.ask(f"{place} {count}")["wall_s"])


def _sweep(
    process: Living, place: int, counts: Sequence[int], round_count: int
) -> Mapping[int, list[float]]:
    walls_s: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(round_count):
        for count in random.sample(counts, len(counts)):
            walls_s[count].append(_wall_s(process, place, count))
    return walls_s


def _again(process: Living, place: int, chosen: int, best: int, round_count: int) -> float:
    """Return chosen over best in fresh blocks: the minimum of a noisy sweep is too optimistic."""
    ratios = []
    for _ in range(2 * round_count + 1):
        pair = {n: _wall_s(process, place, n) for n in random.sample((chosen, best), 2)}
        ratios.append(pair[chosen] / pair[best])
    return median(ratios)
