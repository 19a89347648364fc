"""What a step consists of: tables and sentences about one profile or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from hasten.records import LEAST_RATIO, Phase
from hasten.report.bars import COLOURS, Gauge, Stack
from hasten.units import counted, duration, percent, significant, size, times

if TYPE_CHECKING:
    from hasten.records import Machine, Profile

GAUGE_WIDTH = 36
DOMINANT_RATIO = 0.4
PLACES = {
    Phase.DATA: "waiting for its data",
    Phase.TRANSFER: "copying to the accelerator",
    Phase.FORWARD: "in the forward pass",
    Phase.LOSS: "in the loss function",
    Phase.BACKWARD: "in the backward pass",
    Phase.EXCHANGE: "waiting for the other ranks",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.OTHER: "in the script's own code, outside the model and the loader",
}


def shown_step_s(profile: Profile, *, is_compared: bool) -> float:
    """Return the seconds of a step: the mean; the median, like the figure, where two are compared.

    A mean holds what happens once, such as what is compiled.
    """
    return profile.step_s if is_compared else profile.mean_step_s


def speed(profile: Profile, *, is_compared: bool = False) -> str:
    """Say how fast the training is."""
    step_s = shown_step_s(profile, is_compared=is_compared)
    return f"{duration(step_s)} a step, {rate(profile, step_s)}"


def rate(profile: Profile, step_s: float) -> str:
    """Say how many samples a second holds, at `step_s` seconds a step."""
    return f"{significant(profile.sample_count / step_s)} {profile.sample_unit}/s"


def bottleneck(profile: Profile) -> str:
    """Name the phase that takes up most of a step, in one sentence."""
    phase = max((p for p in Phase if p.in_step), key=profile.share_ratio)
    share = profile.share_ratio(phase)
    if share < DOMINANT_RATIO:
        return f"No phase dominates; the largest share, {percent(share)}, is spent {PLACES[phase]}."
    return f"{percent(share)} of the step is spent {PLACES[phase]}."


def loader_ceiling(profile: Profile) -> str:
    """Say what a perfect loader could gain at most."""
    share = profile.share_ratio(Phase.DATA)
    if not share:
        return ""
    if share < LEAST_RATIO:
        return f"The loader is not the bottleneck: the loop waits {percent(share)} of the time."
    best = 1 / max(1e-9, 1 - share)
    rest = f"Without its waits for the loader a step would take {percent(1 - share)} of its time"
    return f"{rest}: at most {times(best)} faster."


def device_pace(profile: Profile) -> str:
    """Say whether the accelerator or the host waits; empty without an accelerator."""
    ratio = profile.caught_up_ratio
    if ratio is None:
        return ""
    if profile.is_host_ahead:
        return f"The host is ahead of the accelerator in {percent(1 - ratio)} of steps."
    return f"The accelerator waits for the host: it had caught up in {percent(ratio)} of steps."


def lines_title(profile: Profile) -> str:
    """Return the title above the lines of the user's code."""
    host = (
        "" if profile.caught_up_ratio is None else ": the host, its waits for the device included"
    )
    return f"Where in your code{host}"


def verdicts(profile: Profile) -> list[str]:
    """Say in a few sentences what holds up the training."""
    said = bottleneck(profile), device_pace(profile), loader_ceiling(profile)
    return [sentence for sentence in said if sentence]


def stack(profile: Profile) -> Stack:
    """Draw one step across the whole line."""
    return Stack(phase_s=profile.phase_s, full_s=profile.mean_step_s)


def stacks(before: Profile, after: Profile) -> Table:
    """Draw the step before and after on the same scale: the shorter bar is the faster step."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for name, profile in (("before", before), ("after", after)):
        per_sample = {p: s / profile.sample_count for p, s in profile.phase_s.items()}
        full_s = max(p.mean_step_s / p.sample_count for p in (before, after))
        grid.add_row(Text(name), Stack(phase_s=per_sample, full_s=full_s))
    return grid


def phases(profile: Profile) -> Table:
    """List the phases of a step with their shares."""
    table = _table("phase", "per step", "share")
    table.add_column("")
    for name, *cells in phase_rows(profile)[:-1]:
        share, colour = profile.share_ratio(Phase(name)), COLOURS[Phase(name)]
        gauge = Gauge(share_ratio=share, width=GAUGE_WIDTH, colour=colour)
        table.add_row(Text(name), *map(Text, cells), gauge)
    return table


def phase_rows(*profiles: Profile) -> list[list[str]]:
    """Return each phase that occurs, with its time and share in each profile; the sum is last."""
    seen = (p for p in Phase if p.in_step and any(one.phase_s.get(p) for one in profiles))
    rows = [[str(phase)] for phase in seen]
    for one in profiles:
        for row in rows:
            phase = Phase(row[0])
            row += [duration(one.phase_s.get(phase, 0.0)), percent(one.share_ratio(phase))]
    total = [cell for one in profiles for cell in (duration(one.mean_step_s), "")]
    return [*rows, ["mean step", *total]]


def phases_before_and_after(before: Profile, after: Profile) -> Table:
    """List the phases of a step before and after."""
    table = _table("phase", "before", "share", "after", "share")
    *rows, total = phase_rows(before, after)
    for row in rows:
        table.add_row(*map(Text, row))
    table.add_row(*(Text(cell, "bold") for cell in total))
    return table


def outside(profile: Profile) -> str:
    """Say what takes time between the steps; empty if nothing does."""
    found = [(p, s) for p, s in profile.phase_s.items() if not Phase(p).in_step and s > 0]
    if not found:
        return ""
    named = ", ".join(f"{phase} {duration(s)}" for phase, s in found)
    return f"Outside the step, spread over all steps: {named}."


def usage(profile: Profile, machine: Machine) -> list[tuple[str, str]]:
    """List what the process used, leaving out what is unknown."""
    spread = f"middle half {duration(profile.step_low_s)} to {duration(profile.step_high_s)}"
    said = f"{duration(profile.step_s)} at the median ({spread}; {profile.step_count} steps)"
    rows = [("step", said)]
    if profile.cores_ratio is not None:
        cores = counted(machine.budget.core_count, "core")
        rows.append(("cores busy", f"{profile.cores_ratio:.1f} of {cores}"))
    if profile.peak_rss_bytes is not None:
        rows.append(("memory", f"{size(profile.peak_rss_bytes)} at the peak"))
    if profile.peak_device_bytes is not None:
        rows.append(("accelerator", f"{size(profile.peak_device_bytes)} at the peak"))
    if profile.faults_count is not None:
        rows.append(("page faults", f"{profile.faults_count:.0f} per step"))
    if (cost := profile.own_cost) is not None:
        ends = (cost.mid_ratio, cost.low_ratio, cost.high_ratio)
        mid, low, high = (percent(ratio - 1) for ratio in ends)
        said = f"measuring adds {mid} to a step ({low} to {high})"
        if cost.mid_ratio < 1:  # noise: no hook makes a step faster
            most = percent(max(cost.high_ratio - 1, 0.0))
            said = f"too small to measure here: at most {most} of a step"
        rows.append(("own cost", said))
    return rows


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column(name)
    for number in numbers:
        table.add_column(number, justify="right")
    return table
