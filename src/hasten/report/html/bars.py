"""A step as a bar of its phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.records import Phase
from hasten.report.steps import speed
from hasten.units import duration, percent

if TYPE_CHECKING:
    from hasten.records import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One phase in a bar; `width` is a percentage of the whole line."""

    phase: str
    width: float
    share: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One step; the lengths of bars on one scale show how much shorter it has become."""

    name: str
    message: str
    segments: tuple[Segment, ...]


def bars(before: Profile, after: Profile | None) -> list[Bar]:
    """Return the step without and with the plan, on one scale."""
    known = [("before", before)] + ([("after", after)] if after else [])
    full_s = max(profile.mean_step_s / profile.sample_count for _, profile in known)
    return [
        Bar(
            name=name if after else "step",
            message=speed(profile, is_compared=after is not None),
            segments=_segments(profile, full_s=full_s),
        )
        for name, profile in known
    ]


def _segments(profile: Profile, *, full_s: float) -> tuple[Segment, ...]:
    found = []
    for phase in (p for p in Phase if p.in_step and profile.phase_s.get(p)):
        seconds = profile.phase_s[phase]
        share = profile.share_ratio(phase)
        width = seconds / profile.sample_count / full_s
        found.append(
            Segment(
                phase=phase,
                width=100 * width,
                share=percent(share),
                message=f"{phase}: {duration(seconds)}, {percent(share)} of the step",
            )
        )
    return tuple(found)
