"""Bars that can be read without colour and without Unicode."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.text import Text

from hasten.records import Phase
from hasten.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console, ConsoleOptions


COLOURS = {
    Phase.DATA: "yellow",
    Phase.TRANSFER: "magenta",
    Phase.FORWARD: "cyan",
    Phase.LOSS: "bright_black",
    Phase.BACKWARD: "blue",
    Phase.EXCHANGE: "magenta",
    Phase.OPTIMIZER: "green",
    Phase.OTHER: "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One bar, `share_ratio` of `width` cells long."""

    share_ratio: float
    width: int
    colour: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Draw the bar, to an eighth of a cell where the encoding has the glyphs."""
        share = min(max(self.share_ratio, 0.0), 1.0)
        if options.ascii_only:
            yield Text("#" * round(share * self.width), self.colour)
            return
        whole, eighths = divmod(round(share * self.width * 8), 8)
        yield Text("█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip(), self.colour)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Ask for the whole width, so that the bars of a table share one scale."""
        return Measurement(self.width, self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The phases of one step side by side, as wide as the line if the step takes `full_s`.

    The lengths of two stacks with the same `full_s` show how much shorter a step has become.
    """

    phase_s: Mapping[Phase, float]
    full_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Draw the segments, each with its name where there is room for it."""
        steps = [(Phase(p), s) for p, s in self.phase_s.items() if Phase(p).in_step and s > 0]
        steps.sort(key=lambda item: list(Phase).index(item[0]))
        total_s = sum(s for _, s in steps)
        edge, fills = ("|", ":=") if options.ascii_only else ("│", "░▒")
        room = round((options.max_width - 1) * min(1.0, total_s / (self.full_s or 1.0)))
        line = Text(edge, no_wrap=True)
        ends = [round(room * s / total_s) for s in accumulate(s for _, s in steps)]
        widths = [end - begin for begin, end in pairwise([0, *ends])]
        drawn = 0
        for (phase, phase_s), width in zip(steps, widths, strict=True):
            if width < 2:
                line.append(edge * width)
                continue
            inside = _label(phase, phase_s / total_s, width - 1).center(width - 1, fills[drawn % 2])
            line.append(inside, COLOURS.get(phase, "")).append(edge)
            drawn += 1
        yield line


def _label(phase: Phase, share_ratio: float, width: int) -> str:
    """Return the longest label that fits into `width` cells; empty if none fits."""
    for label in (f" {phase} {percent(share_ratio)} ", f" {phase} "):
        if len(label) <= width:
            return label
    return ""
