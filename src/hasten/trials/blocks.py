"""Blocks of steps as numbers: what they cost, what a switch disturbs, who else wanted the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hasten import kernel_files
from hasten.lever import lookup
from hasten.records import Pair, Phase, Plan, Scope, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.lever import Lever
    from hasten.records import Setting

_T = TypeVar("_T")
TOGETHER_RATIO = 1.3
"""How much longer two launches at once take than one: they read the disk together."""
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """How the two turns of a pair are run.

    Attributes:
        relay: in two children, of which one is stopped; else both plans alternate inside one.
        skip_counts: steps at the head of a turn that are not counted: the baseline's turn, then
            the candidate's.
        block_count: steps that are counted in each turn.
    """

    relay: bool
    skip_counts: tuple[int, int]
    block_count: int

    @property
    def step_count(self) -> int:
        """Steps of a whole pair."""
        return sum(self.skip_counts) + 2 * self.block_count


def whole(count: int, period_count: int) -> int:
    """Return a number of steps rounded up to whole periods.

    >>> whole(1, 1), whole(1, 16), whole(17, 16)
    (1, 16, 32)
    """
    return -(-count // period_count) * period_count


def steps_ahead(cycle_count: int, *plans: Plan) -> int:
    """Return the batches that workers may have fetched before a turn, at another pace.

    In a relay they cost nothing: they are fetched between the last step of a turn and the signal
    that stops the workers, or after the one that resumes them, while nobody counts. In one child
    nothing is stopped, and the queue was filled at the pace of the other plan. The number is the
    same: a loader always has workers x prefetch batches on order, so after that many
    steps each batch was asked for within this turn.
    """
    longest = longest_cycle(cycle_count, *plans)
    return longest if longest > 1 else 0


def adds_workers(baseline: Plan, candidate: Plan) -> bool:
    """Return whether a lever that is in one plan alone fetches ahead, by workers."""
    differing = baseline.differing(candidate)
    return any(
        lever.name in differing and lever.cycle_count(setting) > 1
        for lever, setting in both(baseline, candidate)
    )


def longest_cycle(cycle_count: int, *plans: Plan) -> int:
    """Return the steps after which the times repeat: of the script's loader, or of a lever."""
    levers = [applied for plan in plans for applied in lookup(plan)]
    return max([cycle_count, *(lever.cycle_count(setting) for lever, setting in levers)])


class CpuCompetition:
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
    some = kernel_files.text(_PRESSURE).partition("\n")[0]
    return kernel_files.whole(some.rpartition("total=")[2])


def both(baseline: Plan, candidate: Plan) -> list[tuple[Lever[Any], Setting]]:
    """Return the levers of two plans together, with their settings."""
    return [*lookup(baseline), *lookup(candidate)]


def can_take(own: Plan, plan: Plan) -> bool:
    """Return whether a child that was started under `own` can go over to `plan`."""
    launched = {lever.name for lever, _ in both(own, plan) if lever.scope is Scope.LAUNCH}
    return not own.differing(plan) & launched


def settle_count(own: Plan, plan: Plan, ahead_count: int = 1) -> int:
    """Return the steps that it takes to settle after a switch to `plan`.

    A loader that is taken over first uses up the batches that the script's own workers have in
    flight, `ahead_count`.
    """
    counts = [
        lever.settle_count + lever.cycle_count(setting) + (ahead_count - 1 if feeds(lever) else 0)
        for lever, setting in both(own, plan)
    ]
    return max(counts, default=0)


def feeds(lever: Lever[Any]) -> bool:
    """Return whether a lever is about the loader alone: it shows in batches asked for later."""
    return lever.phases == {Phase.DATA}


def both_start_s(first_s: float, second_s: float, *, single_process: bool) -> float:
    """Return how long two launches take: at once, where memory holds both children.

    >>> both_start_s(4.0, 4.0, single_process=True), both_start_s(4.0, 4.0, single_process=False)
    (8.0, 5.2)
    """
    return (first_s + second_s) * (1.0 if single_process else TOGETHER_RATIO / 2)


def compiling(plan: Plan) -> Plan:
    """Return the levers of a plan that compile: the first steps under them need patience."""
    return plan.only(frozenset(lever.name for lever, _ in lookup(plan) if lever.patience_s))


def filling(plan: Plan) -> Plan:
    """Return the levers of a plan under which a first pass over the data does more."""
    return plan.only(frozenset(lever.name for lever, _ in lookup(plan) if lever.warms_cache))


def patience_s(*plans: Plan) -> float:
    """Return how much longer than usual the first steps under any of these plans may take."""
    applied = [lever for plan in plans for lever, _ in lookup(plan)]
    return max((lever.patience_s for lever in applied), default=0.0)


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


def pairs_of(costs: Sequence[float], coins: Sequence[bool], pressure: float | None) -> list[Pair]:
    """Return the pairs of blocks that were run by these coins, two costs each."""
    return [pair(costs[2 * i : 2 * i + 2], coin, pressure) for i, coin in enumerate(coins)]


def reordered(turns: Sequence[_T], coins: Sequence[bool]) -> list[_T]:
    """Return the turns of a pair once for each coin; False reverses them.

    >>> reordered(["own", "other"], [True, False])
    ['own', 'other', 'other', 'own']
    """
    return [turn for coin in coins for turn in (turns if coin else turns[::-1])]
