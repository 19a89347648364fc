"""The gate for fewer bits: does the plan differ no more than fewer bits must?

A floor of fewer bits is wide: under that of bfloat16 a dropped weight decay is invisible. So the
levers that do not ask for fewer bits are proved without those that do, the optimizer is given the
gradients of the script as it is and must then move the weights as it does but for rounding, and
the gradients may not be longer or shorter on average: faults make them so, rounding does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hasten.records import Gate
from hasten.verify.distances import LEAST_DISTANCE, cosines, move_ratios, stretches
from hasten.verify.gates import (
    PASS_RATIO,
    TENSOR_FACTOR,
    gross_step,
    incomparable,
    part_ratios,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.verify.recorded_run import RecordedRun

PRECISION_RATIO = 5.0
LEAST_COSINE = 0.99
_LEAST_SHARE = 1 / 16
_LOST_DISTANCE = 0.5
_COSINE_FACTOR = 2.0
_SETTLED_SHARE, _LATE_COUNT = 0.5, 1


def within_precision(
    baseline: RecordedRun,
    candidate: RecordedRun,
    floors: Sequence[RecordedRun],
    *,
    epsilon_ratio: float,
    varies: bool = False,
) -> Gate:
    """G4: gradients, losses and averages differ no more than by the precision that was asked for.

    The floors are the untouched script with weights times (1 +- epsilon_ratio), the distance of
    neighbouring numbers over their size: 2^-8 in bfloat16. In a script that `varies`, rounding is
    not the only reason that the floor takes a gradient far.
    """
    name = "G4 precision"
    if unlike := incomparable(name, baseline, candidate):
        return unlike
    if not np.isfinite(candidate.losses).all() and np.isfinite(baseline.losses).all():
        return Gate(name=name, passed=False, message="a loss is not a number")
    if unsettled := _still_overflows(candidate):
        return Gate(name=name, passed=False, message=unsettled)
    gone = candidate.overflows
    baseline, candidate, *floors = (run.without(gone) for run in (baseline, candidate, *floors))
    least = epsilon_ratio * _LEAST_SHARE
    ratios = part_ratios(
        baseline, candidate, floors, least=least, lost_distance=_LOST_DISTANCE, varies=varies
    )
    if candidate.gradients_taught:  # then the movements are the optimizer's alone: `same_update`
        ratios = {part: ratio for part, ratio in ratios.items() if "weights" not in part}
    worst = max(ratios, key=lambda part: ratios[part])
    figures = ", ".join(f"{p} {r:.2g}" for p, r in ratios.items() if "worst" not in p)
    changed = f"a change of each weight by 1/{1 / epsilon_ratio:.0f}"
    if ratios[worst] > PRECISION_RATIO:
        message = f"the {worst} differ by {ratios[worst]:.3g} times what {changed} does"
        return Gate(name=name, passed=False, message=message, distance_ratio=ratios[worst])
    if wrong := _askew(baseline, candidate, floors, epsilon_ratio):
        return Gate(name=name, passed=False, message=wrong, distance_ratio=ratios[worst])
    cosine = float(np.median(cosines(baseline, candidate)))
    message = (
        f"differs as fewer bits must: {figures} times what {changed} does, cosine of the "
        f"gradients {cosine:.4f}"
    )
    if gone:
        message += f"; {len(gone)} of {candidate.step_count} steps overflowed and were left out"
    return Gate(name=name, passed=True, message=message, distance_ratio=ratios[worst])


def _still_overflows(candidate: RecordedRun) -> str:
    """Say that steps were left out beyond the first, where the scale of the losses settles.

    One may be: the scale that is just small enough is not the same in each step.
    """
    late = [s for s in candidate.overflows if s >= candidate.step_count * _SETTLED_SHARE]
    if len(late) <= _LATE_COUNT:
        return ""
    return f"the gradients of step {late[-1] + 1} overflowed: the scale has not settled"


def _askew(
    baseline: RecordedRun,
    candidate: RecordedRun,
    floors: Sequence[RecordedRun],
    epsilon_ratio: float,
) -> str:
    """Return how the gradients differ in direction or length on average; empty if not."""
    cosine = float(np.median(cosines(baseline, candidate)))
    shaken = [float(np.median(cosines(baseline, floor))) for floor in floors]
    least = min(LEAST_COSINE, 1 - _COSINE_FACTOR * (1 - min(shaken)))
    if cosine < least:
        return f"the cosine of the gradients is {cosine:.4f}, below {least:.4f}"
    longer = float(np.median(stretches(baseline, candidate))) - 1
    stretched = max(abs(float(np.median(stretches(baseline, f))) - 1) for f in floors)
    if abs(longer) > max(epsilon_ratio, PRECISION_RATIO * stretched):
        word = "longer" if longer > 0 else "shorter"
        return f"the gradients are {word} by {abs(longer):.2g} of their size on average"
    return ""


def same_update(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun]
) -> Gate:
    """G3 for the optimizer alone: with the gradients of the baseline it moves the weights alike."""
    name = "G3 update"
    if not candidate.gradients_taught:
        message = "several optimizers share a step: none could be given the gradients of the script"
        return Gate(name=name, passed=None, message=message)
    values = move_ratios(baseline, candidate, floors, LEAST_DISTANCE)
    if gross := gross_step(baseline, candidate, floors, parts=("moves",)):
        return Gate(name=name, passed=False, message=gross, distance_ratio=float("inf"))
    ratio = max(float(np.median(values)), float(np.max(values)) / TENSOR_FACTOR)
    if ratio <= PASS_RATIO:
        message = (
            f"given the same gradients, the optimizer makes the same update: {ratio:.2g} times a "
            "one-bit perturbation"
        )
        return Gate(name=name, passed=True, message=message, distance_ratio=ratio)
    message = (
        f"given the same gradients, the optimizer makes another update: {ratio:.3g} times a "
        "one-bit perturbation"
    )
    return Gate(name=name, passed=False, message=message, distance_ratio=ratio)
