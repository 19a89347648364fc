"""Each lever that no other page shows acting, by hand, on a script that was planted for it.

    python benchmarks/levers.py

A script of `planted/` runs by plain python and by `hasten run --set LEVER=SETTING` in turn. A lever
that brings nothing even there has no place in the tree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from shutil import copy2
from typing import Any

from claims import own, race
from figures import machine_line, ratio_cell

HERE = Path(__file__).parent
HEAD = """\
# Levers on scripts planted for them

{machine}

Each script of [planted](planted) has what its lever is for. It ran by plain python and by
`hasten run --set` in turn, {rounds} rounds, timed from outside: *loop* from the end of the first
optimizer step to that of the last, *later* without the first pass, or without the steps in which
code is compiled. The other levers act on [claims.md](claims.md), [loader.md](loader.md) or
[accelerator.md](accelerator.md).

| lever | script | loop | later | whole run |
|---|---|---|---|---|
"""


def page(rows: list[dict[str, Any]], rounds: int) -> str:
    """Return the page as Markdown."""
    lines = []
    for row in rows:
        ratios = row["ratios"]
        cells = [ratio_cell(ratios.get(part), row.get("failed")) for part in ("loop", "later")]
        whole = ratio_cell(ratios.get("wall"))
        words = f"{row['lever']}={row['setting']}"
        lines.append(f"| {words} | {row['name']} | {' | '.join(cells)} | {whole} |\n")
    head = HEAD.format(machine=machine_line(), rounds=rounds)
    return f"{head}{''.join(lines)}\nReproduce with `make bench-levers`.\n"


def measure(entry: dict[str, Any], folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Race a script against itself under its lever."""
    entry = entry | {"file": f"{entry['name']}.py"}
    setting = f"{entry['lever']}={entry['setting']}"
    words = ["-m", "hasten", "run", "--quiet", "--set", setting, *own(entry)]
    print(setting, flush=True)
    return entry | race(entry, folder, {"run": words}, asked)["run"]


def main() -> None:
    """Measure every lever, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", action="append", default=[], help="a lever")
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    found = json.loads((HERE / "levers.json").read_text())
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for path in (HERE / "planted").glob("*.py"):
            copy2(path, folder)
        for entry in found:
            if not asked.only or entry["lever"] in asked.only:
                rows.append(measure(entry, folder, asked))
                (asked.out / "levers.md").write_text(page(rows, asked.rounds))
    print((asked.out / "levers.md").read_text())


if __name__ == "__main__":
    main()
