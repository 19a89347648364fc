"""Numbers as positions in a picture: scales, ticks and SVG paths.

A picture is a 1000 by 1000 grid that the page stretches to the available space, with lines and
dots that keep their thickness. One picture fits both a phone and a wide screen, and all words
remain page text that wraps and can be read aloud.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor, isfinite, log, log10
from typing import TYPE_CHECKING

from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SIDE = 1000.0
_LEAST_GAP = 0.14
_ROOM = 0.08
_ROUND_RATIOS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2,
    1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis; `at` is its position as a percentage of the axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A range of numbers mapped to an axis from 0 to 1; values outside are clamped to its ends.

    >>> Scale(low=10.0, high=20.0).at(12.5), Scale(low=10.0, high=20.0).at(99.0)
    (0.25, 1.0)
    """

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return where a number lies."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def holds(self, value: float) -> bool:
        """Return whether a number lies on the scale."""
        return self.low <= value <= self.high

    def round_ticks(self, *, most: int = 5) -> list[float]:
        """Return round numbers within the scale.

        >>> Scale(low=0.0, high=34.0).round_ticks()
        [0.0, 10.0, 20.0, 30.0]
        """
        rough = (self.high - self.low) / most
        unit = 10.0 ** floor(log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [step * index for index in range(first, last + 1)]


def span(values: Iterable[float]) -> Scale:
    """Return a scale that covers all finite values, with some room at both ends."""
    known = [value for value in values if isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    room = _ROOM * (high - low) or _ROOM * abs(high) or 1.0
    return Scale(low=low - room, high=high + room)


def ratio_ticks(scale: Scale) -> list[Tick]:
    """Mark round speed-ups on a log scale, those near 1x first, so that no labels overlap.

    >>> [tick.label for tick in ratio_ticks(Scale(low=-0.1, high=0.5))]
    ['1.00x', '1.10x', '1.20x', '1.50x']
    """
    taken: list[tuple[float, float]] = []
    for ratio in sorted(_ROUND_RATIOS, key=lambda ratio: abs(log(ratio))):
        at = scale.at(log(ratio))
        free = all(abs(at - other) >= _LEAST_GAP for other, _ in taken)
        if scale.holds(log(ratio)) and free:
            taken.append((at, ratio))
    return [Tick(at=100 * at, label=times(ratio)) for at, ratio in sorted(taken)]


def ratio_span(logs: Sequence[float], *, always: Iterable[float] = ()) -> Scale:
    """Return a scale that covers the middle 96% of some logs, and all that it `always` covers."""
    ordered = sorted(logs)
    cut = len(ordered) // 50
    bulk = ordered[cut : len(ordered) - cut]
    return span([0.0, log(0.95), log(1.1), *bulk, *always])


def ratio_at(scale: Scale, ratio: float) -> float:
    """Return where a speed-up lies on a log scale, in percent.

    >>> ratio_at(Scale(low=0.0, high=1.0), exp(0.25))
    25.0
    """
    return round(100 * scale.at(log(max(ratio, exp(-20)))), 6)


def dots(points: Iterable[tuple[float, float]]) -> str:
    """Return the path of some dots at positions from 0 to 1: zero-length lines with round caps."""
    return "".join(f"M{SIDE * x:.0f} {SIDE * y:.0f}h0" for x, y in points)


def line(points: Iterable[tuple[float, float] | None]) -> str:
    """Return the path of a line through positions from 0 to 1, with a gap at each None."""
    parts, begins = [], True
    for point in points:
        if point is not None:
            parts.append(f"{'M' if begins else 'L'}{SIDE * point[0]:.0f} {SIDE * point[1]:.0f}")
        begins = point is None
    return "".join(parts)


def columns(spans: Iterable[tuple[float, float, float, float]]) -> str:
    """Return the path of upright boxes, each left, right, top and bottom from 0 to 1."""
    return "".join(
        f"M{SIDE * left:.1f} {SIDE * top:.1f}H{SIDE * right:.1f}V{SIDE * bottom:.1f}"
        f"H{SIDE * left:.1f}z"
        for left, right, top, bottom in spans
    )
