"""How much two launches of one script differ: what the interval of a confirmation starts from.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/launches.py CHECKOUTS

Each script of `others.json`, none of which is tuned for a page, runs by plain python and by plain
python again, in turn; a round is the log ratio of two loops, whose truth is 0. The variances of
scripts are taken as draws of a scaled inverse chi-squared law, whose scale and degrees of freedom
are the most likely ones: `PRIOR_SD` and `PRIOR_COUNT` of `hasten.compare.launches`, rounded.
"""

from __future__ import annotations

import argparse
import json
from math import exp, lgamma, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from claims import own, race
from figures import machine_line, ratio_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent


def fitted(variances: Sequence[float], freedom: int) -> tuple[float, int]:
    """Return the scale and the degrees of freedom under which variances are the most likely.

    A variance over the square of the scale is F-distributed.

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


def page(rows: Sequence[dict[str, Any]], rounds: int) -> str:
    """Return the page in Markdown."""
    variances = [fmean(log(r) ** 2 for r in row["ratio"]["rounds"]) for row in rows]
    scale, known = fitted(variances, rounds)
    lines = [
        "# How much two launches differ",
        "",
        machine_line(),
        "",
        f"Plain python against plain python, {rounds} rounds of each script. *spread* is the "
        "standard deviation of the log ratio of two loops around 0.",
        "",
        "| script | loop | spread |",
        "|---|---|---|",
    ]
    for row, variance in zip(rows, variances, strict=True):
        lines.append(f"| {row['script']} | {ratio_cell(row['ratio'])} | {sqrt(variance):.3f} |")
    lines += [
        "",
        f"The most likely law of these variances has a scale of {scale:.3f} "
        f"({exp(scale) - 1:.1%}) and {known} degrees of freedom.",
        "",
        "Reproduce with `make bench-launches CHECKOUTS=folder`.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run every script twice a round, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", action="append", default=[], metavar="PART")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    asked = parser.parse_args()
    rows = []
    for entry in json.loads((HERE / "others.json").read_text()):
        if asked.only and not any(part in entry["name"] for part in asked.only):
            continue
        print(entry["name"], flush=True)
        folder = asked.checkouts.resolve() / entry["folder"]
        found = race(entry, folder, {"again": own(entry)}, asked)["again"]["ratios"]
        rows.append({"script": entry["name"], "ratio": found["loop"]})
    (asked.out / "launches.md").write_text(page(rows, asked.rounds))


if __name__ == "__main__":
    main()
