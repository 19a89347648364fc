"""Blocks of steps as numbers: what they cost, what a switch disturbs, who else wanted the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from hasten.lever import lookup
from hasten.records import Pair, Phase, Plan, Scope, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.lever import Lever
    from hasten.records import Setting

_T = TypeVar("_T")
TOGETHER_RATIO = 1.3
"""How much longer two launches at once take than one: they read the disk together."""
_PRESSURE = "/proc/pressure/cpu"
_LEAST_BLOCK_S, _LONE_BLOCK_S = 0.02, 3.0  # long enough to be worth a signal, or a launch
# A process that was stopped is slower for this long: its caches, its threads. In a step longer than
# `_LONG_S` it does not show.
_COLD_S, _LONG_S = 0.005, 0.1


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


def shape_of(
    baseline: Plan,
    candidate: Plan,
    *,
    apart: bool,
    cycle_count: int,
    ahead_count: int,
    period_count: int,
    pause_count: int,
    pass_count: int,
    step_s: float,
    single_process: bool,
    left_count: int,
) -> BlockShape:
    """Return how pairs are run: inside one child if all levers that differ can switch there.

    There they alternate step by step, or in blocks of whole cycles if the loop waits for workers.
    Where one life of the script is too short for such a pair, two children share it.

    Args:
        baseline: one plan.
        candidate: the other.
        apart: in two children in any case.
        cycle_count: steps after which the times of the script as it is repeat.
        ahead_count: batches that its workers have in flight: a lever that changes how they are
            made shows only after these.
        period_count: steps after which the times of its loop repeat.
        pause_count: steps between pauses that only levers about the loader shorten, or 1.
        pass_count: steps of a pass over the data where it is short, else 0.
        step_s: seconds of a step; 0 where nobody has seen one.
        single_process: only one child lives at a time, so a turn must be worth a launch.
        left_count: steps that a warm child has left.
    """
    differing = baseline.differing(candidate)
    levers = [lever for lever, _ in both(baseline, candidate) if lever.name in differing]
    inside = bool(levers) and not apart and all(lever.scope is Scope.STEP for lever in levers)
    feeding = any(_feeds(lever) for lever in levers)
    cycle_count = ahead_count if inside and feeding else cycle_count
    period_count = pause_count if pause_count > 1 and (apart or feeding) else period_count
    cycle = _longest_cycle(cycle_count, baseline, candidate)
    if inside:
        settle = max(lever.settle_count for lever in levers)
        skip = max(settle, _ahead_count(cycle_count, baseline, candidate))
        block = _whole(cycle, period_count)
        shape = BlockShape(relay=False, skip_counts=(skip, skip), block_count=block)
        if block == 1 or shape.step_count <= left_count:
            return shape
    if pass_count and _adds_workers(baseline, candidate):  # these may begin a pass with a pause
        period_count = pass_count
    least_count, warm_count = 1, 0
    if step_s:
        least_s = _LONE_BLOCK_S if single_process else _LEAST_BLOCK_S
        least_count = 1 + int(least_s / step_s)
        # A race that only chooses may take its single step cold, a published figure may not. A
        # child that was just launched has trained and was never stopped.
        is_long = single_process or step_s > (_LONG_S if apart else least_s)
        warm_count = 0 if is_long else ceil(_COLD_S / step_s)
    block = max(1, min(_whole(max(least_count, cycle), period_count), left_count))
    skips = [max(warm_count, _ahead_count(cycle_count, plan)) for plan in (baseline, candidate)]
    return BlockShape(relay=True, skip_counts=(skips[0], skips[1]), block_count=block)


def _whole(count: int, period_count: int) -> int:
    """Return a number of steps rounded up to whole periods.

    >>> _whole(1, 1), _whole(1, 16), _whole(17, 16)
    (1, 16, 32)
    """
    return -(-count // period_count) * period_count


def _ahead_count(cycle_count: int, *plans: Plan) -> int:
    """Return the batches that workers may have fetched before a turn, at another pace.

    In a relay they cost nothing: they are fetched between the last step of a turn and the signal
    that stops the workers, or after the one that resumes them, while nobody counts. In one child
    nothing is stopped, and the queue was filled at the pace of the other plan. The number is the
    same: a loader always has workers x prefetch batches on order, so after that many
    steps each batch was asked for within this turn.
    """
    longest = _longest_cycle(cycle_count, *plans)
    return longest if longest > 1 else 0


def _adds_workers(baseline: Plan, candidate: Plan) -> bool:
    """Return whether a lever that is in one plan alone fetches ahead, by workers."""
    differing = baseline.differing(candidate)
    return any(
        lever.name in differing and lever.cycle_count(setting) > 1
        for lever, setting in both(baseline, candidate)
    )


def _longest_cycle(cycle_count: int, *plans: Plan) -> int:
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
    launched = {lever.name for lever, _ in both(own, plan) if lever.scope is Scope.LAUNCH}
    return not own.differing(plan) & launched


def settle_count(own: Plan, plan: Plan, ahead_count: int = 1) -> int:
    """Return the steps that it takes to settle after a switch to `plan`.

    Args:
        own: the plan before.
        plan: the plan after.
        ahead_count: batches that the script's own workers have in flight; a loader that is
            taken over uses them up first.
    """
    counts = [
        lever.settle_count + lever.cycle_count(setting) + (ahead_count - 1 if _feeds(lever) else 0)
        for lever, setting in both(own, plan)
    ]
    return max(counts, default=0)


def _feeds(lever: Lever[Any]) -> bool:
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
