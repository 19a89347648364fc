"""What the live screen shows: the script, its findings, the current race, the best so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hasten.records import Diagnosis
from hasten.report import findings, steps
from hasten.report.bars import Gauge
from hasten.report.layout import prose
from hasten.report.wording import interval
from hasten.units import counted, duration, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

    from hasten.records import Interval, Plan, Profile

KEPT_FACTS, SHOWN_FINDINGS = 5, 3
GAUGE_WIDTH = 30
_STOP = "Ctrl-C ends the search and keeps the best so far"


@dataclass(kw_only=True, slots=True)
class LiveScreen:
    """What is known at this moment; the watcher writes it and the screen reads it.

    Attributes:
        gains: roughly how much faster than the script each plan is, where races have shown it.
    """

    stage: str = ""
    detail: str = ""
    profile: Profile | None = None
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    race: tuple[Plan, Plan] | None = None
    pair_count: int = 0
    speedup: Interval | None = None
    leader: Plan | None = None
    gains: dict[Plan, float] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)

    @property
    def evidence(self) -> str:
        """How far the race has got; empty before its first pairs."""
        if self.speedup is None:
            return ""
        return f"{counted(self.pair_count, 'pair')}, {interval(self.speedup)} so far"

    @property
    def leading(self) -> str:
        """The best plan and its approximate gain; empty while there is none."""
        if self.leader is None or not self.leader.settings:
            return ""
        gain = self.gains.get(self.leader)
        return f"{self.leader}" + (f", about {times(gain)}" if gain else "")


def draw(screen: LiveScreen, *, elapsed_s: float, budget_s: float | None) -> RenderableType:
    """Draw the screen; it fits 80 columns and 24 lines."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row("time", _time(elapsed_s, budget_s))
    grid.add_row("now", Text(screen.stage, "bold"))
    for name, part in _parts(screen):
        grid.add_row(name, part)
    return Group(Text(), grid)


def _parts(screen: LiveScreen) -> list[tuple[str, RenderableType]]:
    parts: list[tuple[str, RenderableType]] = []
    if screen.detail and screen.race is None:
        parts.append(("", _Cut(screen.detail)))
    if screen.profile is not None:
        parts += [("script", Text(steps.speed(screen.profile))), ("", steps.stack(screen.profile))]
    for index, finding in enumerate(screen.diagnosis.findings[:SHOWN_FINDINGS]):
        said = f"{findings.cost(finding):>5}  {finding.name}: {finding.remedy}"
        parts.append(("slow by" if index == 0 else "", _Cut(said)))
    if screen.leading:
        parts += [("leading", prose(screen.leading)), ("", Text(_STOP, "dim"))]
    parts += _race(screen)
    for index, fact in enumerate(screen.facts[-KEPT_FACTS:]):
        parts.append(("known" if index == 0 else "", _Cut(fact)))
    return parts


def _race(screen: LiveScreen) -> list[tuple[str, RenderableType]]:
    if screen.race is None:
        return []
    named = ("race", prose(race_name(*screen.race)))
    seen = Text(screen.evidence) if screen.evidence else Text("no pair yet", "dim")
    return [named, ("", seen)]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A sentence cut to one line, because the screen must not grow.

    What follows its last colon, such as the result of a race, is kept if it is short.
    """

    sentence: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width, dots = options.max_width, "..." if options.ascii_only else "…"
        text = self.sentence
        if cell_len(text) > width:
            tail = text[text.rfind(":") :] if ":" in text else ""
            tail = tail if len(tail) <= width // 3 else ""
            text = set_cell_size(text, width - cell_len(tail) - len(dots)).rstrip() + dots + tail
        yield Text(text, no_wrap=True)


def _time(elapsed_s: float, budget_s: float | None) -> RenderableType:
    if budget_s is None:
        return Text(duration(round(elapsed_s)))
    left_s = round(budget_s - elapsed_s)
    line = Table.grid(padding=(0, 2, 0, 0))
    gauge = Gauge(share_ratio=elapsed_s / budget_s, width=GAUGE_WIDTH, colour="green")
    left = f"{duration(left_s)} of {duration(budget_s)} left"
    over = f"over the {duration(budget_s)} of the budget"
    line.add_row(gauge, Text(left if left_s > 0 else over))
    return line


def race_name(baseline: Plan, candidate: Plan) -> str:
    """Name a race by what differs; what both plans have in common comes last."""
    names = candidate.differing(baseline)
    if not names:
        return f"{candidate} against itself" if candidate.settings else "the script against itself"
    common = candidate.levers - names
    behind = f", both with {candidate.only(common)}" if common else ""
    return f"{candidate.only(names)} against {baseline.only(names)}{behind}"
