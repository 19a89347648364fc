"""The wording that all reports share."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.records import Assumption, Effect, Entry
from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hasten.records import Interval, Proof, Workload

PLAN_NAME = "hasten.toml"

EFFECTS = {
    Effect.EXACT: "the same bits",
    Effect.ROUNDING: "the same maths, rounded otherwise",
    Effect.DISTRIBUTION: "same distribution, other draws",
    Effect.PRECISION: "fewer bits in some numbers",
    Effect.LEARNING: "another algorithm",
}

ASSUMPTIONS = {
    Assumption.DATASET_UNCHANGED: "dataset code has no side effects, and what it reads is not "
    "changed by the script",
}

PASSED = {True: "passed", False: "failed", None: "open"}


def utf8(text: str) -> str:
    """Escape bytes that are not UTF-8, which a file name or an argument may contain."""
    return text.encode("utf-8", "backslashreplace").decode()


def interval(ratio: Interval) -> str:
    """Return a speed-up with its 95% interval, unless too few pairs make it meaningless.

    >>> from hasten.records import Interval
    >>> interval(Interval(low_ratio=1.1, mid_ratio=1.2, high_ratio=1.3))
    '1.20x (1.10x to 1.30x)'
    >>> interval(Interval(low_ratio=0.01, mid_ratio=1.2, high_ratio=100.0))
    '1.20x (too few pairs)'
    """
    if ratio.says_nothing:
        return f"{times(ratio.mid_ratio)} (too few pairs)"
    return f"{times(ratio.mid_ratio)} ({times(ratio.low_ratio)} to {times(ratio.high_ratio)})"


def maths(proof: Proof) -> str:
    """Say what a plan does to the numbers, and how many gates said so."""
    counts = Counter(PASSED[gate.passed] for gate in proof.gates)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    gates = f"Gates: {told}." if told else "No gate was run."
    return f"{proof.effect}: {EFFECTS[proof.effect]}. {gates}"


def granted(assumed: Iterable[str]) -> list[str]:
    """Return one sentence for each assumption that the user granted.

    >>> granted(["dataset-unchanged"])[0][:49]
    'Assumed, not proved (--assume dataset-unchanged):'
    """
    return [f"Assumed, not proved (--assume {n}): {ASSUMPTIONS[Assumption(n)]}." for n in assumed]


def words(workload: Workload) -> tuple[str, ...]:
    """Return this workload as the user writes it after hasten's own options."""
    lead = {Entry.MODULE: ("-m",), Entry.COMMAND: ("--",)}.get(workload.entry, ())
    return (*lead, *workload.argv)


def command_line(verb: str, workload: Workload, *, plan_path: Path | None = None) -> str:
    """Return the command to type, quoted for a shell, with `--plan` unless it is the default."""
    path = named_plan(workload, plan_path)
    option = ("--plan", path) if path else ()
    return shlex.join(("hasten", verb, *option, *words(workload)))


def report_line(workload: Workload, plan_path: Path) -> str:
    """Return the command that shows the report again."""
    plan = named_plan(workload, plan_path)
    return shlex.join(("hasten", "report", plan) if plan else ("hasten", "report"))


def named_plan(workload: Workload, plan_path: Path | None) -> str:
    """Return a plan's path, relative to the working folder if inside; empty for the default."""
    if plan_path is None or plan_path.absolute() == Path(workload.cwd, PLAN_NAME):
        return ""
    path, cwd = plan_path.absolute(), Path(workload.cwd)
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def continued(command: str, *, width: int) -> str:
    r"""Return a shell command wrapped with escaped line breaks, so that it can be copied.

    >>> print(continued("hasten run train.py --epochs 3", width=24))
    hasten run train.py \
      --epochs 3
    """
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append(f"  {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return " \\\n".join(lines)
