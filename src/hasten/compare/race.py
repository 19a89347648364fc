"""A race between two plans: pairs until the evidence decides, or the time is spent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf, log, log1p
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hasten.compare.e_process import confidence_sequence, grid, log_e_path
from hasten.compare.noise import plan_pairs, resolution
from hasten.records import LEAST_RATIO, Comparison, Noise, Pair, Plan, Verdict

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

Measure: TypeAlias = "Callable[[Sequence[bool]], Sequence[Pair]]"
_FIRST_CHUNK, _LARGEST_CHUNK = 4, 64
# A burst of another job's work slows several blocks in a row, which the coin cannot balance:
# fewer pairs than this may lie within one burst.
DROP_LEAST_COUNT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a race ends. Fixed before its first pair.

    Attributes:
        pair_count: pairs that may be spent.
        budget_s: seconds that may be spent.
        least_ratio: a gain below this is not worth a lever (0.02 is 2%).
        sd_ratio: the A/A noise that the bets are centred on; None for the fixed grid.
        win_ratio: odds that prove "faster"; 20 errs in at most 5% of races.
        drop_ratio: odds that prove "gains less than `least_ratio`"; 5 errs in at most 20%.
        patient_count: before this many pairs, a drop takes the odds of a win.
        most_s: seconds past which not even the pairs are run that could decide it.
    """

    pair_count: int
    budget_s: float = inf
    least_ratio: float = LEAST_RATIO
    sd_ratio: float | None = None
    win_ratio: float = 20.0
    drop_ratio: float = 5.0
    patient_count: int = 0
    most_s: float = inf

    @property
    def bets(self) -> tuple[float, ...]:
        """The grid of the e-process."""
        return grid(self.sd_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What a race saw, and what it proves.

    Attributes:
        pairs: every pair that was measured, including the rest of the chunk that decided.
    """

    verdict: Verdict
    pairs: tuple[Pair, ...]
    wall_s: float


def rule_for(noise: Noise, *, budget_s: float, least_ratio: float = LEAST_RATIO) -> Rule:
    """Return the rule for one candidate on this machine.

    Where the budget cannot show `least_ratio`, the least gain is raised to what it can show.
    """
    count = plan_pairs(noise, wanted_ratio=least_ratio, budget_s=budget_s)
    return Rule(
        pair_count=count,
        budget_s=budget_s,
        least_ratio=max(least_ratio, resolution(noise.sd_ratio, pair_count=count)),
        sd_ratio=noise.sd_ratio,
    )


def judge(pairs: Sequence[Pair], rule: Rule) -> Verdict:
    """Return what the pairs prove, in their order: the first crossing decides.

    Pairs that follow the first crossing never change the verdict. Nothing is dropped before
    six pairs.
    """
    if not pairs:
        return Verdict.UNDECIDED
    values = np.asarray([pair.log_ratio for pair in pairs])
    faster = log_e_path(values, bets=rule.bets)
    lacking = log_e_path(log1p(rule.least_ratio) - values, bets=rule.bets)
    win = _first(faster >= log(rule.win_ratio))
    lacking[: DROP_LEAST_COUNT - 1] = -inf
    early = lacking[: max(0, rule.patient_count - 1)]
    early[early < log(rule.win_ratio)] = -inf
    drop = _first(lacking >= log(rule.drop_ratio))
    if win is None and drop is None:
        return Verdict.UNDECIDED
    return Verdict.WIN if drop is None or (win is not None and win <= drop) else Verdict.DROP


def _first(crossed: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(crossed)) if crossed.any() else None


def race(
    measure: Measure,
    *,
    rule: Rule,
    coin: random.Random,
    clock: Callable[[], float] = time.monotonic,
    on_pairs: Callable[[Sequence[Pair]], None] | None = None,
) -> Race:
    """Run pairs until they decide or the rule's pairs or seconds are spent.

    Args:
        measure: runs one pair for each element, the baseline first where it is true. It may
            answer with fewer when the script ends; an empty answer ends the race.
        rule: when to stop.
        coin: orders each pair; its fairness is what makes the evidence valid.
        clock: seconds.
        on_pairs: is called with the pairs in order, a few at a time.
    """
    started_s = clock()
    pairs: list[Pair] = []
    verdict = Verdict.UNDECIDED
    while verdict is Verdict.UNDECIDED:
        size = _chunk(len(pairs), rule, spent_s=clock() - started_s)
        answer = run_chunk(measure, size, coin=coin, on_pairs=on_pairs)
        if not answer:
            break
        pairs += answer
        verdict = judge(pairs, rule)
    return Race(verdict=verdict, pairs=tuple(pairs), wall_s=clock() - started_s)


def run_chunk(
    measure: Measure,
    size: int,
    *,
    coin: random.Random,
    on_pairs: Callable[[Sequence[Pair]], None] | None,
) -> Sequence[Pair]:
    """Measure some pairs, each ordered by the coin, and report them; none once the script ended."""
    answer = measure([coin.random() < 0.5 for _ in range(size)]) if size else ()
    if on_pairs is not None and answer:
        on_pairs(answer)
    return answer


def _chunk(done: int, rule: Rule, *, spent_s: float) -> int:
    """Return how many pairs to ask for: 4, 4, 8 .. 64, within the pairs and seconds left.

    A race that is a few pairs short of those that can decide it gets them, though its seconds are
    spent: all before them were for nothing otherwise. It takes up to twice its seconds for that.
    """
    size = min(max(_FIRST_CHUNK, done), _LARGEST_CHUNK, rule.pair_count - done)
    if not done or spent_s <= 0.0 or rule.budget_s == inf:
        return size
    pair_s = spent_s / done
    short = max(0, DROP_LEAST_COUNT - done)
    most_s = min(2.0 * rule.budget_s, rule.most_s)
    least = short if spent_s + short * pair_s <= most_s else 0
    return min(size, max(least, int((rule.budget_s - spent_s) / pair_s), 0))


def means_ratio(pairs: Sequence[Pair]) -> float | None:
    """Return the ratio of plain mean times, None without pairs."""
    if not pairs:
        return None
    return sum(pair.baseline_s for pair in pairs) / sum(pair.candidate_s for pair in pairs)


def compare(
    baseline: Plan, candidate: Plan, pairs: Sequence[Pair], rule: Rule, wall_s: float
) -> Comparison:
    """Return the record of a race; its interval is valid wherever the race stopped."""
    speedup = None
    if pairs:
        speedup = confidence_sequence([pair.log_ratio for pair in pairs], bets=rule.bets)
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        verdict=judge(pairs, rule),
        speedup=speedup,
        means_ratio=means_ratio(pairs),
        pairs=tuple(pairs),
        wall_s=wall_s,
    )
