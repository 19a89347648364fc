"""The command line: turns argv into a workload and options, and errors into exit codes.

No logic here: `session` does the work and `report` shows it. Both are imported inside the
commands, so that `hasten --help` starts at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

import hasten
from hasten.cli import arguments as args
from hasten.cli import faults, streams
from hasten.cli.arguments import Command, say
from hasten.cli.reports import (
    PLAN,
    check_outputs,
    console,
    leave,
    leave_profile,
    on_stdout,
    print_page,
    report,
)
from hasten.cli.submission import submit
from hasten.errors import PlanError, ScriptFailed, UsageError, shown
from hasten.records import Effect, Plan, Progress, Workload
from hasten.units import parse_duration
from hasten.workload import interpreter, read_workload, scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hasten.records import LossEnvelope, Setting
    from hasten.report.events import Events
    from hasten.report.plan_file import SavedPlan
    from hasten.report.progress import View


app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Make an unmodified PyTorch training script faster on this machine, and prove it.",
    epilog="Options go before the script; everything after the script belongs to it.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hasten {hasten.__version__}")
        raise typer.Exit


@app.callback()
def _hasten(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    from pathlib import Path

    from hasten.cli.defaults import read_defaults

    try:
        folder = Path(os.getcwd())
    except FileNotFoundError:  # a command that needs the folder says that it was removed
        return
    try:
        context.default_map = read_defaults(context.command, folder)  # type: ignore[arg-type]
    except UsageError as error:
        say(error.problem, error.remedy)
        raise typer.Exit(error.exit_code) from error


@app.command(cls=Command)
def doctor(*, json: args.Json = None, python: args.Interpreter = sys.executable) -> None:
    """Say what this machine gives a training job.

    It also says what is wrong with it and how to fix that.
    """
    from hasten import api, session
    from hasten.report import doctor as doctor_page
    from hasten.report import document

    api.check_system()
    check_outputs(json)
    machine = session.doctor(interpreter(python))
    print_page(doctor_page.render(machine))
    if json is not None:
        document.write_document(json, document.machine_document(machine))


@app.command(cls=Command)
def profile(
    context: typer.Context,
    script: args.Words,
    *,
    json: args.Json = None,
    html: args.Html = None,
    steps: args.Steps = None,
    lever: args.LeverOption = None,
    device: args.DeviceOption = "auto",
    assume: args.Assume = None,
    python: args.Interpreter = sys.executable,
    patience: args.Patience = "60s",
    unprotected: args.Unprotected = False,
    quiet: args.Quiet = False,
    progress: args.Shown = None,
    events: args.EventsPath = None,
) -> None:
    """Show where each step's time goes; change nothing."""
    from hasten import api, session
    from hasten.report import document
    from hasten.report.combined_watcher import CombinedWatcher

    check_outputs(json, html, events=events, kept=scripts(script))
    options = api.options(
        settings=_settings(lever, device), assume=assume or (), step_count=steps,
        startup_timeout_s=_seconds("--startup-timeout", patience), sandbox=not unprotected,
    )  # fmt: skip
    workload = read_workload(script, python=python)
    with _telling(context, events, workload) as told:
        with _view(quiet=quiet, progress=progress) as screen:
            found = session.profile(workload, options, CombinedWatcher(told, screen))
        written = leave_profile(found, json=json, html=html, aside=on_stdout(events))
        told.result(document.profile_document(found), written)


@app.command(cls=Command)
def tune(
    context: typer.Context,
    script: args.Words,
    *,
    json: args.Json = None,
    html: args.Html = None,
    budget: args.Budget = args.BUDGET,
    numerics: args.Numerics = Effect.DISTRIBUTION,
    training: args.Training = None,
    plan: args.PlanOutput = None,
    force: args.Overwrite = False,
    lever: args.LeverOption = None,
    device: args.DeviceOption = "auto",
    assume: args.Assume = None,
    python: args.Interpreter = sys.executable,
    only: args.Only = None,
    skip: args.Skip = None,
    patience: args.Patience = "60s",
    unprotected: args.Unprotected = False,
    quiet: args.Quiet = False,
    progress: args.Shown = None,
    events: args.EventsPath = None,
) -> None:
    """Find what makes the script faster, and prove it.

    This writes a plan, which `hasten run` applies, and a report. The script is not edited.
    """
    from hasten import api, session
    from hasten.report import document, plan_file, plan_places
    from hasten.report.combined_watcher import CombinedWatcher

    path = plan or PLAN
    kept = [*plan_places.beside(path), *scripts(script)]
    check_outputs(json, html, path, events=events, kept=kept)
    options = api.options(
        budget_s=_seconds("--budget", budget), spent_s=time.process_time(),
        first_s=args.FIRST_ANSWER_S if budget == args.BUDGET else inf,
        numerics=numerics,
        train_time_s=None if training is None else _seconds("--train-time", training),
        only=_names("--only", only), skip=_names("--skip", skip),
        settings=_settings(lever, device), assume=assume or (),
        startup_timeout_s=_seconds("--startup-timeout", patience), sandbox=not unprotected,
    )  # fmt: skip
    workload = read_workload(script, python=python)
    if not force:
        plan_places.guard(path, workload)
    with _telling(context, events, workload) as told:
        with _view(quiet=quiet, progress=progress, budget_s=options.budget_s) as screen:
            tuning = session.tune(workload, options, CombinedWatcher(told, screen))
        written = leave(tuning, path, json, html, force=force, aside=on_stdout(events))
        told.result(document.tuning_document(tuning), written)
    if path not in written:
        other = plan_file.other_script(path, workload)
        why = f"it is the plan of {other} now" if other else "this search has confirmed nothing"
        say(f"{path} stays as it is: {why}. See {written[0]}.")
    if not quiet:
        say(f"Wrote {', '.join(str(p) for p in written)}.")
    if tuning.interrupted:
        raise typer.Exit(args.INTERRUPTED)


@app.command(cls=Command)
def run(
    script: args.Words,
    *,
    plan: args.PlanPath = None,
    force: args.Force = False,
    lever: args.LeverOption = None,
    device: args.DeviceOption = "auto",
    assume: args.Assume = None,
    python: args.Interpreter = sys.executable,
    share_batches: args.ShareBatches = False,
    quiet: args.Unwarned = False,
) -> None:
    """Run the script for real, under the plan.

    The script itself is not edited.
    """
    from hasten import api, session
    from hasten.report import plan_file

    workload = read_workload(script, once=True, python=python)
    settings = _settings(lever, device)
    options = api.options(settings=settings, assume=assume or ())
    is_wanted = plan is not None or not (settings or share_batches)
    other = "" if is_wanted or force else plan_file.other_script(PLAN, workload)
    if other and not quiet:
        say(f"{PLAN} is the plan of {other}: only what was set by hand is used.")
    if is_wanted or (os.path.exists(PLAN) and not other):
        saved, envelope = _chosen_plan(workload, plan or PLAN, force=force, quiet=quiet)
    else:
        saved, envelope = plan_file.SavedPlan(plan=Plan(), machine={}), None
    chosen = saved.plan
    for name, setting in settings.items():  # false takes a lever out of the plan
        chosen = chosen.with_lever(name, setting)
    if share_batches:
        chosen, left_out = session.fitting(chosen)
        for name in () if quiet else left_out:
            say(f"left out {name}: every process computes a share of each batch.")
    assumed = saved.assumed | options.assumed
    session.run(workload, chosen, envelope, assumed, shares_batches=share_batches)


app.command(cls=Command)(submit)
app.command(cls=Command)(report)


@app.command(cls=Command)
def levers(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="Show the card of this lever.")
    ] = None,
) -> None:
    """List the levers, or show the card of one."""
    from hasten.lever import discover
    from hasten.report.levers import render_levers

    print_page(render_levers(discover(), name))


@app.command(cls=Command)
def findings(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="Show this finding's page.")
    ] = None,
) -> None:
    """List the reasons for lost time that `profile` and `tune` can find."""
    from hasten.diagnose import discover
    from hasten.report import pages

    symptoms = discover()
    print_page(pages.render_titles(symptoms) if name is None else pages.render_page(symptoms, name))


def main() -> None:
    """Run the command line; the exit code says how it ended."""
    out, _ = streams.keep("stdout"), streams.keep("stderr")
    # The end of a Slurm job or a terminal counts as an interruption: the best so far is saved. The
    # script of `run` is not affected: exec resets handlers.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, signal.default_int_handler)
    try:
        app(prog_name="hasten")
    except SystemExit as end:
        if out is None or not out.lost:
            raise
        say(f"Cannot print it all: {out.lost}.", "Print elsewhere, or free some space there.")
        raise SystemExit(end.code or UsageError.exit_code) from None


@contextmanager
def _telling(context: typer.Context, path: Path | None, workload: Workload) -> Iterator[Events]:
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
            raise (faults.explained(error, context) or error) from error.__cause__
    if events.lost:
        say(f"The events in {path} end early: {events.lost}.")


def _view(*, quiet: bool, progress: Progress | None, budget_s: float | None = None) -> View:
    """Return the view for this terminal; progress goes to stderr."""
    from hasten.report.progress import View, choose

    paper = console(stderr=True)
    style = choose(paper, Progress.NONE if quiet else progress)
    return View(paper, style=style, budget_s=budget_s)


def _settings(lever: Sequence[str] | None, device: str) -> dict[str, Setting]:
    """Return the levers set by hand, with the one that `--device` sets."""
    from hasten.lever import discover

    settings = dict(map(_setting, lever or ()))
    if device != "auto":
        name = next(one.name for one in discover().values() if one.option == "device")
        settings[name] = device
    return settings


def _seconds(option: str, text: str) -> float:
    seconds = parse_duration(text)
    if not 0 < seconds <= args.LONGEST_S:
        bound = "at most 1000d" if seconds else "above 0"
        remedy = f"Write {option} 90s, 5m or 1h30m."
        raise UsageError(f"{option} must be {bound}: {shown(text)}.", remedy=remedy)
    return seconds


def _names(option: str, given: Sequence[str] | None) -> list[str]:
    """Return the names given to an option that may be repeated or comma-separated."""
    found = [name.strip() for part in given or () for name in part.split(",") if name.strip()]
    if given and not found:
        remedy = f"Write {option} NAME; `hasten levers` lists the names."
        raise UsageError(f"{option} names no lever.", remedy=remedy)
    return found


def _setting(pair: str) -> tuple[str, Setting]:
    name, equals, value = pair.partition("=")
    if not (name and equals and value):
        remedy = f"Write --set {name or 'NAME'}=SETTING; most levers take true."
        raise UsageError(f"Cannot read --set {pair}.", remedy=remedy)
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _chosen_plan(
    workload: Workload, path: Path, *, force: bool, quiet: bool
) -> tuple[SavedPlan, LossEnvelope | None]:
    """Return the plan in the file and its envelope, after checking that it was made for this."""
    from hasten import session
    from hasten.report import plan_file

    if path == PLAN and not os.path.exists(PLAN):
        remedy = "Run `hasten tune` with your script first, or use --set."
        raise UsageError(f"There is no plan: {PLAN} is not in this folder.", remedy=remedy)
    saved = plan_file.read_plan(path)
    found, envelope = plan_file.doubts(saved), None
    if saved.plan.settings:
        machine = session.glance(workload)
        found += plan_file.differences(saved, machine, workload)
        envelope = plan_file.fitting_envelope(saved, machine, workload)
    if refusals := [item.message for item in found if item.refuses and not force]:
        raise PlanError(" ".join(refusals), remedy="Run `hasten tune` here, or add --force.")
    for item in found:
        if not quiet:
            say(item.message)
    return saved, envelope
