"""The gate for another algorithm: does it learn no worse?

Nothing of such a training is the same step by step. So the script is run under several seeds as
it is and under the plan, on as many samples, and the losses at the end are compared in pairs: a
one-sided test of non-inferiority with a margin that is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hasten.records import Gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.verify.recorded_run import RecordedRun

LEAST_PAIRS_COUNT = 5
_MARGIN_SD = 0.5
_LEAST_MARGIN_RATIO = 0.01
_END_SHARE = 0.25
# Student's t for 95%, one-sided, with 1, 2, ... degrees of freedom.
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782)
_T95_MORE = 1.771


def final_loss(evidence: RecordedRun, sample_count: int) -> float:
    """Return the mean loss of the last quarter of the first `sample_count` samples."""
    ends = np.cumsum(evidence.samples)
    begin, before = (1 - _END_SHARE) * sample_count, 0
    losses: list[float] = []
    for end, kept in zip(ends, evidence.losses_at, strict=True):
        if begin < end <= sample_count:
            losses += evidence.losses[before:kept]
        before = kept
    return float(np.mean(losses)) if losses else float("nan")


def common_sample_count(runs: Sequence[RecordedRun]) -> int:
    """Return how many samples every run has trained on."""
    return min(sum(run.samples) for run in runs)


def no_worse(pairs: Sequence[tuple[float, float]]) -> Gate:
    """G5: under the plan the loss at the end is not higher by more than the margin.

    The margin is half of the spread that the script has over its own seeds, at least 1% of
    the loss. Learning that is clearly better is said, too: it is another algorithm all the more.

    Args:
        pairs: the final losses of baseline and candidate under the same seed.
    """
    name = "G5 learning"
    if len(pairs) < LEAST_PAIRS_COUNT:
        message = f"{len(pairs)} pairs of seeds are too few; {LEAST_PAIRS_COUNT} are needed"
        return Gate(name=name, passed=False, message=message)
    baseline, candidate = np.asarray(pairs, dtype=np.float64).T
    if not np.isfinite(baseline).all():
        message = "the script itself ends with losses that are no numbers"
        return Gate(name=name, passed=False, message=message)
    if not np.isfinite(candidate).all():
        return Gate(name=name, passed=False, message="a loss under the plan is not a number")
    size = float(np.mean(np.abs(baseline)))
    margin = max(_MARGIN_SD * float(np.std(baseline, ddof=1)), _LEAST_MARGIN_RATIO * size)
    apart = candidate - baseline
    freedom = len(pairs) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MORE
    reach = t * float(np.std(apart, ddof=1)) / len(pairs) ** 0.5
    mean = float(np.mean(apart))
    figures = (
        f"the loss at the end is {mean:+.3g} (at most {mean + reach:+.3g} with 95%) on "
        f"{np.mean(baseline):.4g} over {len(pairs)} seeds, a margin of {margin:.2g}"
    )
    ratio = (mean + reach) / margin
    if ratio >= 1:
        message = f"learning no worse was not shown: {figures}"
        return Gate(name=name, passed=False, message=message, distance_ratio=ratio)
    better = " and clearly lower than the script's" if mean + reach < -margin else ""
    message = f"learns no worse: {figures}{better}"
    return Gate(name=name, passed=True, message=message, distance_ratio=ratio)
