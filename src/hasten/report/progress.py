"""What `tune` shows while it works. Progress goes to stderr, the report to stdout.

The watcher must not disturb what it watches: a live screen is redrawn once a second and when
something new is known, but never for a pair, so that drawing takes no time from the race.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from hasten.records import Progress
from hasten.report import findings
from hasten.report.layout import prose
from hasten.report.live_screen import LiveScreen, draw, race_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from rich.console import Console, RenderableType
    from rich.live import Live

    from hasten.records import Comparison, Diagnosis, Interval, Pair, Plan, Profile

PLAIN_EVIDENCE_S = 5.0


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
