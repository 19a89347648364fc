"""A step as a bar of its phases, and the phases as a table."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A phase before and after; `after` is empty for a single profile."""

    phase: str
    before: str
    before_share: str
    after: str = ""
    after_share: str = ""


def bars(before: Profile, after: Profile | None) -> list[Bar]:
    """Return the step without and with the plan, on one scale."""
    known = [("before", before)] + ([("after", after)] if after else [])
    full_s = max(_sample_s(profile) for _, profile in known)
    return [
        Bar(
            name=name if after else "step",
            message=speed(profile),
            segments=_segments(profile, full_s=full_s),
        )
        for name, profile in known
    ]


def rows(before: Profile, after: Profile | None) -> list[Row]:
    """Return the phases that occur, in the order of a step, and then the total."""
    known = [before, *([after] if after else [])]
    found = [p for p in Phase if p.in_step and any(one.phase_s.get(p) for one in known)]
    table = []
    for phase in found:
        cells = [
            text
            for one in known
            for text in (
                duration(one.phase_s.get(phase, 0.0)),
                percent(one.share_ratio(phase)),
            )
        ]
        table.append(_row(phase, cells))
    table.append(_row("mean step", [c for one in known for c in (duration(one.mean_step_s), "")]))
    return table


def _row(name: str, cells: list[str]) -> Row:
    before, share, after, after_share = (*cells, "", "")[:4]
    return Row(phase=name, before=before, before_share=share, after=after, after_share=after_share)


def _sample_s(profile: Profile) -> float:
    return profile.mean_step_s / profile.sample_count


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
