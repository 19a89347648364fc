"""How much of a step is spent waiting for data, and what the data is waiting for."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from hasten.diagnose.shares import NORMAL_95
from hasten.records import Interval, Phase

if TYPE_CHECKING:
    from hasten.diagnose.case import Case

_LEAST_SAMPLES_COUNT = 20
_BUSY_RATIO = 0.5


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
    starts_s = list(case.found.get("loading.starts_s", ()))[: len(data_s)]
    starts_s += [0.0] * (len(data_s) - len(starts_s))
    return [max(0.0, data - start) for data, start in zip(data_s, starts_s, strict=True)]


def waiting(case: Case) -> Interval | None:
    """Return the share of the steps in which the loop waited for batches."""
    return case.share(waits_s(case))


def part_of(case: Case, *kinds: str) -> Interval | None:
    """Return the share of the steps spent waiting for some kinds of work on batches.

    The wait is attributed to what the processes that make batches were doing, by samples of their
    stacks. Where workers have time to spare, the loop waits for the hand-over, not for this work.
    """
    busy = busy_ratio(case)
    if busy is not None and busy < _BUSY_RATIO:
        return None
    waits, seen = waiting(case), case.found.get("loading.kinds", {})
    count = sum(seen.values())
    if waits is None or count < _LEAST_SAMPLES_COUNT:
        return None
    ratio = sum(seen.get(kind, 0) for kind in kinds) / count
    error = NORMAL_95 * sqrt(ratio * (1 - ratio) / count)
    return Interval(
        low_ratio=waits.low_ratio * max(0.0, ratio - error),
        mid_ratio=waits.mid_ratio * ratio,
        high_ratio=waits.high_ratio * min(1.0, ratio + error),
    )
