"""Blocks of steps as numbers: what they cost, what a switch disturbs, who else wanted the CPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from upshift.lever import lookup
from upshift.records import Pair, Plan, Step, Switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from upshift.lever import Lever
    from upshift.records import Setting

_PRESSURE = "/proc/pressure/cpu"


class Waiting:
    """The share of a stretch of time in which some task waited for a CPU (PSI)."""

    def __init__(self) -> None:
        self._started = time.monotonic(), _waited_us()

    def share_ratio(self) -> float | None:
        """Return the share since the beginning; None where the kernel does not tell."""
        started_s, before = self._started
        now = _waited_us()
        if before is None or now is None:
            return None
        return min(1.0, (now - before) * 1e-6 / max(1e-9, time.monotonic() - started_s))


def _waited_us() -> int | None:
    try:
        with open(_PRESSURE) as file:
            return int(file.readline().rpartition("total=")[2])
    except (OSError, ValueError):
        return None


def both(baseline: Plan, candidate: Plan) -> list[tuple[Lever[Any], Setting]]:
    """Return the levers of two plans together, with their settings."""
    return [*lookup(baseline), *lookup(candidate)]


def can_take(own: Plan, plan: Plan) -> bool:
    """Return whether a child that was started under `own` can go over to `plan`."""
    launched = {lever.name for lever, _ in both(own, plan) if lever.switch is Switch.LAUNCH}
    return not own.differing(plan) & launched


def settle_count(own: Plan, plan: Plan) -> int:
    """Return the steps that settle what going over to `plan` disturbs."""
    counts = [lever.settle_count + lever.cycle_count(setting) for lever, setting in both(own, plan)]
    return max(counts, default=0)


def cost_s(steps: Sequence[Step]) -> float:
    """Return seconds per sample."""
    return sum(step.wall_s for step in steps) / sum(step.sample_count for step in steps)


def pair(costs: Sequence[float], baseline_first: bool, pressure: float | None) -> Pair:
    """Return a pair from the costs of its two blocks, in the order in which they ran."""
    first, second = costs
    return Pair(
        baseline_s=first if baseline_first else second,
        candidate_s=second if baseline_first else first,
        baseline_first=baseline_first,
        pressure_ratio=pressure,
    )
