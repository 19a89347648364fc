"""Who watches while a command works: the terminal, and a stream of events."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import hasten
from hasten.cli.arguments import Progress, explained, say
from hasten.errors import ScriptFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import typer

    from hasten.records import Workload
    from hasten.report.events import Events
    from hasten.report.progress import View


@contextmanager
def telling(context: typer.Context, path: Path | None, workload: Workload) -> Iterator[Events]:
    """Open the event stream of a command; without a path it writes nothing.

    Raises:
        UsageError: the path cannot be written.
    """
    from hasten.report.events import Events, open_stream

    with Events(open_stream(path)) as events:
        events.start(context.info_name or "", workload, version=hasten.__version__)
        try:
            yield events
        except ScriptFailed as error:
            raise explained(error, context) from error.__cause__
    if events.lost:
        say(f"The events in {path} end early: {events.lost}.")


def view(*, quiet: bool, progress: Progress | None, budget_s: float | None = None) -> View:
    """Return the view for this terminal; progress goes to stderr."""
    from rich.console import Console

    from hasten.report.progress import View, choose

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return View(
        console,
        style=choose(
            console, quiet=quiet or progress is Progress.NONE, plain=progress is Progress.PLAIN
        ),
        budget_s=budget_s,
    )
