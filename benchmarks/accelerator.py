"""Does the search find what helps on an accelerator? Of the test accelerator that is known.

    PYTHONPATH=tests/accelerator/laggard python benchmarks/accelerator.py

Each scenario of `accelerator.json` says how long kernels and copies take there, and which levers
must, may and must not be in the plan. Where copies are to run ahead, the script then runs to its
end by plain python, under `device_copies=arrival`, and without copies, on batches that were on the
device before: the ideal is the longer of a step without copies and of the copies of a step. A step
without copies still loads its batch: where kernels are short, the host is what it waits for.
What is done stands in `accelerator-rows.json` and is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from claims import build
from figures import machine_line, ratio_cell

HERE = Path(__file__).parent
SCRIPT = str(HERE / "on_device.py")
LEVERS = ("device_copies", "device_placement", "batched_fetch", "loader_workers")
ENDLESS, SHORT, ROUNDS = "100000000", "288", 3
COPIES = 2  # per step: inputs and labels
HEAD = """\
# On an accelerator whose optimum is known

{machine}, build {build}

The test accelerator ([laggard](../tests/accelerator/laggard/laggard.py)) takes for each kernel and
each copy what it is told. Each scenario was tuned with a budget of {budget}, by the levers
{levers}.
It is *found* where the plan has all levers that help and none that does not, *confirmed* or not.

| scenario | helps | plan | published | found |
|---|---|---|---|---|
"""
AHEAD = """
## Copies ahead of use

Seconds of a step in whole runs of {steps} steps, the median of {rounds} in turn. *ideal* is the
longer of a step that loads its batch without copying it, which waits for the host or for kernels,
and of its copies alone; *reached* is the ideal over what `device_copies=arrival` gives.

| scenario | plain | device_copies | ideal | reached |
|---|---|---|---|---|
"""


def environment(entry: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a scenario."""
    late = {f"LAGGARD_{name.upper()}": str(entry[name]) for name in ("kernel_us", "copy_us")}
    return {**os.environ, **late}


def tune(entry: dict[str, Any], budget: str) -> dict[str, Any]:
    """Tune a scenario; return its plan and the published ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        plan, document = Path(scratch, "hasten.toml"), Path(scratch, "hasten.json")
        done = subprocess.run(
            [sys.executable, "-m", "hasten", "tune", "--progress", "plain", "--budget", budget,
             "--only", ",".join(LEVERS), "--plan", str(plan), "--json", str(document),
             SCRIPT, ENDLESS, *entry.get("argv", [])],
            env=environment(entry), check=False, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(document.read_text()) if document.exists() else {}
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return {"plan": found.get("plan", {}), "published": found.get("speedup"), "failed": said}


def is_found(entry: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Return whether a plan has every wanted lever and no unwanted one.

    >>> is_found({"wants": ["a"], "may": ["b"]}, {"a": 1, "b": 2}), is_found({}, {"a": 1})
    (True, False)
    """
    wants, may = set(entry.get("wants", [])), set(entry.get("may", []))
    return wants <= plan.keys() <= wants | may


def step_s(entry: dict[str, Any], *words: str, more: tuple[str, ...] = ()) -> float:
    """Run a scenario to its end; return the seconds per step."""
    command = [sys.executable, *words, SCRIPT, SHORT, *entry.get("argv", []), *more]
    done = subprocess.run(
        command, env=environment(entry), capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def ahead(entry: dict[str, Any]) -> dict[str, float]:
    """Return the seconds per step: plain, with copies ahead of use, and the ideal."""
    rounds = [
        (
            step_s(entry),
            step_s(entry, "-m", "hasten", "run", "-q", "--set", "device_copies=arrival"),
            step_s(entry, more=("--uncopied",)),
        )
        for _ in range(ROUNDS)
    ]
    plain_s, ours_s, without_s = (median(column) for column in zip(*rounds, strict=True))
    ideal_s = max(without_s, COPIES * entry["copy_us"] * 1e-6)
    return {"plain_s": plain_s, "ours_s": ours_s, "ideal_s": ideal_s}


def render(kept: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """Return the page."""
    rows = kept["rows"]
    told = {name: value for name, value in kept.items() if name != "rows"}
    page = HEAD.format(levers=", ".join(f"`{name}`" for name in LEVERS), **told)
    done = [entry for entry in entries if entry["name"] in rows]
    for entry in done:
        row = rows[entry["name"]]
        plan = ", ".join(f"{k}={v}" for k, v in row["plan"].items()) or "nothing"
        page += (
            f"| {entry['name']} | {', '.join(entry.get('wants', [])) or 'nothing'} | "
            f"{' '.join(row['failed']) or plan} | {ratio_cell(row['published'])} | "
            f"{'yes' if is_found(entry, row['plan']) else 'no'} |\n"
        )
    count = sum(is_found(entry, rows[entry["name"]]["plan"]) for entry in done)
    page += f"\n{count} of {len(done)} are found.\n" + AHEAD.format(steps=SHORT, rounds=ROUNDS)
    for entry in done:
        if times := rows[entry["name"]].get("ahead"):
            plain, ours, ideal = (
                f"{1e3 * times[k]:.2f} ms" for k in ("plain_s", "ours_s", "ideal_s")
            )
            reached = times["ideal_s"] / times["ours_s"]
            page += f"| {entry['name']} | {plain} | {ours} | {ideal} | {reached:.0%} |\n"
    return page + "\nReproduce with `make bench-accelerator`.\n"


def main() -> None:
    """Measure what has not been measured yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", default="45s")
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    settings = {"machine": machine_line(), "build": build(), "budget": asked.budget}
    file = asked.out / "accelerator-rows.json"
    kept = json.loads(file.read_text()) if file.exists() else settings | {"rows": {}}
    if any(kept[name] != value for name, value in settings.items()):
        raise SystemExit(f"{file} was begun with other settings. Take another --out, or delete it.")
    entries = json.loads((HERE / "accelerator.json").read_text())
    chosen = [e for e in entries if not asked.only or any(part in e["name"] for part in asked.only)]
    for entry in chosen:
        if entry["name"] in kept["rows"]:
            continue
        print(entry["name"], flush=True)
        row = tune(entry, asked.budget)
        if entry.get("wants") == ["device_copies"]:
            row["ahead"] = ahead(entry)
        print(f"  {row}", flush=True)
        kept["rows"][entry["name"]] = row
        file.write_text(json.dumps(kept, indent=1) + "\n")
        (asked.out / "accelerator.md").write_text(render(kept, entries))


if __name__ == "__main__":
    main()
