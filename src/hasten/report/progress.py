"""What `tune` shows while it works. Progress goes to stderr, the report to stdout.

The watcher must not disturb what it watches: a live screen is redrawn once a second and when
something new is known, but never for a pair, so that drawing takes no time from the race.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hasten.records import Diagnosis, Progress
from hasten.report import findings, steps
from hasten.report.bars import Gauge
from hasten.report.layout import prose
from hasten.report.wording import interval
from hasten.units import counted, duration, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

    from hasten.records import Comparison, Interval, Pair, Plan, Profile

PLAIN_EVIDENCE_S = 5.0
KEPT_FACTS, SHOWN_FINDINGS = 5, 3
GAUGE_WIDTH = 30
_STOP = "Ctrl-C ends the search and keeps the best so far"


def choose(console: Console, asked: Progress | None) -> Progress:
    """Choose how to show progress on a console: a screen needs a terminal that can redraw."""
    if asked in (Progress.PLAIN, Progress.NONE):
        return asked
    can_redraw = console.is_terminal and not console.is_dumb_terminal
    return Progress.SCREEN if can_redraw else Progress.PLAIN


class View:
    """A watcher that shows what is being tried, what is known, and how much time is left."""

    def __init__(
        self,
        console: Console,
        *,
        style: Progress,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._style = style
        self._budget_s = budget_s
        self._clock = clock
        self._start_s = clock()
        self._screen = LiveScreen()
        self._said_s = float("-inf")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._start_s = self._clock()
        if self._style is Progress.SCREEN:
            from rich.live import Live

            self._live = Live(
                console=self._console,
                get_renderable=self._drawn,
                refresh_per_second=1,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a stage of the work."""
        screen = self._screen
        screen.stage, screen.detail = name, detail
        screen.race, screen.speedup = None, None
        self._line(f"{name}: {detail}" if detail else name)

    def profiled(self, profile: Profile) -> None:
        """Show where the time goes in a step of the unmodified script."""
        self._screen.profile = profile
        self._redraw()

    def found(self, diagnosis: Diagnosis) -> None:
        """Show what makes the script slow."""
        self._screen.diagnosis = diagnosis
        for finding in diagnosis.findings:
            self._line(f"{findings.cost(finding)} {finding.name}: {finding.message}")

    def race_begins(self, baseline: Plan, candidate: Plan) -> None:
        """Show a new race."""
        screen = self._screen
        screen.race, screen.pair_count, screen.speedup = (baseline, candidate), 0, None
        self._said_s = float("-inf")
        self._redraw()

    def race_grows(self, pairs: Sequence[Pair], speedup: Interval) -> None:
        """Show how far the race has got, the next time the screen is drawn."""
        screen = self._screen
        screen.pair_count += len(pairs)
        screen.speedup = speedup
        now_s = self._clock()
        if self._style is Progress.PLAIN and now_s - self._said_s >= PLAIN_EVIDENCE_S:
            self._said_s = now_s
            name = race_name(*screen.race) if screen.race else ""
            self._line(f"{name}: {screen.evidence}")

    def race_ends(self, seen: Comparison) -> None:
        """Remember what the race says about a plan; a failure is shown as a fact."""
        gains = self._screen.gains
        if seen.speedup is not None and seen.candidate != seen.baseline:
            is_part = seen.baseline.settings and seen.baseline not in gains
            if is_part and seen.candidate in gains:
                gains[seen.baseline] = gains[seen.candidate] / seen.speedup.mid_ratio
            else:
                gains[seen.candidate] = gains.get(seen.baseline, 1.0) * seen.speedup.mid_ratio
        if seen.failure:
            name = race_name(seen.baseline, seen.candidate)
            self.known(f"{name}: failed. {seen.failure.splitlines()[0]}")

    def leads(self, plan: Plan) -> None:
        """Show a new best plan."""
        self._screen.leader = plan
        self._line(f"leading: {self._screen.leading or plan}")

    def known(self, text: str) -> None:
        """Keep a fact on the screen."""
        self._screen.facts.append(text)
        self._line(text)

    def note(self, text: str) -> None:
        """Say something once, above the screen."""
        if self._live is not None:
            self._console.print(prose(text))
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        if self._style is Progress.PLAIN:
            clock = f"[{self._elapsed_s():5.0f} s]"
            self._console.print(Text(f"{clock} {text}"), soft_wrap=True)
        else:
            self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _elapsed_s(self) -> float:
        return self._clock() - self._start_s

    def _drawn(self) -> RenderableType:
        return draw(self._screen, elapsed_s=self._elapsed_s(), budget_s=self._budget_s)


# ---- the live screen: the script, its findings, the current race, the best so far


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
    over = f"over the budget of {duration(budget_s)}"
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
