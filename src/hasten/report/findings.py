"""Findings and hot lines on the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.text import Text

from hasten.records import Outcome
from hasten.report.layout import indented, prose
from hasten.report.wording import interval
from hasten.units import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.records import Diagnosis, Finding, Place, Tuning, Workload

_SHOWN_PLACES = 2
_SHOWN_LINES = 8


def told(diagnosis: Diagnosis, tuning: Tuning | None = None) -> list[RenderableType]:
    """Show each finding: its cost and name, what was measured, what to do, and where."""
    parts: list[RenderableType] = []
    for finding in diagnosis.findings:
        line = Text(f"{cost(finding):>6}  ", "bold")
        line.append(finding.name, "bold")
        parts += [line, indented(prose(finding.message))]
        parts.append(indented(prose(remedy(finding, tuning), "cyan")))
        parts += [indented(prose(place(one), "dim")) for one in finding.places[:_SHOWN_PLACES]]
    if diagnosis.findings:
        more = f"Why, and limits: hasten findings {diagnosis.findings[0].name}"
        parts.append(prose(more, "dim"))
    return parts


def cost(finding: Finding) -> str:
    """Return the share of the step or the time that a finding costs, or a dash if it is unknown."""
    return "-" if finding.share is None else percent(finding.share.mid_ratio)


def remedy(finding: Finding, tuning: Tuning | None = None) -> str:
    """Say what to do, to the code or to the machine, and whether a lever does it."""
    if finding.lever is None:
        return f"By hand: {finding.remedy}"
    return f"{finding.remedy} {fate(finding.lever, tuning)}"


def fate(lever: str, tuning: Tuning | None) -> str:
    """Say what became of a lever that applies a remedy, as far as there was a search."""
    settings = dict(tuning.plan.settings) if tuning else {}
    if lever in settings:
        return f"The plan has {lever}={settings[lever]}."
    row = next((row for row in (tuning.levers if tuning else ()) if row.lever == lever), None)
    if row is None:
        return f"The lever {lever} does it without an edit."
    why = row.why.rstrip(".")
    if row.outcome is Outcome.SKIPPED:
        return f"The lever {lever} would do it without an edit ({why})."
    seen = why if row.speedup is None else interval(row.speedup)
    return f"The lever {lever} was tried and {row.outcome}: {seen}."


def place(where: Place) -> str:
    """Return the file, line and source of a place."""
    return f"{os.path.relpath(where.path)}:{where.line}  {where.source}".rstrip()


def lines(diagnosis: Diagnosis, workload: Workload) -> list[RenderableType]:
    """List the costliest lines of the user's code, with paths relative to where it runs."""
    parts: list[RenderableType] = []
    costliest = sorted(diagnosis.hot_lines, key=lambda hot: -hot.share_ratio)
    for hot in costliest[:_SHOWN_LINES]:
        path = os.path.relpath(hot.place.path, workload.cwd)
        line = Text(f"{percent(hot.share_ratio):>6}  ", "bold")
        line.append(f"{path}:{hot.place.line}")
        inside = f"in {hot.calls}" if hot.calls else ""
        line.append("".join(f"  {word}" for word in (hot.phase, inside) if word), "dim")
        parts.append(line)
        if hot.place.source:
            parts.append(indented(prose(hot.place.source, "cyan")))
    if len(costliest) > _SHOWN_LINES:
        parts.append(indented(prose(f"and {len(costliest) - _SHOWN_LINES} more", "dim")))
    return parts
