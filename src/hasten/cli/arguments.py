"""What may appear on the command line, and where hasten's own options end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hasten.cli import faults
from hasten.records import Effect, Progress
from hasten.workload import MODULE_FLAG

INTERRUPTED = 130


class Command(TyperCommand):
    """A command whose own options end where the user's command begins, if it takes one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `--` before `-m` or another `--`, so that both reach the workload."""
        if all(param.name != "script" for param in self.params):
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args = False
        valued = {o for p in self.params if not getattr(p, "is_flag", True) for o in p.opts}
        index = 0
        while index < len(args) and args[index].startswith("-"):
            if args[index] == "--" or MODULE_FLAG.match(args[index]):
                return super().parse_args(ctx, [*args[:index], "--", *args[index:]])
            index += 2 if args[index] in valued else 1
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Turn each of our errors into its message and its exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            say("Interrupted.")
            raise typer.Exit(INTERRUPTED) from error
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            told = faults.explained(error, ctx)
            if told is None:
                say(*faults.noted(error))
                raise typer.Exit(faults.INTERNAL) from error
            if told.output:
                typer.echo(told.output.rstrip("\n"), err=True)
            say(told.problem, *told.remedy.splitlines())
            raise typer.Exit(told.exit_code) from error


def say(*sentences: str) -> None:
    """Print our messages to stderr, one per line, with control characters escaped."""
    text = "hasten: " + "\n         ".join(sentences)
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape") for c in text)
    typer.echo("".join(c if isinstance(c, str) else c.decode() for c in shown), err=True)


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT",
        show_default=False,
        help="The script and its own arguments. A notebook, `-m package.module`, or "
        "`-- program` may stand in its place.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="PATH", help="Also write the result as JSON.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="PATH", help="Also write the report as one HTML page."),
]
BUDGET, FIRST_ANSWER_S = "5m", 80.0
LONGEST_S = 1000 * 86400.0  # a kernel's clocks take 292 years
Budget = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="How long the whole tuning may take at most: 90s, 5m, 1h30m."
    ),
]
Numerics = Annotated[
    Effect,
    typer.Option(
        help="The most that a lever may do to the numbers: nothing, rounding, other random numbers "
        "of the same distribution, less precision, another algorithm."
    ),
]
Training = Annotated[
    str | None,
    typer.Option(
        "--train-time", metavar="TIME", help="How long the training will run once tuned: 8h."
    ),
]
PlanPath = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PATH", help="The plan file.", show_default="hasten.toml"),
]
PlanOutput = Annotated[
    Path | None,
    typer.Option("--plan", "-o", metavar="PATH", help="The plan file.", show_default="hasten.toml"),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Use a plan even if tuned for something else or if a gate failed."
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Overwrite a file that is no plan, or a plan that was written by hand or is another "
        "script's.",
    ),
]
Unprotected = Annotated[
    bool,
    typer.Option(
        "--no-sandbox",
        help="Start trials even where the kernel cannot keep them from your files.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print no progress, only the result and what went wrong."),
]
Unwarned = Annotated[bool, typer.Option("--quiet", "-q", help="Print no warnings about the plan.")]
Shown = Annotated[
    Progress | None,
    typer.Option(
        "--progress",
        help="Show progress as a screen, as one line per event, or not at all.",
        show_default="screen on a terminal, else plain",
    ),
]
EventsPath = Annotated[
    Path | None,
    typer.Option(
        "--log-jsonl",
        metavar="PATH",
        help="Also write events as JSON lines as they happen; - is stdout, and moves the "
        "report to stderr.",
    ),
]
ShareBatches = Annotated[
    bool,
    typer.Option(
        "--share-batches",
        help="The script trains in one process: share each of its batches among all processes.",
    ),
]
LeverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=SETTING",
        help="Set a lever by hand; false: leave it alone. Repeatable.",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Train on this device: cpu for a script that asks for a GPU that this machine lacks, "
        "cuda or another accelerator for one written for the CPU.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Try no levers but those named: a,b or repeated."),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Leave these levers alone: a,b or repeated."),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Assume without proof. dataset-unchanged: dataset code has no side effects, "
        "and what it reads is not changed by the script. Repeatable.",
    ),
]
Patience = Annotated[
    str,
    typer.Option(
        "--startup-timeout", metavar="TIME", help="How long to wait for the first training step."
    ),
]
Interpreter = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The interpreter that trains, where hasten lives in an environment of its own.",
        show_default="this one",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(min=2, metavar="COUNT", show_default=False, help="How many steps to observe."),
]
