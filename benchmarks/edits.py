"""Race a plan under `hasten run` against the same plan written into the source.

    python benchmarks/edits.py --rounds 8

For each example, the script is copied, the diff of `hasten report --edits` is applied to the copy,
and whole runs of both are timed in turn (ABBA), including imports and evaluation. The ratio is the
time under `hasten run` over that of the edited copy, so above 1 the edited copy is faster. Its
interval should include 1, apart from the start-up cost of `hasten run`.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from figures import machine_line, ratio, ratio_cell

from hasten.records import Entry, ModelTraits, Plan, Traits, Workload
from hasten.report.edits import write_edits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.records import Setting

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
CONVOLVED = Traits(model=ModelTraits(has_conv2d=True, conv_input_dimension_count=4))


class Case(NamedTuple):
    """An example, its arguments, and the plan that is written into it."""

    name: str
    argv: tuple[str, ...]
    plan: Mapping[str, Setting]
    traits: Traits


CASES = (
    Case(
        "image_pipeline.py",
        ("--epochs", "6"),
        {"channels_last": True, "intra_op_threads": 1, "malloc_retention": True},
        CONVOLVED,
    ),
    Case(
        "digits.py",
        ("--epochs", "40"),
        {"fused_optimizer": True, "intra_op_threads": 1},
        Traits(),
    ),
    Case(
        "char_transformer.py",
        ("--epochs", "2"),
        {"fused_optimizer": True, "malloc_retention": True},
        Traits(),
    ),
)
PAGE = """\
# A plan under `hasten run` beside the plan in the source

{machine}

Whole runs, imports and evaluation included, in turn: the time under `hasten run` over that of the
script to which the diff of `hasten report --edits` was applied. Above 1, the edited script is
faster.

| script | plan | ratio |
|---|---|---|
{rows}

Reproduce with `make bench-edits ARGUMENTS="--rounds {rounds}"`.
"""


def prepare(case: Case, folder: Path) -> dict[str, list[str]]:
    """Put the script and its edited copy into a folder; return the command for each."""
    for name in ("plan", "edited"):
        (folder / name).mkdir()
        shutil.copy(EXAMPLES / case.name, folder / name)
    plan = Plan(tuple(sorted(case.plan.items())))
    workload = Workload(
        entry=Entry.SCRIPT, argv=(case.name,), cwd=str(folder / "edited"), python=sys.executable
    )
    made = write_edits(workload, plan, traits=case.traits, env=os.environ)
    subprocess.run(
        ["patch", "-p1"], cwd=folder / "edited", input=made.diff, text=True, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    levers = [word for name, setting in plan.settings for word in ("--set", f"{name}={setting}")]
    return {
        "plan": [sys.executable, "-m", "hasten", "run", *levers, case.name, *case.argv],
        "edited": [sys.executable, case.name, *case.argv],
    }


def wall_s(command: Sequence[str], folder: Path) -> float:
    """Return the seconds that a whole run takes."""
    began_s = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def race(case: Case, rounds: int) -> list[float]:
    """Return the log ratio of each round, after one warm-up run of each command."""
    logs = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        commands = prepare(case, folder)
        for index in range(-1, rounds):
            order = ("plan", "edited", "edited", "plan")
            spent_s = {"plan": 0.0, "edited": 0.0}
            for name in order[:2] if index < 0 else order:
                spent_s[name] += wall_s(commands[name], folder / name)
            if index >= 0:
                logs.append(math.log(spent_s["plan"] / spent_s["edited"]))
    return logs


def main() -> None:
    """Run the races and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    rows = []
    for case in CASES:
        if args.only in (None, case.name):
            plan = ", ".join(f"`{name}={setting}`" for name, setting in case.plan.items())
            found = ratio_cell(ratio(race(case, args.rounds)))
            rows.append(f"| {case.name} {' '.join(case.argv)} | {plan} | {found} |")
            print(rows[-1], file=sys.stderr)
    page = PAGE.format(machine=machine_line(), rows="\n".join(rows), rounds=args.rounds)
    (args.out / "edits.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
