"""The textual parts of the page: tiles, findings, lines, gates, a diff."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hasten.report import doctor, pages, wording
from hasten.report.bars import COLOURS
from hasten.report.findings import fate
from hasten.report.steps import bottleneck, rate, shown_step_s
from hasten.units import counted, duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import (
        Diagnosis,
        Finding,
        Interval,
        Machine,
        Place,
        Profile,
        Proof,
        Tuning,
        Workload,
    )

_TICKED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the user's source, with its path as the user would write it."""

    place: str
    source: str
    share: str = ""
    width: float = 0.0
    phase: str = ""
    colour: str = ""
    calls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A finding.

    Attributes:
        is_of_all: its share is of all time, not of the step.
        width: its share and the ends of the interval, as percentages of the largest share; empty
            if there is none.
        help: who applies the remedy: the plan, a lever, or only the user.
        more: the command that shows more.
    """

    name: str
    title: str
    share: str
    is_of_all: bool
    ends: str
    width: tuple[float, ...]
    message: str
    remedy: str
    help: str
    lines: tuple[Line, ...]
    more: str


def tiles(tuning: Tuning) -> list[tuple[str, str, str]]:
    """Return the figures of a tuning that deserve large type: a name, a value and a note."""
    before, after = tuning.baseline, tuning.tuned
    shown = [("a step" if after is None else "a step, before", before)]
    shown += [] if after is None else [("a step, after", after)]
    found = []
    for name, one in shown:
        step_s = shown_step_s(one, is_compared=after is not None)
        found.append((name, duration(step_s), rate(one, step_s)))
    if tuning.speedup is not None and tuning.plan.settings:
        speedup = tuning.speedup
        ends = f"95% interval {times(speedup.low_ratio)} to {times(speedup.high_ratio)}"
        alone = "later passes" if tuning.passes and tuning.passes.longer_s else "steps alone"
        name = "fresh launches" if tuning.passes is None else f"fresh launches, {alone}"
        found.append((name, times(speedup.mid_ratio), ends))
    if tuning.plan.settings:
        effect = tuning.proof.effect
        found.append(("the maths", effect, wording.EFFECTS[effect]))
    cost = tuning.cost
    found.append(
        ("the search took", duration(cost.wall_s), counted(cost.launch_count, "launch", "launches"))
    )
    return found


def where(before: Profile, after: Profile | None) -> list[str]:
    """Say which phase takes up most of a step, before and after."""
    if after is None:
        return [bottleneck(before)]
    return [
        f"Baseline: {bottleneck(before)}",
        f"Tuned: {bottleneck(after)}",
        "Both were watched in turn on fresh launches, in the blocks of the confirmation.",
    ]


def findings(diagnosis: Diagnosis | None, workload: Workload, tuning: Tuning | None) -> list[Card]:
    """Return the findings as cards.

    Args:
        diagnosis: None if there was no diagnosis.
        workload: what the paths are relative to.
        tuning: None if no search was run.
    """
    told = diagnosis.findings if diagnosis else ()
    largest = max((found.share.high_ratio for found in told if found.share), default=1.0)
    return [_card(found, workload, tuning, largest or 1.0) for found in told]


def hot_lines(diagnosis: Diagnosis | None, workload: Workload) -> list[Line]:
    """Return the lines of the user's code that cost time."""
    told = diagnosis.hot_lines if diagnosis else ()
    largest = max((hot.share_ratio for hot in told), default=1.0)
    return [
        Line(
            place=_path(hot.place, workload),
            source=hot.place.source,
            share=percent(hot.share_ratio),
            width=100 * hot.share_ratio / largest,
            phase=hot.phase,
            colour=hot.phase if hot.phase in COLOURS else "none",
            calls=hot.calls,
        )
        for hot in told
    ]


def maths(proof: Proof) -> dict[str, Any] | None:
    """Return the gates, each a verdict, a name and a message; None if nothing was to prove."""
    if not proof.gates and not proof.baseline_losses:
        return None
    gates = [(wording.PASSED[gate.passed], gate.name, gate.message) for gate in proof.gates]
    return {"message": wording.maths(proof), "gates": gates}


def machine(facts: Machine) -> list[tuple[str, str]]:
    """Return what is known about the machine; values that share a name are joined by newlines."""
    found: list[tuple[str, str]] = []
    for name, value in doctor.rows(facts):
        if name or not found:
            found.append((name, value))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{value}")
    return [(name, value) for name, value in found if value]


def code(sentence: str) -> Markup:
    """Mark up text between backticks as code; the whole sentence is escaped.

    >>> code("`hasten run` knows <b>")
    Markup('<code>hasten run</code> knows &lt;b&gt;')
    """
    return Markup(_TICKED.sub(r"<code>\1</code>", str(escape(sentence))))


def diff(edits: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff, each with its kind: add, del, head or empty."""
    kinds = {"+++": "head", "---": "head", "@@ ": "head", "+": "add", "-": "del"}
    return [
        (next((kind for lead, kind in kinds.items() if line.startswith(lead)), ""), line)
        for line in edits.splitlines()
    ]


def _card(found: Finding, workload: Workload, tuning: Tuning | None, largest: float) -> Card:
    share = found.share
    return Card(
        name=found.name,
        title=pages.title(found.name),
        share="" if share is None else percent(share.mid_ratio),
        is_of_all=found.is_of_all,
        ends="" if share is None else _ends(share),
        width=() if share is None else tuple(100 * max(0.0, r) / largest for r in _ratios(share)),
        message=found.message,
        remedy=found.remedy,
        help=fate(found.lever, tuning) if found.lever else "By hand.",
        lines=tuple(
            Line(place=_path(place, workload), source=place.source) for place in found.places
        ),
        more=pages.command(found.name),
    )


def _ratios(share: Interval) -> Sequence[float]:
    return (share.low_ratio, share.mid_ratio, share.high_ratio)


def _ends(share: Interval) -> str:
    return f"{percent(share.low_ratio)} to {percent(share.high_ratio)}"


def _path(place: Place, workload: Workload) -> str:
    """Return file and line, relative to the working folder if the file is inside it."""
    inside = os.path.relpath(place.path, workload.cwd)
    return f"{place.path if inside.startswith('..') else inside}:{place.line}"
