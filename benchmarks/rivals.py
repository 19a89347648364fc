"""Race what a user would pick instead: the same scripts, whole runs, in turn in one run.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/rivals.py CHECKOUTS --budget 2m --rounds 5

Each script of `rivals.json` is tuned first. Then it runs by plain python, by `upshift run` and by
each rival, in a shuffled order, `--rounds` times. A ratio is the wall time of plain python over
that of the other, within one round; imports, evaluation and compiling count. `torch.compile` needs
an edit of the script, which `rivals.json` names; the others take it as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import machine_line, ratio, ratio_cell
from first_light import tree_hash

from upshift.compare import hodges_lehmann
from upshift.units import parse_duration

HERE = Path(__file__).parent
LIMIT_S = 600.0
EDITED = "upshift_bench_compiled.py"
RIVALS = {
    "upshift run": None,
    "torch.backends.xeon.run_cpu": ["-m", "torch.backends.xeon.run_cpu"],
    "accelerate launch": [
        "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no",
    ],
    "torch.compile (edited)": None,
}  # fmt: skip
HEAD = """\
# Beside what a user would pick instead

{machine}

Wall time of plain python over that of the other, of the same command, whole runs: imports, reading
data, evaluation and compiling count. Rounds in a shuffled order, {rounds} of them; the
Hodges-Lehmann estimate with its 95 % interval, or with the lowest and highest round (marked r)
where there are fewer than six. Above 1 is faster than plain python. `torch.compile` needs an edit
of the script; the others take it as it is. Data is made, in the format of each script.

Reproduce with `python benchmarks/make_data.py CHECKOUTS` and `python benchmarks/rivals.py
CHECKOUTS --budget {budget} --rounds {rounds}`; the commands stand in [rivals.json](rivals.json),
all rounds in [rivals-rounds.json](rivals-rounds.json).

"""


def tune(entry: dict[str, Any], folder: Path, plan: Path, budget: str) -> dict[str, Any] | None:
    """Tune a script; return what was found, None where it failed."""
    document = plan.with_suffix(".json")
    command = [
        sys.executable, "-m", "upshift", "tune", "--plain", "--budget", budget, "--plan", str(plan),
        "--json", str(document), entry["file"], *entry["argv"],
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, check=False)
    return json.loads(document.read_text()) if done.returncode == 0 else None


def edit(entry: dict[str, Any], folder: Path) -> list[str] | None:
    """Write the script as a user would for `torch.compile`; return the words after python."""
    if "compile_argv" in entry:
        return [entry["file"], *entry["short"], *entry["compile_argv"]]
    if "compile" not in entry:
        return None
    old, new = entry["compile"]
    text = (folder / entry["file"]).read_text()
    if text.count(old) != 1:
        raise SystemExit(f"{entry['name']}: the edit does not fit the script")
    (folder / EDITED).write_text(text.replace(old, new))
    return [EDITED, *entry["short"]]


def commands(entry: dict[str, Any], folder: Path, plan: Path | None) -> dict[str, list[str]]:
    """Return what is run, by name; plain python first."""
    own = [entry["file"], *entry["short"]]
    found = {"plain python": own}
    for name, words in RIVALS.items():
        if words is None or (words[0] == "-m" and not present(words[1])):
            continue
        found[name] = [*words, *own]
    if plan is not None:
        found["upshift run"] = [
            "-m", "upshift", "run", "--quiet", "--force", "--plan", str(plan), *own
        ]  # fmt: skip
    if edited := edit(entry, folder):
        found["torch.compile (edited)"] = edited
    return found


def present(module: str) -> bool:
    """Return whether a rival is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def wall_s(words: list[str], folder: Path) -> float | None:
    """Return the seconds of a whole run, None where it failed."""
    started_s = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, check=False, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"  failed: {' '.join(words[:6])}: {done.stderr.strip()[-300:]}", flush=True)
        return None
    return time.perf_counter() - started_s


def race(found: dict[str, list[str]], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the ratios of each rival, round by round; one that fails is not tried again."""
    coin, ratios = random.Random(3), {name: [] for name in found}
    alive = list(found)
    for _ in range(rounds):
        walls = {}
        for name in coin.sample(alive, len(alive)):
            walls[name] = wall_s(found[name], folder)
        plain = walls["plain python"]
        if plain is None:
            raise SystemExit(f"the script itself fails in {folder}")
        for name, wall in walls.items():
            if wall is None:
                alive.remove(name)
                ratios[name] = []
            else:
                ratios[name].append(plain / wall)
    return ratios


def told(ratios: list[float]) -> str:
    """Return a ratio with its spread."""
    return ratio_cell(ratio([math.log(r) for r in ratios])) or "failed"


def page(rows: dict[str, dict[str, Any]], machine: str, rounds: int, budget: str) -> str:
    """Return the tables."""
    names = [*RIVALS]
    lines = ["| script | " + " | ".join(names) + " | plan | effect | launches | time to plan |"]
    lines.append("|" + "---|" * (len(names) + 5))
    for script, row in rows.items():
        cells = [told(row["ratios"][name]) if name in row["ratios"] else "" for name in names]
        lines.append(
            f"| {script} | " + " | ".join(cells)
            + f" | {row['plan']} | {row['effect']} | {row['launches']}"
            + f" | {share_of_budget(row, budget)} |"
        )  # fmt: skip
    lines.append("| **geometric mean** | " + " | ".join(means(rows, names)) + " | | | | |")
    facts = HEAD.format(machine=machine_line(), rounds=rounds, budget=budget)
    return facts + "\n".join(lines) + "\n"


def share_of_budget(row: dict[str, Any], budget: str) -> str:
    """Return how much of its budget a tuning took, empty where it failed."""
    return f"{row['tune_s'] / parse_duration(budget):.0%} of the budget" if row["tune_s"] else ""


def means(rows: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
    """Return the geometric mean of each rival, where a failed run counts as plain python."""
    found = []
    for name in names:
        logs = [
            hodges_lehmann([math.log(r) for r in row["ratios"].get(name) or [1.0]])
            for row in rows.values()
        ]
        failed = sum(not row["ratios"].get(name) for row in rows.values())
        mean = math.exp(sum(logs) / len(logs))
        found.append(f"**{mean:.2f}x**" + (f" ({failed} failed, as 1.00x)" if failed else ""))
    return found


def measure(entry: dict[str, Any], folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Tune a script and race it."""
    with tempfile.TemporaryDirectory() as scratch:
        plan, before = Path(scratch, "upshift.toml"), tree_hash(folder)
        found = tune(entry, folder, plan, asked.budget)
        if tree_hash(folder) != before:
            raise SystemExit(f"{entry['name']}: tune changed the folder")
        try:
            todo = commands(entry, folder, plan if plan.exists() else None)
            ratios = race(todo, folder, asked.rounds)
        finally:
            (folder / EDITED).unlink(missing_ok=True)
    return {
        "ratios": ratios,
        "plan": ", ".join(f"{k}={v}" for k, v in found["plan"].items()) or "nothing helps"
        if found else "failed",
        "effect": found["maths"]["effect"] if found else "",
        "launches": found["cost"]["launches"] if found else 0,
        "tune_s": found["cost"]["wall_s"] if found else 0.0,
        "speedup": found["speedup"] if found else None,
    }  # fmt: skip


def main() -> None:
    """Run the benchmark and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--resume", action="store_true", help="keep the scripts that are done")
    asked = parser.parse_args()
    done = asked.out / "rivals-rounds.json"
    rows = json.loads(done.read_text()) if asked.resume and done.exists() else {}
    for entry in json.loads((HERE / "rivals.json").read_text()):
        if asked.only and not any(part in entry["name"] for part in asked.only):
            continue
        if entry["name"] in rows:
            continue
        rows[entry["name"]] = measure(entry, (asked.checkouts / entry["folder"]).resolve(), asked)
        asked.out.mkdir(exist_ok=True)
        done.write_text(json.dumps(rows, indent=1) + "\n")
        (asked.out / "rivals.md").write_text(page(rows, machine_line(), asked.rounds, asked.budget))
        print(page(rows, machine_line(), asked.rounds, asked.budget).splitlines()[-2], flush=True)


if __name__ == "__main__":
    main()
