"""How much of a step is spent waiting for data, and what the data is waiting for."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from hasten.diagnose.cpu_wait import taken_ratio
from hasten.diagnose.shares import NORMAL_95
from hasten.records import Interval, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.diagnose.case import Case

_LEAST_SAMPLES_COUNT = 20
_BUSY_RATIO = 0.5
_ASLEEP = "storage"  # the kind of work that takes no CPU


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
