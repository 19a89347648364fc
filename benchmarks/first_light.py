"""Tune public training scripts, unmodified, and race `upshift run` against plain python.

Needs checkouts of the repositories in `first_light.json` under one folder, with data in the
format that each script reads (made data will do):

    python benchmarks/first_light.py CHECKOUTS --budget 3m --out benchmarks/first-light.md

For each script: `upshift tune`; then whether its folder is byte-identical; then whole runs,
plain python and `upshift run` in turn (ABBA), as a ratio of wall times, imports included.
Only ratios are written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IGNORED = {".git", "__pycache__"}
HEAD = """\
# First light: public scripts, unmodified

{machine}

`speed-up` is of the training step, confirmed on two rounds of fresh launches, with its
95 % interval. `effect` is what was shown about the arithmetic. `whole runs` is the wall time of
plain python over that of `upshift run`, imports and evaluation included, geometric mean of
{rounds} ABBA rounds, with the lowest and highest ratio in brackets. `folder` says whether the
script's folder was byte-identical after `tune`.

Reproduce with `python benchmarks/first_light.py CHECKOUTS --budget {budget} --rounds {rounds}`;
the commands stand in [first_light.json](first_light.json).

| script | plan | speed-up | effect | launches | seconds | whole runs | folder |
|---|---|---|---|---|---|---|---|
"""


def tree_hash(folder: Path) -> str:
    """Return a hash of the names, sizes and bytes of everything in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if IGNORED & set(path.parts):
            continue
        digest.update(str(path.relative_to(folder)).encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def tune(entry: dict[str, Any], folder: Path, plan: Path, budget: str) -> dict[str, Any] | None:
    """Tune one script; return the JSON document, None where it failed."""
    document = plan.with_suffix(".json")
    command = [
        sys.executable, "-m", "upshift", "tune", "--plain", "--budget", budget, "--plan", str(plan),
        "--json", str(document), *entry["argv"],
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environment(entry), check=False)
    return json.loads(document.read_text()) if done.returncode == 0 else None


def environment(entry: dict[str, Any]) -> dict[str, str]:
    """Return the environment that a script needs."""
    return {**os.environ, **entry.get("env", {})}


def wall_s(command: list[str], folder: Path, env: dict[str, str]) -> float:
    """Return the seconds that a whole run takes."""
    started_s = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env=env, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started_s


def whole_runs(entry: dict[str, Any], folder: Path, plan: Path, rounds: int) -> list[float]:
    """Return the ratio of each round: plain, tuned, tuned, plain."""
    plain = [sys.executable, *entry["short"]]
    tuned = [
        sys.executable, "-m", "upshift", "run", "--quiet", "--force", "--plan", str(plan),
        *entry["short"],
    ]  # fmt: skip
    env = environment(entry)
    ratios = []
    for _ in range(rounds):
        walls = [wall_s(command, folder, env) for command in (plain, tuned, tuned, plain)]
        ratios.append((walls[0] + walls[3]) / (walls[1] + walls[2]))
    return ratios


def row(
    entry: dict[str, Any], found: dict[str, Any] | None, ratios: list[float], same: bool
) -> str:
    """Return one line of the table."""
    if found is None:
        return f"| {entry['name']} | failed | | | | | | {'same' if same else 'CHANGED'} |"
    plan = ", ".join(f"{k}={v}" for k, v in found["plan"].items()) or "nothing helps"
    speedup = found["speedup"]
    gain = "" if not speedup or speedup["mid"] is None else (
        f"{speedup['mid']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]"
    )  # fmt: skip
    whole = ""
    if ratios:
        middle = math.exp(sum(map(math.log, ratios)) / len(ratios))
        whole = f"{middle:.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]"
    cost = found["cost"]
    return (
        f"| {entry['name']} ({entry['repo']}) | {plan} | {gain} | {found['maths']['effect']} | "
        f"{cost['launches']} | {cost['wall_s']:.0f} | {whole} | {'same' if same else 'CHANGED'} |"
    )


def main() -> None:
    """Run the benchmark and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    entries = json.loads((HERE / "first_light.json").read_text())
    lines = []
    for entry in entries:
        if asked.only and not any(part in entry["name"] for part in asked.only):
            continue
        folder = (asked.checkouts / entry["folder"]).resolve()
        with tempfile.TemporaryDirectory() as scratch:
            plan = Path(scratch, "upshift.toml")
            before = tree_hash(folder)
            found = tune(entry, folder, plan, asked.budget)
            same = tree_hash(folder) == before
            ratios = []
            if found and found["plan"] and entry["short"]:
                ratios = whole_runs(entry, folder, plan, asked.rounds)
        lines.append(row(entry, found, ratios, same))
        print(lines[-1], flush=True)
    machine = f"{os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}"
    page = HEAD.format(machine=machine, budget=asked.budget, rounds=asked.rounds)
    page += "\n".join(lines) + "\n"
    if asked.out:
        asked.out.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
