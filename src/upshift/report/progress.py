"""What `tune` shows while it works. Progress goes to stderr, the report to stdout.

The watcher must not disturb what it watches: a live screen is redrawn once a second and at
the start of a stage, never at a pair, so that drawing takes no time from the race.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from upshift.report.bars import Gauge
from upshift.report.layout import prose
from upshift.units import duration, times

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from rich.console import Console, RenderableType
    from rich.live import Live

    from upshift.records import Plan

PLAIN_EVIDENCE_S = 5.0
KEPT_FACTS = 6
GAUGE_WIDTH = 30


class Style(StrEnum):
    """How progress is shown: a live screen, one line per event, or not at all."""

    LIVE = "live"
    PLAIN = "plain"
    QUIET = "quiet"


def choose(console: Console, *, quiet: bool, plain: bool) -> Style:
    """Return the style for a console: a live screen needs a terminal that can redraw."""
    if quiet:
        return Style.QUIET
    live = console.is_terminal and not console.is_dumb_terminal and not plain
    return Style.LIVE if live else Style.PLAIN


class View:
    """What is being tried, what is known, and how much time is left."""

    def __init__(
        self,
        console: Console,
        *,
        style: Style,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._style = style
        self._budget_s = budget_s
        self._clock = clock
        self._start_s = clock()
        self._stage = ""
        self._detail = ""
        self._race = ""
        self._evidence = ""
        self._known: list[str] = []
        self._said_s = float("-inf")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._start_s = self._clock()
        if self._style is Style.LIVE:
            from rich.live import Live

            self._live = Live(
                console=self._console,
                get_renderable=self._screen,
                refresh_per_second=1,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a part of the work."""
        self._stage, self._detail = name, detail
        self._race = self._evidence = ""
        self._said_s = float("-inf")
        self._line(f"{name}: {detail}" if detail else name)

    def evidence(
        self, baseline: Plan, candidate: Plan, pair_count: int, mid_ratio: float | None
    ) -> None:
        """Show how far a race has come; cheap enough to be called at every pair."""
        race = _race(baseline, candidate)
        if race != self._race:
            self._said_s = float("-inf")
        so_far = "" if mid_ratio is None else f", {times(mid_ratio)} so far"
        pairs = "1 pair" if pair_count == 1 else f"{pair_count} pairs"
        self._race, self._evidence = race, f"{pairs}{so_far}"
        now_s = self._clock()
        if self._style is Style.PLAIN and now_s - self._said_s >= PLAIN_EVIDENCE_S:
            self._said_s = now_s
            self._line(f"{race}: {self._evidence}")

    def known(self, text: str) -> None:
        """Keep a fact on the screen."""
        self._known.append(text)
        self._line(text)

    def note(self, text: str) -> None:
        """Say something once, above the screen."""
        if self._live is not None:
            self._console.print(prose(text))
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        if self._style is Style.PLAIN:
            clock = f"[{self._elapsed_s():5.0f} s]"
            self._console.print(Text(f"{clock} {text}"), soft_wrap=True)
        elif self._live is not None:
            self._live.refresh()

    def _elapsed_s(self) -> float:
        return self._clock() - self._start_s

    def _screen(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        grid.add_row("time", self._time())
        grid.add_row("now", Text(self._stage, "bold"))
        for name, value in (("", self._detail), ("race", self._race), ("", self._evidence)):
            if value:
                grid.add_row(name, prose(value))
        for index, fact in enumerate(self._known[-KEPT_FACTS:]):
            grid.add_row("known" if index == 0 else "", prose(fact))
        return Group(Text(), grid)

    def _time(self) -> RenderableType:
        elapsed_s = self._elapsed_s()
        if self._budget_s is None:
            return Text(duration(round(elapsed_s)))
        left_s = max(0.0, self._budget_s - elapsed_s)
        line = Table.grid(padding=(0, 2, 0, 0))
        gauge = Gauge(share_ratio=elapsed_s / self._budget_s, width=GAUGE_WIDTH, colour="green")
        left = f"{duration(round(left_s))} of {duration(self._budget_s)} left"
        line.add_row(gauge, Text(left))
        return line


def _race(baseline: Plan, candidate: Plan) -> str:
    """Name a race by what differs; what both plans have in common stands behind."""
    names = candidate.differing(baseline)
    if not names:
        return f"{candidate} against itself" if candidate.settings else "the script against itself"
    common = frozenset(name for name, _ in candidate.settings) - names
    behind = f", both with {candidate.only(common)}" if common else ""
    return f"{candidate.only(names)} against {baseline.only(names)}{behind}"
