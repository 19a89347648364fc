"""How long the loop waits for a CPU or for a batch, and for whom."""

from __future__ import annotations

from itertools import zip_longest
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from hasten.diagnose.shares import NORMAL_95
from hasten.records import Interval, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.diagnose.case import Case

_LEAST_LOAD_RATIO = 0.02  # of the CPUs: the kernel counts their time in steps of 10 ms
_LEAST_IDLE_CPUS_COUNT = 0.5  # what does not fill pauses, such as those between passes
_LEAST_SAMPLES_COUNT = 20
_BUSY_RATIO = 0.5
_FILLING_RATIO = 2.0  # beside others, a worker takes longer for a batch than one process alone
_ASLEEP = "storage"  # the kind of work that takes no CPU


class CompetingProcesses(NamedTuple):
    """Demand for the CPUs that the loop's thread may run on, as an average number of CPUs.

    Attributes:
        team_ratio: threads of the script's own process, beyond the number of CPUs.
        workers_ratio: loader workers, and any other processes that the script has started.
        others_ratio: everything else.
    """

    team_ratio: float
    workers_ratio: float
    others_ratio: float


def read_rivals(case: Case) -> CompetingProcesses | None:
    """Return who wanted the CPUs, or None if the kernel did not say.

    A process's demand is the time its threads ran plus the time they waited to run. For
    other processes only the former is known.
    """
    keys = ("wall_s", "cpus_count", "own_run_s", "own_wait_s", "busy_s")
    told = [case.found.get(f"processors.{key}") for key in keys]
    if any(value is None for value in told):
        return None
    wall_s, cpus_count, own_run_s, own_wait_s, busy_s = (float(value or 0.0) for value in told)
    if not wall_s:
        return None
    each = case.found.get("workers.each", ())
    # Workers that come and go, as with each epoch, do not count as others.
    children_run_s = float(case.found.get("processors.children_run_s") or 0.0)
    workers_run_s = max(children_run_s, sum(worker["run_s"] for worker in each))
    others_ratio = (busy_s - own_run_s - workers_run_s) / wall_s
    return CompetingProcesses(
        team_ratio=max(0.0, (own_run_s + own_wait_s) / wall_s - cpus_count),
        workers_ratio=(workers_run_s + sum(worker["wait_s"] for worker in each)) / wall_s,
        others_ratio=others_ratio if others_ratio >= _LEAST_LOAD_RATIO * cpus_count else 0.0,
    )


def quota_share(case: Case) -> Interval | None:
    """Return the share of all time in which a quota held up the loop's thread.

    Throttled time is counted per CPU, so the wait of the loop's thread bounds
    it from above.
    """
    waits, held = (case.found.get(f"processors.{key}", ()) for key in ("waits_s", "throttled_s"))
    if not waits or not held:
        return None
    return case.share_of_all([min(pair) for pair in zip(waits, held, strict=False)])


def blamed_share(case: Case, *names: str) -> Interval | None:
    """Return the share of all time in which the loop's thread waited for its `team` or `others`.

    The waits are divided in proportion to each rival's demand for CPUs; what a quota held up is
    not blamed on them.
    """
    rivals, waits = read_rivals(case), case.found.get("processors.waits_s", ())
    if rivals is None or not any(rivals) or not waits:
        return None
    wanted_ratio = sum(getattr(rivals, f"{name}_ratio") for name in names) / sum(rivals)
    held = case.found.get("processors.throttled_s") or [0.0] * len(waits)
    pairs = zip(waits, held, strict=False)
    return case.share_of_all([wanted_ratio * max(0.0, wait - by_quota) for wait, by_quota in pairs])


def taken_ratio(case: Case) -> float:
    """Return the share of the CPUs' time that loader workers take; 0 where a CPU is idle.

    Where none is, a step takes as long as all CPU time spent in it, over the CPUs: the utilisation
    law (Denning and Buzen 1978, https://doi.org/10.1145/356733.356735). What workers no longer do
    then makes it shorter, even if the loop never waits for a batch.

    Workers that start with a pass, and fill their queue, take more for a while: at most twice what
    a step's batches take to make is counted.
    """
    wall_s, all_s, cpus_count, own_run_s, children_run_s, busy_s = (
        float(case.found.get(f"processors.{key}") or 0.0)
        for key in (
            "steps_wall_s", "wall_s", "cpus_count", "steps_own_run_s", "steps_children_run_s",
            "steps_busy_s",
        )
    )  # fmt: skip
    each = case.found.get("workers.each", ())
    whole_s = wall_s * cpus_count
    if not (each and whole_s and all_s):
        return 0.0
    # Workers that a server forks are not this process's children.
    each_run_s = sum(float(one["run_s"]) for one in each)
    workers_run_s = max(children_run_s, each_run_s * wall_s / all_s)
    idle_s = whole_s - max(own_run_s + workers_run_s, busy_s)
    if idle_s > _LEAST_IDLE_CPUS_COUNT * wall_s:
        return 0.0
    return min(1.0, workers_run_s / whole_s, _FILLING_RATIO * _made_ratio(case, cpus_count))


def _made_ratio(case: Case, cpus_count: float) -> float:
    """Return the share of the CPUs' time that making the batches of a step takes, if measured."""
    loader, seen_s = case.traits.loader, fetch_s(case)
    if loader is None or seen_s is None:
        return 1.0
    cpu_ratio = 1.0 if loader.fetch_cpu_ratio is None else loader.fetch_cpu_ratio
    return seen_s * cpu_ratio * loader.step_batch_count / (cpus_count * case.step_s)


def starved_share(case: Case) -> Interval | None:
    """Return the share of the steps that the loop and its workers lost waiting for CPUs.

    Where the loop waits for a batch, the batch is late by the fraction of their time that the
    workers spent waiting; elsewhere the loop's own thread waits for CPUs that workers occupy.
    """
    each = case.found.get("workers.each", ())
    wanted_s = sum(worker["run_s"] + worker["wait_s"] for worker in each)
    if not wanted_s or not case.steps:
        return None
    late_ratio = sum(worker["wait_s"] for worker in each) / wanted_s
    late = [late_ratio * step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in case.steps]
    rivals = read_rivals(case)
    if rivals is not None and any(rivals):
        part_ratio = rivals.workers_ratio / sum(rivals)
        waits = case.found.get("processors.waits_s", ())
        for index, wait_s in enumerate(waits[: len(late)]):
            late[index] += part_ratio * wait_s
    return case.share(late)


def scaled(share: Interval, factor: float) -> Interval:
    """Return a share scaled by a factor."""
    return Interval(
        low_ratio=share.low_ratio * factor,
        mid_ratio=share.mid_ratio * factor,
        high_ratio=share.high_ratio * factor,
    )


def fetch_s(case: Case) -> float | None:
    """Return the seconds that one process takes to make a batch, if measured."""
    loader = case.traits.loader
    seen = loader.fetch_s if loader else None
    if seen is None:
        seen = case.found.get("loading.batch_s")
    return None if seen is None else float(seen)


def busy_ratio(case: Case) -> float | None:
    """Return the share of the time that workers spend making batches; None without workers."""
    loader, seen_s = case.traits.loader, fetch_s(case)
    if loader is None or not loader.worker_count or seen_s is None:
        return None
    return seen_s * loader.step_batch_count / (loader.worker_count * case.step_s)


def waits_s(case: Case) -> list[float]:
    """Return how long each step waited for batches from workers that were already running.

    Worker start-up is excluded: it says nothing about how fast they are.
    """
    data_s = [step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in case.steps]
    starts_s = case.found.get("loading.starts_s", ())[: len(data_s)]
    return [max(0.0, data - start) for data, start in zip_longest(data_s, starts_s, fillvalue=0.0)]


def waiting(case: Case) -> Interval | None:
    """Return the share of the steps in which the loop waited for batches."""
    return case.share(waits_s(case))


def part_of(case: Case, *kinds: str) -> Interval | None:
    """Return the share of the steps that some kinds of work on batches cost.

    The wait for batches is attributed to what the processes that make them were doing, by samples
    of their stacks. Where workers have time to spare, the loop waits for the hand-over, not for
    this work; where no CPU is idle, it takes time from the loop all the same (`taken_ratio`).
    """
    busy, waits = busy_ratio(case), waiting(case)
    seen = case.found.get("loading.kinds", {})
    if waits is None or sum(seen.values()) < _LEAST_SAMPLES_COUNT:
        return None
    if busy is not None and busy < _BUSY_RATIO:
        waits = scaled(waits, 0.0)
    taken = taken_ratio(case)
    awake = {kind: count for kind, count in seen.items() if kind != _ASLEEP}
    shares = (
        _portion(waits, seen, kinds),
        _portion(Interval(low_ratio=taken, mid_ratio=taken, high_ratio=taken), awake, kinds),
    )
    return max(shares, key=lambda share: share.mid_ratio)


def _portion(whole: Interval, seen: Mapping[str, int], kinds: Sequence[str]) -> Interval:
    """Return the portion of a share that some kinds of work have, by samples of stacks."""
    count = max(1, sum(seen.values()))
    ratio = sum(seen.get(kind, 0) for kind in kinds) / count
    error = NORMAL_95 * sqrt(ratio * (1 - ratio) / count)
    return Interval(
        low_ratio=whole.low_ratio * max(0.0, ratio - error),
        mid_ratio=whole.mid_ratio * ratio,
        high_ratio=whole.high_ratio * min(1.0, ratio + error),
    )
