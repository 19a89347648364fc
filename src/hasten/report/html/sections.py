"""The textual parts of the page: tiles, findings, lines, gates, a diff."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hasten.records import Phase
from hasten.report import pages, wording
from hasten.report.bars import COLOURS
from hasten.report.findings import fate
from hasten.report.steps import bottleneck, rate, shown_step_s, speed
from hasten.units import counted, duration, percent, times

if TYPE_CHECKING:
    from hasten.records import (
        Diagnosis,
        Finding,
        Place,
        Profile,
        Proof,
        Tuning,
        Workload,
    )

_TICKED = re.compile(r"`([^`]+)`")


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


def bars(before: Profile, after: Profile | None) -> list[SimpleNamespace]:
    """Return the step without and with the plan as bars of phases, on one scale."""
    known = [("before", before), ("after", after)] if after else [("step", before)]
    full_s = max(profile.mean_step_s / profile.sample_count for _, profile in known)
    return [
        SimpleNamespace(
            name=name,
            message=speed(profile, is_compared=after is not None),
            segments=_segments(profile, full_s=full_s),
        )
        for name, profile in known
    ]


def _segments(profile: Profile, *, full_s: float) -> list[SimpleNamespace]:
    found = []
    for phase in (p for p in Phase if p.in_step and profile.phase_s.get(p)):
        seconds, share = profile.phase_s[phase], percent(profile.share_ratio(phase))
        found.append(
            SimpleNamespace(
                phase=phase,
                width=100 * seconds / profile.sample_count / full_s,
                share=share,
                message=f"{phase}: {duration(seconds)}, {share} of the step",
            )
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


def findings(
    diagnosis: Diagnosis, workload: Workload, tuning: Tuning | None
) -> list[SimpleNamespace]:
    """Return the findings as cards; `width` has the ends and the middle of the share's interval."""
    told = diagnosis.findings
    largest = max((found.share.high_ratio for found in told if found.share), default=1.0)
    return [_card(found, workload, tuning, largest or 1.0) for found in told]


def hot_lines(diagnosis: Diagnosis, workload: Workload) -> list[SimpleNamespace]:
    """Return the lines of the user's code that cost time."""
    told = diagnosis.hot_lines
    largest = max((hot.share_ratio for hot in told), default=1.0)
    return [
        SimpleNamespace(
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


def _card(
    found: Finding, workload: Workload, tuning: Tuning | None, largest: float
) -> SimpleNamespace:
    share, ends, width = "", "", []
    if found.share is not None:
        ratios = (found.share.low_ratio, found.share.mid_ratio, found.share.high_ratio)
        low, share, high = map(percent, ratios)
        ends = f"{low} to {high}"
        width = [100 * max(0.0, ratio) / largest for ratio in ratios]
    return SimpleNamespace(
        name=found.name,
        title=pages.title(found.name),
        share=share,
        is_of_all=found.is_of_all,
        ends=ends,
        width=width,
        message=found.message,
        remedy=found.remedy,
        help=fate(found.lever, tuning) if found.lever else "By hand.",
        lines=[
            SimpleNamespace(place=_path(place, workload), source=place.source)
            for place in found.places
        ],
        more=f"hasten findings {found.name}",
    )


def _path(place: Place, workload: Workload) -> str:
    """Return file and line, relative to the working folder if the file is inside it."""
    inside = os.path.relpath(place.path, workload.cwd)
    return f"{place.path if inside.startswith('..') else inside}:{place.line}"
