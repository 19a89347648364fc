"""The gates for other random draws of the same law: in the samples, and inside the model.

Where only the samples are drawn anew, the candidate trains on the batches of the script as it is,
and every other gate applies; here its own batches are looked at. Where the model draws (dropout),
no two runs agree, and the measure is what the script does to itself under other seeds, from the
same weights and on the same batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hasten.records import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hasten.verify.recorded_run import RecordedRun

_LEAST_BATCHES_COUNT, _MANY_BATCHES_COUNT = 8, 16
# Limits that chance passes about once in ten thousand proofs.
_MANY_LIMIT, _FEW_LIMIT = 6.0, 12.0
_SHIFT_LIMIT = 4.5
_SPREAD_LOW, _SPREAD_HIGH = 0.3, 3.5
_SPREAD_ERRORS_COUNT = 2.5
_LEAST_STEPS_COUNT = 8


def same_law(baseline: RecordedRun, candidate: RecordedRun) -> Gate:
    """G1 for new draws: batches of the same samples, alike in form, mean and spread."""
    name = "G1 law of the draws"
    count = min(len(baseline.outlines), len(candidate.outlines))
    left, right = baseline.outlines[:count], candidate.outlines[:count]
    for number, (own, other) in enumerate(zip(left, right, strict=True), start=1):
        if [kind for kind, _, _ in own] != [kind for kind, _, _ in other]:
            message = f"the plan changes the types or shapes in batch {number}"
            return Gate(name=name, passed=False, message=message)
    if len(set(candidate.batches[:count])) < len(set(baseline.batches[:count])):
        message = "the plan draws the same batch more than once, where the script does not"
        return Gate(name=name, passed=False, message=message)
    if count < _LEAST_BATCHES_COUNT:
        message = f"same types and shapes; {count} batches are too few to compare their values"
        return Gate(name=name, passed=None, message=message)
    if shifted := _shifted(left, right):
        return Gate(name=name, passed=False, message=f"the plan draws otherwise: {shifted}")
    message = f"same types and shapes, mean and spread as chance allows, in {count} batches"
    return Gate(name=name, passed=True, message=message)


def _shifted(
    left: Sequence[tuple[tuple[str, float, float], ...]],
    right: Sequence[tuple[tuple[str, float, float], ...]],
) -> str:
    """Return which tensor of a batch has another mean or spread; the same samples are paired."""
    limit = _MANY_LIMIT if len(left) >= _MANY_BATCHES_COUNT else _FEW_LIMIT
    for index in range(min(len(own) for own in left)):
        for place, word in ((1, "mean"), (2, "spread")):
            own = np.asarray([batch[index][place] for batch in left], dtype=np.float64)
            other = np.asarray([batch[index][place] for batch in right], dtype=np.float64)
            if not np.isfinite(other[np.isfinite(own)]).all():
                return f"the {word} of tensor {index + 1} in a batch is no number"
            apart = _standing_out(other - own)
            if apart > limit:
                return (
                    f"the {word} of tensor {index + 1} in a batch is {np.mean(other):.4g}, "
                    f"not {np.mean(own):.4g}, {apart:.1f} standard errors away"
                )
    return ""


def _standing_out(differences: NDArray[np.float64]) -> float:
    """Return how many standard errors a mean lies from zero."""
    mean = abs(float(np.mean(differences)))
    if mean == 0.0:
        return 0.0
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    return mean / error if error else float("inf")


def within_draws(
    baseline: RecordedRun, candidate: RecordedRun, others: Sequence[RecordedRun]
) -> Gate:
    """G3 where the model draws: losses and gradients as under other seeds of the same script.

    Each step is compared from the same weights and on the same batch, so that nothing but the
    draws differs. The candidate may lie no further from the middle of the script's own runs than
    one of those does, in either direction: a dropout that is missing spreads too little.

    Args:
        baseline: the untouched script.
        candidate: the script under the plan.
        others: the untouched script with other seeds, at least two.
    """
    name = "G3 draws"
    if candidate.sizes != baseline.sizes or len(candidate.losses) != len(baseline.losses):
        message = "the plan changes the parameters or the number of losses"
        return Gate(name=name, passed=False, message=message)
    if not np.isfinite(candidate.losses).all() and np.isfinite(baseline.losses).all():
        return Gate(name=name, passed=False, message="a loss is not a number")
    own = (baseline, *others)
    kinds: tuple[tuple[str, Callable[[RecordedRun], NDArray[np.float64]]], ...] = (
        ("losses", _losses),
        ("gradients", _lengths),
    )
    seen = []
    for word, read in kinds:
        theirs = np.stack([read(e) for e in own])
        shift, spread, resolution = _against(read(candidate), theirs)
        if shift > _SHIFT_LIMIT:
            message = f"the {word} lie {shift:.1f} standard errors from those under other seeds"
            return Gate(
                name=name, passed=False, message=message, distance_ratio=shift / _SHIFT_LIMIT
            )
        low, high = _spread_limits(*theirs.shape)
        if theirs.shape[1] >= _LEAST_STEPS_COUNT and not low <= spread <= high:
            message = f"the {word} spread {spread:.2g} times as far as under other seeds"
            return Gate(name=name, passed=False, message=message)
        seen.append(f"{word} {shift:.1f} standard errors (of {resolution:.2g} of their size)")
    message = f"draws from one distribution: {', '.join(seen)} from those under other seeds"
    if len(_lengths(candidate)) < _LEAST_STEPS_COUNT:
        message = f"{message}; too few steps to see a dropout that is missing"
        return Gate(name=name, passed=None, message=message)
    return Gate(name=name, passed=True, message=message)


def _spread_limits(runs_count: int, steps_count: int) -> tuple[float, float]:
    """Return between what chance lets a ratio of variances lie, wider for fewer steps.

    The log of F with d1 and d2 degrees of freedom has a variance of about 2 / d1 + 2 / d2.

    >>> [[round(limit, 2) for limit in _spread_limits(3, count)] for count in (8, 24)]
    [[0.22, 4.62], [0.3, 3.5]]
    """
    variance = 2.0 / steps_count + 2.0 / (steps_count * (runs_count - 1))
    width = _SPREAD_ERRORS_COUNT * float(variance) ** 0.5
    return min(_SPREAD_LOW, float(np.exp(-width))), max(_SPREAD_HIGH, float(np.exp(width)))


def _losses(evidence: RecordedRun) -> NDArray[np.float64]:
    return np.asarray(evidence.losses[: evidence.forced_losses_count], dtype=np.float64)


def _lengths(evidence: RecordedRun) -> NDArray[np.float64]:
    lengths = [np.linalg.norm(row.astype(np.float64)) for row in evidence.gradients]
    return np.asarray(lengths, dtype=np.float64)


def _against(
    candidate: NDArray[np.float64], own: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Return a shift in standard errors, a ratio of variances, and the error over the size.

    Args:
        candidate: one value for each step.
        own: the same of the script's own runs, shape (runs, steps).
    """
    runs_count, steps_count = own.shape
    middle = np.mean(own, axis=0)
    variance = float(np.mean(np.var(own, axis=0, ddof=1)))
    # The middle of the runs is itself uncertain.
    expected = variance * (1 + 1 / runs_count)
    apart = candidate - middle
    size = max(float(np.mean(np.abs(middle))), 1e-12)
    if expected == 0.0:  # these numbers do not depend on the draws
        return (0.0 if not apart.any() else float("inf")), 1.0, 0.0
    error = (expected / steps_count) ** 0.5
    return abs(float(np.mean(apart))) / error, float(np.mean(apart**2)) / expected, error / size
