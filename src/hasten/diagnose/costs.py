"""Shares of a step, from seconds measured in a few dedicated steps."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from hasten.diagnose.shares import NORMAL_95
from hasten.records import LEAST_RATIO, Interval, Phase, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.diagnose.case import Case

LEAST_MEASURED_COUNT = 2
"""Steps below which a share has no interval."""
_LEAST_CALM_RATIO = 0.05
_SELDOM_RATIO, _WHOLE_COUNT = 0.5, 10
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
    span_s = sum(case.spans_s[i] for i in quiet)  # waits may occur anywhere
    waited_s = sum(waits_s[i] for i in quiet if i < len(waits_s))
    calm_ratio = max(_LEAST_CALM_RATIO, 1 - waited_s / span_s) if span_s else 1.0
    spent_ns = fmean(sum(step.phase_ns.get(p, 0) for p in phases) for step in steps)
    return calm_ratio * spent_ns * 1e-9


def quiet_step_s(case: Case) -> float:
    """Return the mean seconds of an examined step in which no operation was timed."""
    return quiet_s(case, *(phase for phase in Phase if phase.in_step))


def share_of(case: Case, seconds: Sequence[float]) -> Interval | None:
    """Return the share of a step that some seconds make up, each measured in a different step.

    It is the mean with its 95% interval by Student's t; None for fewer than two measurements, if
    the interval includes zero, or if the share is too small to report.
    """
    step_s, count = quiet_step_s(case), len(seconds)
    if count < LEAST_MEASURED_COUNT or step_s <= 0:
        return None
    ratios = [min(1.0, one / step_s) for one in seconds]
    middle = fmean(ratios)
    error = _STUDENT_95.get(count, NORMAL_95) * stdev(ratios) / sqrt(count)
    if middle < LEAST_RATIO or middle - error <= 0:
        return None
    high = min(1.0, middle + error)
    return Interval(low_ratio=middle - error, mid_ratio=middle, high_ratio=high)


def exposed_share(
    case: Case, working_s: Sequence[float], waiting_s: Sequence[float]
) -> Interval | None:
    """Return the share of a step that some calls of the loop cost.

    An accelerator works on meanwhile. A wait for it costs no more than the time for which it then
    has nothing to do, until the loop comes to its next work; nor does work of the host, unless
    the accelerator waits for the host anyway.

    In these calls the host worked for `working_s` of each examined step, and waited for an
    accelerator for `waiting_s`.
    """
    spent_s = [sum(each) for each in zip(working_s, waiting_s, strict=True)]
    idle_s = _idle_s(case)
    ahead = case.profile.is_host_ahead
    if idle_s is None:
        return None if ahead else case.share(spent_s)
    if not ahead:
        idle_s = [max(each) for each in zip(idle_s, working_s, strict=False)]
    cost_s = [min(each) for each in zip(spent_s, idle_s, strict=False)]
    # In the first steps examiners keep the host so busy that it never waits.
    return quiet_share(case, cost_s, first_index=len(cost_s) // 2)


def quiet_share(
    case: Case, seconds: Sequence[float], *, first_index: int = 0, of_all: bool = False
) -> Interval | None:
    """Return the same as `case.share`, leaving out the steps whose operations were timed.

    With `of_all`, the share of all time, as `case.share_of_all`.
    """
    quiet = [at for at in case.quiet if first_index <= at < len(seconds)]
    left = replace(case, steps=tuple(case.steps[at] for at in quiet))
    return (left.share_of_all if of_all else left.share)([seconds[at] for at in quiet])


def _idle_s(case: Case) -> Sequence[float] | None:
    """Return for how long the host left an accelerator without work in each examined step.

    A loop that waits for its workers would wait for them anyway.
    """
    idle_s = case.found.get("device.idle_s")
    if not idle_s or case.traits.worker_count:
        return idle_s and idle_s[Phase.OTHER]
    return [sum(each) for each in zip(idle_s[Phase.OTHER], idle_s[Phase.DATA], strict=True)]


def operation_s(case: Case, kind: str) -> Sequence[float]:
    """Return the seconds of one kind of operation in each step whose operations were timed."""
    seconds: dict[str, Sequence[float]] = case.found.get("operations.seconds", {})
    return seconds.get(kind) or [0.0] * len(case.found.get("operations.steps", ()))


def calls_a_step(count: float) -> str:
    """Say how many calls there are per step.

    >>> calls_a_step(12.3), calls_a_step(2.5), calls_a_step(1), calls_a_step(0.1)
    ('12 calls a step', '2.5 calls a step', 'one call a step', 'one call in 10 steps')
    """
    if 0 < count <= _SELDOM_RATIO:
        return f"one call in {1 / count:.0f} steps"
    told = f"{count:.0f}" if count >= _WHOLE_COUNT else f"{count:.2g}"
    return "one call a step" if told == "1" else f"{told} calls a step"


def places_of(lines: Iterable[Any]) -> tuple[Place, ...]:
    """Return the places for pairs of path and line."""
    return tuple(Place(path=path, line=line) for path, line in lines)


def places_in(case: Case, name: str, *kinds: str) -> tuple[Place, ...]:
    """Return the lines on which an examiner saw some kinds of work, once each.

    Under this name `case.found` has the lines of each kind of operation, or of work on a batch.
    """
    told = case.found.get(name, {})
    lines = {tuple(line): None for kind in kinds for line in told.get(kind, ())}
    return places_of(lines)
