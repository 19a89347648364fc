"""The gates for other random draws of the same law: in the samples, and inside the model.

Where only the samples are redrawn, the candidate trains on the batches of the script as it is,
and every other gate applies; here its own batches are checked. Where the model draws (dropout),
no two runs agree, and the measure is what the script does to itself under other seeds, from the
same weights and on the same batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hasten.records import Gate
from hasten.verify.gates import incomparable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hasten.verify.recorded_run import RecordedRun

_LEAST_BATCHES_COUNT, _MANY_BATCHES_COUNT = 8, 16
# Limits that chance exceeds about once in ten thousand proofs.
_MANY_LIMIT, _FEW_LIMIT = 6.0, 12.0
# Beyond the first limit the odds of chance decide; beyond the far one chance explains nothing.
_SHIFT_LIMIT, _FAR_SHIFT_LIMIT = 4.5, 30.0
_FAR_SPREAD_LIMIT = 1000.0
_SPREAD_LOW, _SPREAD_HIGH = 0.3, 3.5
_CHANCE_RATIO = 1e-3
_PICKS_COUNT = 4000
_ROUNDING_RATIO = 2.0**-18  # a relative difference below this is rounding
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
    """Return which tensor of a batch has a different mean or spread; batches are paired."""
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
    one of those does, in either direction: a dropout that is missing spreads too little. The others
    are the untouched script with other seeds, at least two.
    """
    name = "G3 draws"
    if unlike := incomparable(name, baseline, candidate):
        return unlike
    if not np.isfinite(candidate.losses).all() and np.isfinite(baseline.losses).all():
        return Gate(name=name, passed=False, message="a loss is not a number")
    runs = (candidate, baseline, *others)
    losses, lengths = (np.stack([read(run) for run in runs]) for read in (_losses, _lengths))
    known = np.isfinite(lengths)
    if (known[1:].all(axis=0) & ~known[0]).any():
        return Gate(name=name, passed=False, message="a gradient is not a number")
    seen = []
    for word, levels, values in (
        ("losses", losses, list(losses[:, :, None])),
        ("gradients", lengths, [run.gradients for run in runs]),
    ):
        shift, resolution, chance_ratio = _shift(levels)
        if shift > _SHIFT_LIMIT and chance_ratio < _CHANCE_RATIO:
            message = f"the {word} lie {shift:.1f} standard errors from those under other seeds"
            return Gate(
                name=name, passed=False, message=message, distance_ratio=shift / _SHIFT_LIMIT
            )
        spread, chance_ratio = _spread(values)
        if not _SPREAD_LOW <= spread <= _SPREAD_HIGH and chance_ratio < _CHANCE_RATIO:
            message = f"the {word} spread {spread:.2g} times as far as under other seeds"
            return Gate(name=name, passed=False, message=message)
        seen.append(f"{word} {shift:.1f} standard errors (of {resolution:.2g} of their size)")
    message = f"draws from one distribution: {', '.join(seen)} from those under other seeds"
    if lengths.shape[1] < _LEAST_STEPS_COUNT:
        message = f"{message}; too few steps to see a dropout that is missing"
        return Gate(name=name, passed=None, message=message)
    return Gate(name=name, passed=True, message=message)


def _losses(evidence: RecordedRun) -> NDArray[np.float64]:
    return np.asarray(evidence.losses[: evidence.forced_losses_count], dtype=np.float64)


def _lengths(evidence: RecordedRun) -> NDArray[np.float64]:
    lengths = [np.linalg.norm(row.astype(np.float64)) for row in evidence.gradients]
    return np.asarray(lengths, dtype=np.float64)


def _shift(runs: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return how far the mean of the first run lies from that of the others, and how precisely.

    Args:
        runs: one value for each step, shape (runs, steps).

    Returns:
        The shift in standard errors, the error over the size of the values, and `_odds`, none
        for a shift that no chance explains.
    """
    runs = runs[:, np.isfinite(runs).all(axis=0)]
    candidate, own = runs[0], runs[1:]
    runs_count, steps_count = own.shape
    if not steps_count:
        return 0.0, 0.0, 1.0
    middle = np.mean(own, axis=0)
    # The middle of the runs is itself uncertain.
    expected = float(np.mean(np.var(own, axis=0, ddof=1))) * (1 + 1 / runs_count)
    apart = candidate - middle
    size = max(float(np.mean(np.abs(middle))), 1e-12)
    if expected == 0.0:  # these numbers do not depend on the draws
        rounds = np.all(np.abs(apart) <= _ROUNDING_RATIO * np.abs(middle))
        return (0.0 if rounds else float("inf")), 0.0, 0.0
    error = (expected / steps_count) ** 0.5
    places = runs - np.mean(runs, axis=0)
    lengths = np.linalg.norm(places, axis=0)
    varying = lengths > _ROUNDING_RATIO * np.abs(middle)
    shift = abs(float(np.mean(apart))) / error
    if shift > _FAR_SHIFT_LIMIT:
        return shift, error / size, 0.0
    return shift, error / size, _odds((places[:, varying] / lengths[varying]).T)


def _spread(runs: Sequence[Iterable[NDArray[Any]]]) -> tuple[float, float]:
    """Return the variance of the first run over that of the others, and `_odds`.

    It is that of the typical step; that of all steps together where no chance explains it.

    Args:
        runs: for each run one array of values for each step.
    """
    steps = [_distances(values) for values in zip(*runs, strict=False)]
    varying = [step for step in steps if step is not None]
    if len(varying) < _LEAST_STEPS_COUNT:
        return 1.0, 0.0
    distances = np.stack(varying)
    shares = distances / distances.sum(axis=1, keepdims=True)
    count = shares.shape[1]
    whole = _variance_ratio(float(distances[:, 0].sum() / distances.sum()), count)
    if whole > _FAR_SPREAD_LIMIT:
        return whole, 0.0
    return _variance_ratio(float(np.mean(shares[:, 0])), count), _odds(shares)


def _odds(parts: NDArray[np.float64]) -> float:
    """Return how often chance takes the mean of the first run as far from the mean of all.

    Where all runs draw from one distribution, any of them could have had the part of the first in
    a step, whatever the distribution is and however much steps differ. So its mean is held against
    those of runs that are picked at random in each step (a permutation test; Good, Permutation,
    Parametric, and Bootstrap Tests of Hypotheses).

    Args:
        parts: each run's share of the differences in a step, shape (steps, runs); too few steps
            say nothing about chance.
    """
    steps_count, runs_count = parts.shape
    if steps_count < _LEAST_STEPS_COUNT:
        return 0.0
    picked = np.random.default_rng(0).integers(runs_count, size=(_PICKS_COUNT, steps_count))
    others = np.mean(parts[np.arange(steps_count), picked], axis=1)
    own, middle = np.mean(parts[:, 0]), np.mean(parts)
    return float(np.mean(others <= own if own < middle else others >= own))


def _distances(values: Sequence[NDArray[Any]]) -> NDArray[np.float64] | None:
    """Return the squared distance of each run from the middle of all; None for rounding."""
    if not all(np.isfinite(run).all() for run in values):
        return None
    middle = values[0].astype(np.float64)
    for run in values[1:]:
        middle += run
    middle /= len(values)
    lengths = np.asarray([np.linalg.norm(run - middle) for run in values])
    is_told = lengths.max() > _ROUNDING_RATIO * float(np.linalg.norm(middle))
    return np.square(lengths) if is_told else None


def _variance_ratio(share: float, count: int) -> float:
    """Return the ratio of variances at which one of `count` runs is expected to have that share.

    >>> [round(_variance_ratio(share, 4), 2) for share in (1 / 12, 1 / 4, 0.443, 3 / 4)]
    [0.0, 1.0, 3.51, inf]
    """
    sharers = count - 1
    apart = sharers - count * share
    return max(0.0, sharers * count * share - 1) / apart if apart > 0.0 else float("inf")
