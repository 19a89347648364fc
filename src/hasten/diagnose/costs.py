"""Shares of a step, from seconds measured in a few dedicated steps."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from hasten.diagnose.shares import NORMAL_95
from hasten.records import LEAST_RATIO, Interval, Phase, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.diagnose.case import Case

_LEAST_CALM_RATIO = 0.05
_STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31}


def quiet_s(case: Case, *phases: Phase) -> float:
    """Return the mean seconds of `phases` in the examined steps whose operations were not timed.

    Time spent waiting for CPUs that others occupy is factored out, because operations are
    timed by the thread's CPU clock. Without any such step, the profile's figures are returned.
    """
    quiet = case.quiet
    if not quiet:
        return sum(case.profile.phase_s.get(phase, 0.0) for phase in phases)
    waits_s = case.found.get("processors.waits_s", ())
    steps = [case.steps[i] for i in quiet]
    wall_s = sum(sum(step.phase_ns.values()) for step in steps) * 1e-9  # waits may occur anywhere
    waited_s = sum(waits_s[i] for i in quiet if i < len(waits_s))
    calm_ratio = max(_LEAST_CALM_RATIO, 1 - waited_s / wall_s) if wall_s else 1.0
    spent_ns = fmean(sum(step.phase_ns.get(p, 0) for p in phases) for step in steps)
    return calm_ratio * spent_ns * 1e-9


def quiet_step_s(case: Case) -> float:
    """Return the mean seconds of an examined step in which no operation was timed."""
    return quiet_s(case, *(phase for phase in Phase if phase.in_step))


def share_of(case: Case, seconds: Sequence[float]) -> Interval | None:
    """Return the share of a step that some seconds make up, each measured in a different step.

    Returns:
        The mean with its 95% interval by Student's t; None for fewer than two measurements,
        if the interval includes zero, or if the share is too small to report.
    """
    step_s, count = quiet_step_s(case), len(seconds)
    if count < 2 or step_s <= 0:
        return None
    ratios = [min(1.0, one / step_s) for one in seconds]
    middle = fmean(ratios)
    error = _STUDENT_95.get(count, NORMAL_95) * stdev(ratios) / sqrt(count)
    if middle < LEAST_RATIO or middle - error <= 0:
        return None
    high = min(1.0, middle + error)
    return Interval(low_ratio=middle - error, mid_ratio=middle, high_ratio=high)


def operation_s(case: Case, kind: str) -> Sequence[float]:
    """Return the seconds of one kind of operation in each step whose operations were timed."""
    seconds: dict[str, Sequence[float]] = case.found.get("operations.seconds", {})
    return seconds.get(kind) or [0.0] * len(case.found.get("operations.steps", ()))


def places_of(lines: Iterable[Any]) -> tuple[Place, ...]:
    """Return the places for pairs of path and line."""
    return tuple(Place(path=path, line=line) for path, line in lines)


def places_in(case: Case, name: str, *kinds: str) -> tuple[Place, ...]:
    """Return the lines of the user's code where an examiner saw some kinds of work, once each.

    Args:
        case: what was seen.
        name: the key in `case.found` with the lines of each kind, such as `operations.places`.
        kinds: of operations, or of the work on a batch.
    """
    told = case.found.get(name, {})
    lines = {tuple(line): None for kind in kinds for line in told.get(kind, ())}
    return places_of(lines)
