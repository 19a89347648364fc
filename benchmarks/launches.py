"""How much two launches of one script differ: what the interval of a confirmation starts from.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/launches.py CHECKOUTS

The scripts are those of `others.json`, none of which is tuned for a page. Two trials of one script
are launched and take the same steps in turns, as those of a confirmation do: a machine that changes
its pace does so for both. The truth of each log ratio is 0. The variances of scripts are taken as
draws of a scaled inverse chi-squared law, whose scale and degrees of freedom are the most likely
ones. The scale is `PRIOR_SD` of `hasten.compare.launches`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
from math import exp, lgamma, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from claims import environment
from figures import machine_line

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
WATCHED_COUNT, PAIR_COUNT, PATIENCE_S = 60, 60, 120.0


def fitted(variances: Sequence[float], freedom: int) -> tuple[float, int]:
    """Return the scale and the degrees of freedom that make the variances most likely.

    A variance divided by the squared scale is F-distributed.

    >>> fitted([0.04**2] * 6, 6)
    (0.04, 20)
    """

    def likelihood(scale: float, known: int) -> float:
        half, other = freedom / 2, known / 2
        constant = lgamma(half + other) - lgamma(half) - lgamma(other) + half * log(half / other)
        ratios = [variance / scale**2 for variance in variances]
        return sum(
            constant + half * log(r) - (half + other) * log(1 + r * half / other) for r in ratios
        )

    grid = [(step / 1000, known) for step in range(5, 200) for known in range(1, 21)]
    return max(grid, key=lambda point: likelihood(*point))


def living(entry: dict[str, Any], folder: Path) -> float:
    """Launch two trials of a script, let them alternate, and return the log of their ratio."""
    from hasten.compare import hodges_lehmann
    from hasten.records import Plan
    from hasten.trials.process import best_isolation
    from hasten.trials.runner import TrialRunner
    from hasten.workload import read_workload

    with contextlib.chdir(folder), patch.dict(os.environ, environment(entry)):
        workload = read_workload([entry["file"], *entry["argv"]])
        isolation = best_isolation(workload.cwd)
        with TrialRunner(workload, isolation=isolation, patience_s=PATIENCE_S) as runner:
            runner.steps(Plan(), WATCHED_COUNT)
            runner.children.clear()
            runner.prepare(Plan(), Plan())
            coins = [random.random() < 0.5 for _ in range(PAIR_COUNT)]
            return hodges_lehmann([pair.log_ratio for pair in runner.pairs(Plan(), Plan(), coins)])


def page(rows: dict[str, list[float]]) -> str:
    """Return the page as Markdown."""
    count = len(next(iter(rows.values())))
    scale, known = fitted([mean_square(seen) for seen in rows.values()], count)
    lines = [
        "# How much two launches differ",
        "",
        machine_line(),
        "",
        f"Two trials of one script that take turns, launched {count} times: their ratio, and the "
        "standard deviation of its logarithm around 0.",
        "",
        "| script | ratios | spread |",
        "|---|---|---|",
    ]
    for name, seen in rows.items():
        ratios = ", ".join(f"{exp(value):.3f}" for value in seen)
        lines.append(f"| {name} | {ratios} | {sqrt(mean_square(seen)):.3f} |")
    lines += [
        "",
        f"The most likely law of their variances has a scale of {scale:.3f} and {known} degrees "
        "of freedom.",
        "",
        "Reproduce with `make bench-launches CHECKOUTS=folder`.",
        "",
    ]
    return "\n".join(lines)


def mean_square(values: Sequence[float]) -> float:
    """Return the variance around 0."""
    return fmean(value**2 for value in values)


def main() -> None:
    """Launch every script against itself, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    asked = parser.parse_args()
    rows = {}
    for entry in json.loads((HERE / "others.json").read_text()):
        folder = asked.checkouts.resolve() / entry["folder"]
        rows[entry["name"]] = [living(entry, folder) for _ in range(asked.rounds)]
        print(entry["name"], rows[entry["name"]], flush=True)
    (asked.out / "launches.md").write_text(page(rows))


if __name__ == "__main__":
    main()
