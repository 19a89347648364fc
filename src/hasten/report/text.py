"""The report on the terminal: 80 columns, readable without colour and without Unicode."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from hasten.records import Outcome, Reason
from hasten.report import findings, steps
from hasten.report.layout import WIDTH, bullets, facts, heading, indented, prose, section
from hasten.report.wording import EFFECTS, PASSED, command_line, continued, granted, interval, maths
from hasten.units import counted, duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from hasten.records import Interval, LeverReport, Passes, Profile, Profiling, Tuning

STYLES = {
    Outcome.KEPT: "bold green",
    Outcome.REJECTED: "red",
    Outcome.FAILED: "red",
    Outcome.DROPPED: "dim",
}
# Why something faster is not in the plan.
_LOST = {
    Reason.UNPROVED: "what was faster could not be proved",
    Reason.FAILED_GATE: "what was faster did not pass a numerics gate",
    Reason.NOT_SEEN_AGAIN: "a gain was seen, but not again on fresh launches",
    Reason.LAUNCHES_DIFFER: "a gain was seen, but launches of this script may differ by as much",
    Reason.NOT_RACED_AGAIN: "a gain was seen, but fresh launches have not confirmed it",
    Reason.HIDDEN: "what looked faster may be noise",
    Reason.STALLS: "most steps were faster, but some stalled",
    Reason.STARTS_LATE: "what was faster starts too late for this training",
    Reason.FIRST_PASS: "what was faster does not make up for its first pass",
    Reason.EVALUATION: "what was faster takes longer between steps, as for evaluation",
}


def render_profile(found: Profiling) -> Group:
    """Show where the time of a step goes and why, and what the process used."""
    profile = found.profile
    outside = steps.outside(profile)
    return Group(
        heading("hasten profile"),
        Text(),
        prose(f"{steps.speed(profile)}.", "bold"),
        prose(" ".join(steps.verdicts(profile))),
        *section("Where time goes", steps.stack(profile), Text(), steps.phases(profile)),
        *((Text(), indented(Text(outside))) if outside else ()),
        *section("What makes it slow", *findings.told(found.diagnosis)),
        *section(steps.lines_title(profile), *findings.lines(found.diagnosis, found.workload)),
        *section("What it used", *facts(steps.usage(profile, found.machine))),
        *section("Notes", *bullets([*granted(found.assumed), *found.notes])),
    )


def render_tuning(tuning: Tuning, *, plan_path: Path, snippets: Mapping[str, str]) -> Group:
    """Show everything that a tuning found: the answer first, the commands to use it last."""
    tried = [row for row in tuning.levers if row.outcome is not Outcome.SKIPPED]
    skipped = [row for row in tuning.levers if row.outcome is Outcome.SKIPPED]
    caveats = [f"{caveat.problem} {caveat.remedy}" for caveat in tuning.machine.caveats]
    return Group(
        heading(command_line("tune", tuning.workload)),
        Text(),
        prose(headline(tuning), "bold"),
        *(prose(sentence) for sentence in beneath(tuning)),
        *section("Where time goes", *_steps(tuning)),
        *section("What makes it slow", *findings.told(tuning.diagnosis, tuning)),
        *section("What was tried", *_tried(tried)),
        *section("What was not tried, and why", *facts([(s.lever, s.why) for s in skipped])),
        *section("What it does to the maths", *_maths(tuning)),
        *section("How far this can be trusted", *bullets(trust(tuning))),
        *section("About this machine", *bullets(caveats)),
        *section("How to use it", *_use(tuning, plan_path, snippets)),
    )


def headline(tuning: Tuning) -> str:
    """Give the answer in one sentence, claiming no more than was proved."""
    if not tuning.plan.settings:
        return _nothing("Nothing", "Nothing here", tuning.levers)
    if not tuning.proof.holds:
        return "A numerics gate failed: do not use this plan."
    if _is_only_applied(tuning):
        applied = f"Nothing beyond what you set ({tuning.plan})"
        return _nothing(applied, applied, tuning.levers)
    if tuning.speedup is None:
        return "The search ended before its best plan could be confirmed by fresh launches."
    if not tuning.speedup.is_gain:
        return f"Fresh runs did not confirm a gain: {interval(tuning.speedup)}."
    seen = tuning.passes
    if seen is None:
        return f"{times(tuning.speedup.mid_ratio)} faster."
    if not seen.longer_s:
        return f"{times(seen.whole.mid_ratio)} faster over the whole training."
    over = "a pass" if seen.pass_count == 1 else f"{seen.pass_count:,} passes"
    return f"{times(seen.whole.mid_ratio)} faster in {over} over its data."


def _nothing(so_far: str, at_all: str, rows: Sequence[LeverReport]) -> str:
    """Say that nothing was found, and what became of anything that looked faster."""
    gone = [row for row in rows if row.outcome in (Outcome.DROPPED, Outcome.REJECTED)]
    lost = [_LOST[row.reason] for row in gone if row.reason in _LOST]
    proved = f"{so_far} was proved to make this script faster"
    if reasons := "; ".join(dict.fromkeys(lost)):
        return f"{proved}: {reasons}."
    why_not = {row.reason for row in rows}
    if why_not & {Reason.NO_TIME, Reason.UNTRIED, Reason.UNTRIED_ALONE}:
        return f"{proved} in this time."
    others = "; some levers were left out" if Reason.EXCLUDED in why_not else ""
    return f"{at_all} makes this script faster{others}."


def _is_only_applied(tuning: Tuning) -> bool:
    """Return whether the plan is only what the user set."""
    return bool(tuning.plan.settings) and tuning.plan == tuning.applied and tuning.proof.holds


def beneath(tuning: Tuning) -> list[str]:
    """Return the sentences below the headline: the plan, its figure, its effect."""
    said = circumstances(tuning)
    if not tuning.plan.settings:
        return [*said, f"{reasons(tuning.levers)} The reason for each is below."]
    if _is_only_applied(tuning):
        said.append(reasons(tuning.levers))
    said.append(f"Plan: {tuning.plan}.")
    said += compared(tuning)
    if tuning.speedup is not None:
        said.append(f"Measured in fresh launches: {_measured(tuning.speedup, tuning.means_ratio)}.")
    if tuning.speedup is not None and tuning.passes is not None:
        said.append(_of_whole(tuning.passes, tuning.baseline))
    said.append(f"Effect: {tuning.proof.effect} ({EFFECTS[tuning.proof.effect]}).")
    return said


def compared(tuning: Tuning) -> list[str]:
    """Say what a figure compares with, if not with the script as it is."""
    if tuning.speedup is None or not tuning.applied.settings:
        return []
    return [f"Compared with the script under what you set by hand: {tuning.applied}."]


def circumstances(tuning: Tuning) -> list[str]:
    """Say what cut the search short or disturbed it; empty for a complete, quiet search."""
    said = []
    if tuning.interrupted:
        said.append("You interrupted the search; this is what was known by then.")
    elif tuning.out_of_time:
        said.append("The budget was spent; this is what was known by then.")
    if tuning.diagnosis.is_contended:
        said.append("Other processes kept CPUs busy meanwhile. Tune again where they are gone.")
    return said


def _outside(passes: Passes, baseline: Profile) -> str:
    """Say what part of the training is outside steps, and so no faster; empty if none."""
    if not passes.outside_s:
        return ""
    share = passes.outside_s / (passes.outside_s + baseline.mean_step_s)
    ratio = passes.outside_under_s / passes.outside_s
    under = f"took {ratio:.2f} times as long under the plan"
    told = "are counted unchanged" if ratio == 1.0 else under
    return f"Evaluation and the like take {percent(share)} of the time, and {told}"


def _of_whole(passes: Passes, baseline: Profile) -> str:
    """Say what the whole training gains, if the figure covers only part of it."""
    outside = _outside(passes, baseline)
    if not passes.longer_s:
        return f"That covers steps alone. {outside}: {_measured(passes.whole, None)} in all."
    given = "; --train-time sets the real length" if passes.is_assumed else ""
    also = f" {outside}." if outside else ""
    return (
        f"That is from the second pass over the data on. The first pass of {passes.step_count:,} "
        f"steps, in which samples are kept: {times(passes.first_ratio)}. "
        f"All {passes.pass_count:,} passes: {_measured(passes.whole, None)}{given}.{also}"
    )


def _measured(speedup: Interval, means_ratio: float | None) -> str:
    ends = f"{times(speedup.low_ratio)} to {times(speedup.high_ratio)}"
    means = "" if means_ratio is None else f"; mean-based speedup {times(means_ratio)}"
    return f"{times(speedup.mid_ratio)}, 95% interval {ends}{means}"


def reasons(rows: Sequence[LeverReport]) -> str:
    """Say how many settings there were, and what became of them."""
    if not rows:
        return "There was no lever to try."
    counts = Counter(row.outcome for row in rows)
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    joined = sum(row.reason is Reason.UNTRIED_ALONE for row in rows)
    together = f" ({joined} of them tried together, not alone)" if joined else ""
    return f"Of {len(rows)} settings: {said}{together}."


def _steps(tuning: Tuning) -> list[RenderableType]:
    before, after = tuning.baseline, tuning.tuned
    speed = steps.speed(before, is_compared=after is not None)
    lead = prose(f"Baseline: {speed}. {steps.bottleneck(before)}")
    if after is None:
        return [lead, Text(), steps.stack(before), Text(), steps.phases(before)]
    speed = steps.speed(after, is_compared=True)
    then = prose(f"Tuned: {speed}. {steps.bottleneck(after)}")
    stacks = steps.stacks(before, after)
    table = steps.phases_before_and_after(before, after)
    return [lead, then, Text(), stacks, Text(), table]


def _tried(rows: Sequence[LeverReport]) -> list[RenderableType]:
    names = [setting(row) for row in rows]
    width = min(max(map(len, names), default=0), 34)
    parts: list[RenderableType] = []
    for name, row in zip(names, rows, strict=True):
        line = Text(f"{name:<{width}}  ", overflow="fold")
        line.append(f"{row.outcome:<8}", STYLES.get(row.outcome, ""))
        gain = "" if row.speedup is None else interval(row.speedup)
        line.append(f"  {gain:<22}  {row.effect}".rstrip())
        parts += [line, indented(prose(row.why, "dim"))]
    return parts


def setting(row: LeverReport) -> str:
    """Return a lever with its setting."""
    return row.lever if row.setting is None else f"{row.lever}={row.setting}"


def _maths(tuning: Tuning) -> list[RenderableType]:
    if not tuning.plan.settings and not tuning.proof.gates:
        return []
    rows = [(PASSED[gate.passed], f"{gate.name}: {gate.message}") for gate in tuning.proof.gates]
    return [prose(maths(tuning.proof)), *facts(rows)]


def trust(tuning: Tuning) -> list[str]:
    """Say how much was measured, and what was too small to detect."""
    cost = tuning.cost
    launches = counted(cost.launch_count, "launch", "launches")
    said = [f"The search took {duration(cost.wall_s)} and {launches}."]
    if (ratio := tuning.detectable_ratio) is not None:
        said.append(f"Smallest detectable change: {percent(ratio)}.")
    if tuning.noise is not None:
        bias = tuning.noise.bias
        if not bias.low_ratio <= 1.0 <= bias.high_ratio:
            several = "" if tuning.speedup is None else "; the figure spans several pairs of them"
            said.append(f"Two launches of the same script differed by {interval(bias)}{several}.")
    if tuning.envelope is not None and tuning.plan.settings:
        said.append(
            "`hasten run` compares its first 50 steps with those without levers, and disables the "
            "levers if the loss diverges."
        )
    return [*said, *granted(tuning.assumed), *tuning.notes]


def _use(tuning: Tuning, plan_path: Path, snippets: Mapping[str, str]) -> list[RenderableType]:
    if not (tuning.plan.settings and tuning.proof.holds):
        return []
    command = command_line("run", tuning.workload, plan_path=plan_path)
    only_applied = _is_only_applied(tuning)
    under = "with what you set" if only_applied else "under the plan"
    parts: list[RenderableType] = [
        prose(f"Run your unedited script {under}:"),
        indented(prose(continued(command, width=WIDTH - 4), "bold cyan")),
    ]
    by_hand = [(n, snippets[n]) for n, _ in tuning.plan.settings if snippets.get(n, "").strip()]
    if by_hand and not only_applied:
        parts += [Text(), prose("Or write the same by hand:")]
    for name, code in by_hand:
        parts.append(indented(prose(f"# {name}", "dim")))
        parts.append(indented(prose(code.strip("\n"), "cyan")))
    return parts
