"""What a command leaves behind: a page on the terminal, and files in other formats."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.arguments import Html, Json, say
from hasten.errors import HastenError, UsageError, shown
from hasten.workload import working_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rich.console import Console, RenderableType

    from hasten.records import Plan, Profiling, Tuning
    from hasten.report.edits import Edits

WIDEST = 100
PLAN = Path("hasten.toml")


def report(
    context: typer.Context,
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="[PLAN]",
            help="The plan file of a tuning; hasten.toml by default.",
            show_default=False,
        ),
    ] = PLAN,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Print everything, not the summary.")
    ] = False,
    edits: Annotated[
        bool, typer.Option("--edits", help="Print a diff that writes the plan into the script.")
    ] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Show the report of a tuning again, or write it in another form."""
    from hasten.report.document import tuning_document

    if edits:
        _refuse_beside_edits(context, json=json, html=html)
        _print_edits(*_recalled(plan))
        return
    check_outputs(json, html, kept=[plan])
    tuning, plan_path = _recalled(plan)
    print_page(_page(tuning, plan_path, full=full))
    told = tuning_document(tuning)
    for error in _tried(*_forms(told, lambda: _html(tuning, plan_path), json, html)):
        raise error


def _recalled(path: Path) -> tuple[Tuning, Path]:
    """Return the tuning of a plan and its path, unless another script's plan lies there now."""
    from hasten.report import archive, plan_file

    tuning, plan_path = archive.recall(path)
    if other := plan_file.other_script(plan_path, tuning.workload):
        raise UsageError(
            f"{plan_path} is the plan of {other}, for which no tuning is kept.",
            remedy="`hasten run` applies it all the same; `hasten tune` makes a report.",
        )
    return tuning, plan_path


def _page(tuning: Tuning, plan_path: Path, *, full: bool) -> RenderableType:
    from hasten.report import text
    from hasten.report.summary import render_summary

    if not full:
        return render_summary(tuning, plan_path=plan_path)
    return text.render_tuning(tuning, plan_path=plan_path, snippets=_snippets(tuning))


def _refuse_beside_edits(context: typer.Context, **places: Path | None) -> None:
    """Refuse what was asked for beside a diff; what pyproject.toml asks for is not written."""
    sources = {name: context.get_parameter_source(name) for name, place in places.items() if place}
    named = [f"--{name}" for name, one in sources.items() if one and one.name == "COMMANDLINE"]
    if named:
        raise UsageError(
            f"--edits prints only a diff; it cannot go with {', '.join(named)}.",
            remedy="Run `hasten report` once with --edits and once without.",
        )


def _print_edits(tuning: Tuning, plan_path: Path) -> None:
    """Print the diff to stdout, for `patch -p1`, and any notes to stderr."""
    from hasten.report import plan_file

    # Levers may have been removed from the file since: it invites the user to edit it.
    plan = plan_file.read_plan(plan_path).plan if os.path.exists(plan_path) else tuning.plan
    made = _edits(tuning, plan)
    typer.echo(made.diff.encode("utf-8", "surrogateescape"), nl=False)
    if made.notes:
        say(*(note.replace("\n", "\n         ") for note in made.notes))


def _edits(tuning: Tuning, plan: Plan) -> Edits:
    from hasten.report.edits import write_edits

    return write_edits(
        tuning.workload, plan, traits=tuning.traits, env=os.environ,
        python_version=tuning.machine.python_version,
    )  # fmt: skip


def _html(tuning: Tuning, plan_path: Path) -> str:
    from hasten.report.html import render_tuning

    edits: Edits | None = None
    with contextlib.suppress(HastenError):  # `--edits` says why
        edits = _edits(tuning, tuning.plan)
    return render_tuning(tuning, plan_path=plan_path, snippets=_snippets(tuning), edits=edits)


def leave(
    tuning: Tuning, path: Path, json: Path | None, html: Path | None = None,
    *, force: bool = False, aside: bool = False,
) -> list[Path]:  # fmt: skip
    """Write everything, then print the summary; return the files written, except the record.

    The plan comes first: a pager blocks printing, and a second Ctrl-C would end it. It may go
    beside `path`, see `place_for`. A failed write must not cost the user the answer, so the rest
    is written and the summary printed even then.

    Raises:
        UsageError: something could not be written; the first of several.
    """
    from datetime import date

    from hasten.report import archive, document, plan_places, plan_writing

    path = plan_places.place_for(path, tuning, force=force)
    report_path = plan_places.report_path(path)
    snippets = _snippets(tuning)
    page = _page(tuning, path, full=True)
    with _uninterrupted():
        failed = _tried(
            lambda: plan_writing.write_plan(path, tuning, snippets=snippets, today=date.today()),
            lambda: _save(page, report_path),
            *_forms(document.tuning_document(tuning), lambda: _html(tuning, path), json, html),
        )
        forgotten = _tried(lambda: archive.remember(tuning, path))
    print_page(_page(tuning, path, full=False), aside=aside)
    for error in forgotten:
        say(f"`hasten report` will not know this tuning. {error.problem}")
    for error in failed:
        raise error
    return [place for place in (path, report_path, json, html) if place is not None]


def _tried(*writes: Callable[[], object]) -> list[UsageError]:
    """Write one thing after the other; return the errors of those that cannot be written."""
    failed = []
    for write in writes:
        try:
            write()
        except UsageError as error:
            failed.append(error)
    return failed


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that would cost the result of minutes of work; writing takes a moment."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, signal.SIG_IGN) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _forms(
    document: Mapping[str, Any], page: Callable[[], str], json: Path | None, html: Path | None
) -> Iterator[Callable[[], None]]:
    """Yield what writes each of the forms that were asked for."""
    from hasten.report.document import write_document
    from hasten.report.files import write_atomically

    if json is not None:
        yield lambda: write_document(json, document)
    if html is not None:
        yield lambda: write_atomically(html, page())


def leave_profile(
    found: Profiling, *, json: Path | None, html: Path | None, aside: bool = False
) -> list[Path]:
    """Write the requested files, then print the page; return the files written."""
    from hasten.report import document, text
    from hasten.report.html import render_profile

    told = document.profile_document(found)
    failed = _tried(*_forms(told, lambda: render_profile(found), json, html))
    print_page(text.render_profile(found), aside=aside)
    for error in failed:
        raise error
    return [place for place in (json, html) if place is not None]


def _snippets(tuning: Tuning) -> Mapping[str, str]:
    from hasten.lever import by_hand, discover

    known, settings = discover(), tuning.plan.settings
    return {name: by_hand(known[name], s, tuning.traits) for name, s in settings if name in known}


def check_outputs(
    *paths: Path | None, events: Path | None = None, kept: Iterable[Path] = ()
) -> None:
    """Fail at the start, rather than after minutes of work, if a result cannot be written.

    Args:
        paths: where the results go; None for those that nobody asked for.
        events: where the stream of events goes. It is opened at once, so nothing else is checked.
        kept: files that none of them may replace.
    """
    from hasten.report.files import check_writable, descriptor

    written = [path for path in paths if path is not None]
    for path in written:
        if not path.is_absolute():
            working_folder()
        check_writable(path)
    if events is not None and not on_stdout(events) and descriptor(events) is None:
        written.append(events)
    known = set(map(os.path.realpath, kept))
    for path in written:
        place = os.path.realpath(path)  # `Path.resolve` raises where a link leads to itself
        if place in known and (os.path.isfile(place) or not os.path.exists(place)):
            problem = f"{shown(path)} is the plan, its report, a script or another output too."
            raise UsageError(problem, remedy="Choose another file.")
        known.add(place)


def on_stdout(path: Path | None) -> bool:
    """Return whether an output goes to stdout, so that a page must not."""
    return path is not None and str(path) == "-"


def print_page(page: RenderableType, *, aside: bool = False) -> None:
    """Print a page, limited to a readable width; aside, to stderr, where a program has stdout."""
    paper = console(stderr=aside)
    paper.width = min(paper.width, WIDEST)
    paper.print(page)


def console(*, stderr: bool) -> Console:
    """Return what prints text as it is on a stream; `COLUMNS=0` says that its width is unknown."""
    from rich.console import Console

    from hasten.report.layout import WIDTH

    made = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not made.width:
        made.width = WIDTH
    return made


def _save(page: RenderableType, path: Path) -> None:
    from io import StringIO

    from rich.console import Console

    from hasten.report.files import write_atomically

    paper = StringIO()
    Console(file=paper, width=80, no_color=True, force_terminal=False).print(page)
    write_atomically(path, "".join(f"{li.rstrip()}\n" for li in paper.getvalue().splitlines()))
