"""How far two recorded trainings lie apart, tensor by tensor, in units of a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hasten.verify.recorded_run import RecordedRun

    Table = NDArray[np.float64]
    Averages = Sequence[tuple[str, NDArray[np.float32]]]

LEAST_DISTANCE = 4 * 2.0**-23
_LOST_SHARE = 1e-3
_DRIFTED_DISTANCE = 1e-4


def distances(
    left: Sequence[NDArray[np.float32]], right: Sequence[NDArray[np.float32]], sizes: Sequence[int]
) -> Table:
    """Return relative distances, shape (steps, tensors); infinite where a value is no number."""
    borders = np.cumsum(sizes)[:-1]
    table = [
        [distance(a, b) for a, b in zip(np.split(x, borders), np.split(y, borders), strict=True)]
        for x, y in zip(left, right, strict=False)
    ]
    return np.asarray(table, dtype=np.float64).reshape(len(table), len(sizes))


def distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Return the distance of two tensors over the size of the second."""
    reference = float(np.linalg.norm(right.astype(np.float64)))
    if reference == 0.0:
        return 0.0 if not np.any(left) else float("inf")
    found = float(np.linalg.norm(left.astype(np.float64) - right)) / reference
    return found if np.isfinite(found) else float("inf")


def quartile(table: Table) -> Table:
    """Return the lower quartile over the steps: a kink is in some of them, a fault in all."""
    return np.asarray(np.quantile(table, 0.25, axis=0, method="lower"), dtype=np.float64)


def floor_of(tables: Sequence[Table], least: float = LEAST_DISTANCE) -> Table:
    """Return the largest of the runs' medians over their steps.

    A run that diverged to infinity permits nothing.
    """
    finite = [np.where(np.isfinite(table), table, 0.0) for table in tables]
    medians = [np.median(table, axis=0) for table in finite]
    return np.asarray(np.maximum(np.max(medians, axis=0), least), dtype=np.float64)


def own_distances(baseline: RecordedRun, floors: Sequence[RecordedRun]) -> tuple[float, float]:
    """Return how far the floor takes the gradients and the movements of a typical tensor."""
    parts = (_apart(part, baseline, *floors) for part in ("gradients", "moves"))
    gradients, moves = (float(np.median(floor_of(tables))) for tables in parts)
    return gradients, moves


def _apart(part: str, baseline: RecordedRun, *runs: RecordedRun) -> list[Table]:
    """Return the distances of the gradients or moves of some runs from those of the baseline."""
    own, sizes = getattr(baseline, part), baseline.sizes
    return [distances(getattr(run, part), own, sizes) for run in runs]


def gradient_ratios(
    baseline: RecordedRun,
    candidate: RecordedRun,
    floors: Sequence[RecordedRun],
    least: float,
    *,
    lost_distance: float = np.inf,
    varies: bool = False,
) -> Table:
    """Return, for each tensor, how many times further off it is than the floor takes it.

    Some gradients are nothing but rounding: that of a bias before a batch norm is zero. Where the
    floor takes one further than `lost_distance`, it only has to stay a small share of the whole.
    In a script that `varies`, the floor may do so to other gradients; there either test will do.
    """
    table, *shaken = _apart("gradients", baseline, candidate, *floors)
    floor = floor_of(shaken, least)
    shares = quartile(_shares(candidate, baseline)) / _LOST_SHARE
    plain = quartile(table) / floor
    lost = np.minimum(shares, plain) if varies else shares
    ratios = np.where(floor > lost_distance, lost, plain)
    return np.asarray(ratios, dtype=np.float64)


def _shares(candidate: RecordedRun, baseline: RecordedRun) -> Table:
    """Return the size of each gradient over that of all gradients of the baseline."""
    borders = np.cumsum(baseline.sizes)[:-1]
    table = []
    for left, right in zip(candidate.gradients, baseline.gradients, strict=False):
        whole = max(float(np.linalg.norm(right.astype(np.float64))), 1e-30)
        parts = np.split(left.astype(np.float64), borders)
        table.append([float(np.linalg.norm(part)) / whole for part in parts])
    return np.asarray(table, dtype=np.float64).reshape(len(table), len(baseline.sizes))


def move_ratios(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun], least: float
) -> Table:
    """Return these ratios for movements: the cleanest step, and the quartile beyond gradients.

    An optimizer remembers, so movements may differ as far as any gradient did.
    """
    table, *shaken = _apart("moves", baseline, candidate, *floors)
    floor = floor_of(shaken, least)
    explained: Table = np.zeros(len(baseline.sizes))
    if not candidate.gradients_taught:
        (gradients,) = _apart("gradients", baseline, candidate)
        explained = np.max(np.where(np.isfinite(gradients), gradients, 0.0), axis=0)
    cleanest = np.min(table, axis=0) / floor
    beyond = quartile(table) / np.maximum(floor, explained)
    return np.asarray(np.maximum(cleanest, beyond), dtype=np.float64)


def loss_ratio(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun], least: float
) -> float:
    """Return this ratio for the losses of the taught steps."""
    count = baseline.forced_losses_count
    if not count:
        return 0.0
    own, other = (np.asarray(run.losses[:count], np.float64) for run in (baseline, candidate))
    known = np.isfinite(own)
    if not known.any() or not np.array_equal(own[~known], other[~known], equal_nan=True):
        return float("inf")
    own, scale = own[known], np.maximum(np.abs(own[known]), 1e-12)
    apart = np.abs(other[known] - own) / scale
    shaken = [
        (np.abs(np.asarray(floor.losses[:count])[known] - own) / scale)[:, None]
        for floor in floors
        if len(floor.losses) >= count
    ]
    floor = floor_of(shaken, least) if shaken else np.asarray([least])
    apart = np.where(np.isfinite(apart), apart, np.inf)
    return float(np.quantile(apart, 0.25, method="lower") / floor[0])


def average_ratios(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun], least: float
) -> Table:
    """Return these ratios for averages that follow the training; none where there are none.

    These tensors have no names, so each is compared with the nearest of its shape.
    """
    own = _nearest(baseline.averages, candidate.averages)
    shaken = [_nearest(baseline.averages, floor.averages)[None] for floor in floors]
    if not own.size:
        return own
    return np.asarray(own / floor_of(shaken, least), dtype=np.float64)


def _nearest(baseline: Averages, other: Averages) -> Table:
    found = []
    for shape, values in baseline:
        known = [rest for name, rest in other if name == shape]
        found.append(min((distance(rest, values) for rest in known), default=np.inf))
    return np.asarray(found, dtype=np.float64)


def cosines(baseline: RecordedRun, candidate: RecordedRun) -> Table:
    """Return the cosine between the gradients of each taught step; 1 where both are nothing."""
    found = []
    for left, right in zip(candidate.gradients, baseline.gradients, strict=False):
        a, b = left.astype(np.float64), right.astype(np.float64)
        product = float(np.linalg.norm(a) * np.linalg.norm(b))
        found.append(float(a @ b) / product if product else float(not (a.any() or b.any())))
    return np.nan_to_num(np.asarray(found, dtype=np.float64), nan=-1.0)


def stretches(baseline: RecordedRun, candidate: RecordedRun) -> Table:
    """Return how long the gradients of each taught step are along those of the baseline."""
    found = []
    for left, right in zip(candidate.gradients, baseline.gradients, strict=False):
        a, b = left.astype(np.float64), right.astype(np.float64)
        square = float(b @ b)
        found.append(float(a @ b) / square if square else 1.0)
    return np.asarray(found, dtype=np.float64)


def alike(first: RecordedRun, *others: RecordedRun) -> tuple[RecordedRun, ...]:
    """Return runs cut to the steps in which all follow the same course, `first` in front.

    A line search may compute a different number of losses if one bit differs: what follows is
    no longer the same computation. Such an optimizer also keeps state that is not taught, so the
    runs part long before a count shows it. Nor is it the same computation once a run that is fed
    the batches of `first` has used them up. Of scripts whose weights nobody sees (no module and
    no optimizer holds them) only the losses can be compared.
    """
    count = min(run.step_count for run in (first, *others)) if first.sizes else 0
    for run in others if count else ():
        fed = run.fed_step_count if first.batches else None
        count = min(count, _parted(first, run), fed or count)
    if count and any(run.losses_at != first.losses_at for run in others):
        count = min(count, *(_drifted(first, run) for run in others))
    return tuple(run.until(count) for run in (first, *others))


def _parted(first: RecordedRun, other: RecordedRun) -> int:
    """Return the steps before the first one with a different number of losses."""
    pairs = enumerate(zip(first.losses_at, other.losses_at, strict=False))
    return next((step for step, (own, its) in pairs if own != its), first.step_count)


def _drifted(first: RecordedRun, other: RecordedRun) -> int:
    """Return the steps before the first one whose gradients differ by more than rounding."""
    if other.gradients_taught:
        return first.step_count
    pairs = enumerate(zip(other.gradients, first.gradients, strict=False))
    apart = (step for step, (its, own) in pairs if distance(its, own) > _DRIFTED_DISTANCE)
    return next(apart, first.step_count)
