"""The report that fits on a 25-line terminal: the answer last, then what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from hasten.records import Entry, Outcome
from hasten.report import findings, text
from hasten.report.layout import heading, indented, prose, section
from hasten.report.steps import shown_step_s
from hasten.report.wording import (
    EFFECTS,
    command_line,
    continued,
    interval,
    report_line,
)
from hasten.units import counted, duration, percent, step_parts, times

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from hasten.records import LeverReport, Tuning

_LINE_COUNT, _WIDTH = 25, 80
_FINDING_COUNT, _LEAST_ROW_COUNT = 3, 2
_FRAME_COUNT = 7  # the heading, two titles and four blank lines
_OUTCOMES = (Outcome.KEPT, Outcome.REJECTED, Outcome.DROPPED, Outcome.FAILED)
_EDITABLE = (Entry.SCRIPT, Entry.MODULE)


def render_summary(tuning: Tuning, *, plan_path: Path) -> Group:
    """Show what a user wants to know first; everything else is in the full report."""
    slow = _slow(tuning)
    facts = [_cut(f"{name:<8} {value}") for name, value in _facts(tuning)]
    answer = [prose(text.headline(tuning), "bold"), *map(prose, _beneath(tuning))]
    use = [indented(prose(command, "bold cyan")) for command in _commands(tuning, plan_path)]
    fixed_count = _FRAME_COUNT + len([*slow, *facts, *answer, *use])
    tried = _tried(tuning.levers, max(_LEAST_ROW_COUNT, _LINE_COUNT - fixed_count))
    return Group(
        heading(command_line("tune", tuning.workload)),
        *section("What makes it slow", *slow),
        *section("What was tried", *tried),
        Text(),
        *facts,
        Text(),
        *answer,
        *use,
    )


def _cut(sentence: str, style: str = "") -> Text:
    return Text(sentence, style, no_wrap=True, overflow="ellipsis")


def _slow(tuning: Tuning) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for finding in tuning.diagnosis.findings[:_FINDING_COUNT]:
        line = _cut(f"{findings.cost(finding):>5}  ", "bold")
        rows.append(line.append(finding.name).append(f"  {finding.message}", "dim"))
    return rows


def _tried(levers: Sequence[LeverReport], most_count: int) -> list[RenderableType]:
    """Return a line for each setting that was tried, the kept ones first."""
    rows = [row for outcome in _OUTCOMES for row in levers if row.outcome is outcome]
    shown = rows if len(rows) <= most_count else rows[: most_count - 1]
    names = [text.setting(row) for row in shown]
    width = max(map(len, names), default=0)
    lines: list[RenderableType] = []
    for name, row in zip(names, shown, strict=True):
        line = _cut(f"{row.outcome:<8}  ", text.STYLES.get(row.outcome, ""))
        gain = row.why if row.speedup is None else interval(row.speedup)
        lines.append(line.append(f"{name:<{width}}  {gain}", "default"))
    if len(shown) < len(rows):
        lines.append(_cut(f"and {len(rows) - len(shown)} more", "dim"))
    return lines


def _facts(tuning: Tuning) -> list[tuple[str, str]]:
    """Return the step before and after, the effect on the numbers, and the cost of the search."""
    before_s = shown_step_s(tuning.baseline, is_compared=tuning.tuned is not None)
    then = "" if tuning.tuned is None else f" before, {duration(tuning.tuned.step_s)} after"
    parts = step_parts(tuning.traits.step_batch_count, tuning.traits.optimizer.step_count)
    held = f" ({parts})" if parts else ""
    rows = [("step", f"{duration(before_s)}{then}{held}")]
    if tuning.plan.settings:
        effect, gates = tuning.proof.effect, tuning.proof.gates
        passed_count = sum(gate.passed is True for gate in gates)
        proved = f"; {passed_count} of {len(gates)} gates passed" if gates else "; not proved"
        rows.append(("numbers", f"{effect}: {EFFECTS[effect]}{proved}"))
    if tuning.assumed:
        rows.append(("assumed", ", ".join(tuning.assumed)))
    ratio = tuning.detectable_ratio
    seen = "" if ratio is None else f"; smallest detectable change {percent(ratio)}"
    cost = tuning.cost
    rows.append(
        (
            "search",
            f"{duration(cost.wall_s)}, {counted(cost.launch_count, 'launch', 'launches')}{seen}",
        )
    )
    return rows


def _beneath(tuning: Tuning) -> list[str]:
    """Return the few sentences below the headline."""
    if not tuning.plan.settings:
        said = f"{text.reasons(tuning.levers)} The full report has the reason for each."
        return [*text.circumstances(tuning), said]
    rows = text.circumstances(tuning)
    if tuning.speedup is not None:
        ends = f"{times(tuning.speedup.low_ratio)} to {times(tuning.speedup.high_ratio)}"
        figure = f"Training steps in fresh launches, 95% interval {ends}."
        if tuning.passes is not None and tuning.passes.longer_s:
            first, later = tuning.passes.first_ratio, tuning.speedup
            figure = f"The first pass {times(first)}, later ones {interval(later)}"
            figure += " in fresh launches."
        elif tuning.passes is not None:
            figure = f"Training steps alone {interval(tuning.speedup)} in fresh launches."
        rows.append(figure)
    return [*rows, *text.compared(tuning), f"Plan: {tuning.plan}"]


def _commands(tuning: Tuning, plan_path: Path) -> list[str]:
    """Return what to type next, the full report last; no script is edited without a figure."""
    report = report_line(tuning.workload, plan_path)
    full = f"{report} --full"
    if not (tuning.plan.settings and tuning.proof.holds):
        return [full]
    run = continued(command_line("run", tuning.workload, plan_path=plan_path), width=_WIDTH - 2)
    edits = [f"{report} --edits | patch -p1"] if tuning.workload.entry in _EDITABLE else []
    return [run, *([] if tuning.speedup is None else edits), full]
