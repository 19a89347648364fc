"""What happened over time: the phases of each step, and the losses of the proof."""

from __future__ import annotations

from math import isfinite
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hasten.records import Phase
from hasten.report.html import shapes
from hasten.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Proof, Step

_FULL_FACTOR = 4.0
_LISTED_COUNT = 8
_FILLED = 0.86


def course(steps: Sequence[Step]) -> SimpleNamespace | None:
    """Return the phases of each watched step; None for fewer than two steps.

    A step of more than four times the median is cut off at the top, so that it does not flatten all
    the others.
    """
    if len(steps) < 2 or not any(step.wall_s for step in steps):
        return None
    walls = [step.wall_s for step in steps]
    middle_s = median(walls)
    full_s = 1.05 * min(max(walls), _FULL_FACTOR * middle_s or max(walls))
    shown = [_column(i, step, count=len(steps)) for i, step in enumerate(steps)]
    order = sorted(range(len(steps)), key=lambda i: -walls[i])
    scale = shapes.Scale(low=0.0, high=full_s)
    ticks = [
        shapes.Tick(at=100 * scale.at(s), label=duration(s) if s else "0")
        for s in scale.round_ticks(most=4)
    ]
    return SimpleNamespace(
        layers=_layers(steps, full_s=full_s),
        columns=shown,
        width=shapes.SIDE / len(steps),
        slowest=[shown[i] for i in order[:_LISTED_COUNT]],
        ticks=ticks,
        median_at=100 * scale.at(middle_s),
        message=_course_in_words(walls, middle_s, full_s),
    )


def losses(proof: Proof) -> SimpleNamespace | None:
    """Return the losses of the script and of the plan; None if they were not recorded."""
    own, other = proof.baseline_losses, proof.candidate_losses
    if len(own) < 2 or not any(map(isfinite, (*own, *other))):
        return None
    last = max(1, len(own) - 1)
    scale = shapes.span([*own, *other])

    def path(values: Sequence[float]) -> str:
        return shapes.line(
            (i / last, 1 - scale.at(v)) if isfinite(v) else None for i, v in enumerate(values)
        )

    return SimpleNamespace(
        baseline=path(own),
        candidate=path(other),
        x_ticks=[
            shapes.Tick(at=100 * i / last, label=str(i + 1))
            for i in sorted({0, *range(7, len(own) - 2, 8), last})
        ],
        y_ticks=[
            shapes.Tick(at=100 * scale.at(v), label=f"{v:.4g}") for v in scale.round_ticks(most=4)
        ],
        taught_count=proof.taught_count,
        taught_at=100 * min(1.0, max(0, proof.taught_count - 1) / last),
        message=_losses_in_words(own, other),
        table=[
            (i + 1, f"{a:.7g}", f"{b:.7g}")
            for i, (a, b) in enumerate(zip(own, other, strict=False))
        ],
    )


def _layers(steps: Sequence[Step], *, full_s: float) -> list[SimpleNamespace]:
    """Return one layer per phase, the first phase of a step at the bottom."""
    width, heights = 1.0 / len(steps), [0.0] * len(steps)
    whole_s = sum(step.wall_s for step in steps)
    found = []
    for phase in (p for p in Phase if p.in_step and any(s.phase_ns.get(p) for s in steps)):
        boxes, spent_s = [], 0.0
        for i, step in enumerate(steps):
            seconds = step.phase_ns.get(phase, 0) * 1e-9
            spent_s += seconds
            top = min(1.0, heights[i] + seconds / full_s)
            if top > heights[i]:
                boxes.append((i * width, (i + _FILLED) * width, 1 - top, 1 - heights[i]))
            heights[i] = top
        message = f"{phase} {percent(spent_s / whole_s)}"
        found.append(SimpleNamespace(phase=phase, path=shapes.columns(boxes), message=message))
    return found


def _column(index: int, step: Step, *, count: int) -> SimpleNamespace:
    phases = [(p, ns * 1e-9) for p, ns in step.phase_ns.items() if Phase(p).in_step and ns]
    phases.sort(key=lambda item: -item[1])
    return SimpleNamespace(
        left=shapes.SIDE * index / count,
        number=index + 1,
        wall=duration(step.wall_s),
        phases=", ".join(f"{phase} {duration(s)}" for phase, s in phases),
    )


def _course_in_words(walls: Sequence[float], middle_s: float, full_s: float) -> str:
    said = f"{len(walls)} steps, {duration(middle_s)} at the median, "
    said += f"{duration(min(walls))} to {duration(max(walls))}."
    if beyond := sum(wall > full_s for wall in walls):
        said += f" {beyond} of them reach{'es' if beyond == 1 else ''} beyond the picture."
    return said


def _losses_in_words(own: Sequence[float], other: Sequence[float]) -> str:
    pairs = [(a, b) for a, b in zip(own, other, strict=False) if isfinite(a) and isfinite(b)]
    if not pairs:
        return "No step has a loss that is a number in both runs."
    apart = max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in pairs)
    begin = f"From {pairs[0][0]:.4g} to {pairs[-1][0]:.4g} over {len(own)} steps. "
    if not apart:
        return begin + "Both curves are the same, to the last bit."
    return begin + f"Under the plan a loss differs by {apart:.2g} of its value at most."
