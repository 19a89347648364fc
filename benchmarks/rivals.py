"""Race what a user would pick instead: the same scripts, whole runs, in turn in one run.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/rivals.py CHECKOUTS
    python benchmarks/rivals.py CHECKOUTS --gpu    # on the accelerator of this machine

Each script of `public.json`, or of `gpu.json`, is tuned first. Then it runs by plain python twice,
by `hasten run` and by each rival, in a shuffled order, `--rounds` times. A ratio is the wall time
of plain python over that of the other, within one round; imports, evaluation and compiling count.
Beside it stands the ratio of the steps alone, by the ruler of `claims.py`. `torch.compile`
needs an edit of the script, which `public.json` names; loadtune needs its parts and Lightning the
whole script rewritten (`rewritten.py`), which three of them are; the others take it as it is. One
that needs half as long again in each of its first rounds is not raced any further. With
`--seconds` no script is begun that might not be done by then.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from claims import build, environment, own, timed, tree_hash, tune, under
from figures import machine_line, ratio, ratio_cell

from hasten.compare import hodges_lehmann
from hasten.units import parse_duration

HERE = Path(__file__).parent
HOPELESS_ROUNDS, HOPELESS_RATIO = 3, 1 / 1.5
COMPILED, LOADTUNED = "hasten_bench_compiled.py", "hasten_bench_loadtuned.py"
DOCTORED = "hasten_bench_doctored.py"
DOCTOR = Path(sys.executable).with_name("train-doctor")
MADE = (COMPILED, LOADTUNED, DOCTORED)
REWRITTEN = HERE / "rewritten.py"
AGAIN = "plain python, again"
LAUNCHERS = {
    "torch.backends.xeon.run_cpu": ["-m", "torch.backends.xeon.run_cpu"],
    "accelerate launch": ["-m", "accelerate.commands.launch"],
}
ACCELERATE = (
    "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend",
    "no",
)  # fmt: skip
RIVALS = (
    "hasten run", AGAIN, *LAUNCHERS, "torch.compile (edited)", "loadtune (edited)",
    "Lightning (rewritten)", "train-doctor fix",
)  # fmt: skip
PAGES = {
    False: ("rivals", "public.json", "Beside what a user would pick instead"),
    True: ("gpu", "gpu.json", "On a GPU, beside what a user would pick instead"),
}
HEAD = """\
# {title}

{machine}, build {build}

Wall time of plain python over that of the other, of the same command, whole runs: imports, reading
data, evaluation and compiling count. Rounds in a shuffled order, {rounds} of them; the
Hodges-Lehmann estimate with its 95% interval, or with the lowest and highest round (marked r)
where there are fewer than six: what took half as long again in each of its first three rounds was
not raced further. Above 1 is faster than plain python. `torch.compile` and what loadtune chose are
edited into the script; Lightning has it rewritten, with all its defaults
([rewritten.py](rewritten.py)), where the parts can be imported; the others take it as it is.
"plain python, again" is the script as it is, raced against itself: what chance alone gives here.
"confirmed" is what `tune` says of the steps alone, by fresh launches with the plan and without.
Data is made, in the format of each script.

Reproduce with `make bench-{name} CHECKOUTS=folder` (a budget of {budget}); the commands stand in
[{scripts}]({scripts}), all rounds in [{name}-rounds.json]({name}-rounds.json).
[PROTOCOL.md](PROTOCOL.md) says how scripts and sizes were chosen.

"""


def edited(entry: dict[str, Any], folder: Path, name: str, edits: list[list[str]]) -> list[str]:
    """Write the script as a user would edit it; return the arguments for python."""
    text = (folder / entry["file"]).read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise SystemExit(f"{entry['name']}: the edit does not fit the script")
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return [name, *entry["short"]]


def compiled(entry: dict[str, Any], folder: Path) -> list[str] | None:
    """Return the command with `torch.compile`, or None if there is no such edit."""
    if "compile_argv" in entry:
        return [entry["file"], *entry["short"], *entry["compile_argv"]]
    return edited(entry, folder, COMPILED, [entry["compile"]]) if "compile" in entry else None


def loadtuned(entry: dict[str, Any], folder: Path, raw: Path) -> list[str]:
    """Let loadtune choose; return the command with its choice, maybe the unchanged script."""
    subprocess.run(
        [
            sys.executable, "-m", "loadtune.cli", "tune", str(REWRITTEN), "--save-raw", str(raw),
            "--no-plots", "--out", str(raw.with_suffix(".md")),
        ], cwd=folder, check=True,
    )  # fmt: skip
    tried = json.loads(raw.read_text())
    best, knobs = tried["baseline"]["throughput"], None
    for trial in tried["trials"]:
        if not trial["result"].get("error") and trial["result"]["throughput"] > best:
            best, knobs = trial["result"]["throughput"], trial["knobs"]
    print(f"  loadtune: {knobs or 'nothing better'}", flush=True)
    if knobs is None:
        return own(entry)
    words = {key: knobs[key] for key in ("num_workers", "pin_memory")}
    if knobs["num_workers"]:
        words["persistent_workers"] = knobs["persistent_workers"]
        words |= {"prefetch_factor": p} if (p := knobs["prefetch_factor"]) else {}
    old, new = entry["loadtune"]
    edits = [[old, new.replace("{kwargs}", repr(words))]]
    if knobs["num_threads"]:
        edits[0][1] += f"; torch.set_num_threads({knobs['num_threads']})"
    return edited(entry, folder, LOADTUNED, edits + [entry["compile"]] * knobs["compile"])


def doctored(entry: dict[str, Any], folder: Path, out: Path) -> list[str]:
    """Return the command for a copy of the script that train-doctor was asked to fix."""
    shutil.copy(folder / entry["file"], folder / DOCTORED)
    done = subprocess.run(
        [
            DOCTOR, "fix", "--keep", "--quiet", "--out", out, "--",
            sys.executable, DOCTORED, *entry["argv"],
        ], cwd=folder, env=environment(entry), check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    same = (folder / DOCTORED).read_text() == (folder / entry["file"]).read_text()
    print(f"  train-doctor: exit {done.returncode}, {'nothing' if same else 'edited'}", flush=True)
    return [DOCTORED, *entry["short"]]


def launchers(*, gpu: bool) -> dict[str, list[str]]:
    """Return the launchers that are installed, with their options."""
    options = {"accelerate launch": [*ACCELERATE, *([] if gpu else ["--cpu"])]}
    if not gpu:
        options["torch.backends.xeon.run_cpu"] = []
    return {n: [*LAUNCHERS[n], *words] for n, words in options.items() if present(LAUNCHERS[n][1])}


def commands(entry: dict[str, Any], folder: Path, plan: Path, *, gpu: bool) -> dict[str, list[str]]:
    """Return the commands to run, by name; plain python comes first."""
    found = {"plain python": own(entry), AGAIN: own(entry)}
    for name, words in launchers(gpu=gpu).items():
        found[name] = [*words, *own(entry)]
    if plan.exists():
        found["hasten run"] = under(plan, entry)
    if words := compiled(entry, folder):
        found["torch.compile (edited)"] = words
    if "loadtune" in entry and present("loadtune"):
        found["loadtune (edited)"] = loadtuned(entry, folder, plan.with_name("loadtune.json"))
    if {"loadtune", "lightning"} & entry.keys() and present("pytorch_lightning"):
        found["Lightning (rewritten)"] = [str(REWRITTEN), *entry["short"]]
    if DOCTOR.exists():
        found["train-doctor fix"] = doctored(entry, folder, plan.with_name("doctor"))
    return found


def present(module: str) -> bool:
    """Return whether a rival is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def race(
    entry: dict[str, Any], found: dict[str, list[str]], folder: Path, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return ratios of whole runs and loops, round by round; a failing command has none."""
    coin = random.Random(3)
    ratios: dict[str, dict[str, list[float]]] = {name: {"wall": [], "loop": []} for name in found}
    alive = list(found)
    for _ in range(rounds):
        seen = {name: timed(entry, found[name], folder) for name in coin.sample(alive, len(alive))}
        plain = seen["plain python"]
        if plain is None:
            raise SystemExit(f"the script itself fails in {folder}")
        for name, parts in seen.items():
            if parts is None:
                alive.remove(name)
                ratios[name] = {"wall": [], "loop": []}
                continue
            for part in plain.keys() & parts.keys() & ratios[name].keys():
                ratios[name][part].append(plain[part] / parts[part])
            walls = ratios[name]["wall"]
            if len(walls) == HOPELESS_ROUNDS and max(walls) < HOPELESS_RATIO:
                alive.remove(name)
    return ratios


def told(ratios: list[float]) -> str:
    """Return a ratio with its spread."""
    return ratio_cell(ratio([math.log(r) for r in ratios])) or "failed"


def page(rows: dict[str, dict[str, Any]], asked: argparse.Namespace) -> str:
    """Return the tables: whole runs, the steps alone, and what `tune` found."""
    name, scripts, title = PAGES[asked.gpu]
    budget = asked.budget
    facts = HEAD.format(
        title=title, name=name, scripts=scripts, machine=machine_line() + gpu_name(),
        rounds=asked.rounds, budget=budget, build=build(),
    )  # fmt: skip
    facts += "## Whole runs\n\n" + table(rows, "wall") + "\n## Steps alone\n\n"
    facts += "From the end of the first optimizer step to that of the last.\n\n"
    facts += table(rows, "loop") + "\n## What `tune` found\n\n"
    facts += "| script | plan | confirmed | effect | launches | time to plan |\n"
    facts += "|---|---|---|---|---|---|\n"
    for script, row in rows.items():
        facts += (
            f"| {script} | {row['plan']} | {confirmed(row)} | {row['effect']} | {row['launches']} "
            f"| {share_of_budget(row, budget)} |\n"
        )
    return facts


def gpu_name() -> str:
    """Return the name of the accelerator, as more of a line; empty without one."""
    import torch

    return f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""


def table(rows: dict[str, dict[str, Any]], part: str) -> str:
    """Return the table of ratios for one part of the runs, with the mean of each rival."""
    names = [name for name in RIVALS if any(name in row["ratios"] for row in rows.values())]
    lines = ["| script | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for script, row in rows.items():
        cells = [told(row["ratios"][n][part]) if n in row["ratios"] else "" for n in names]
        lines.append(f"| {script} | " + " | ".join(cells) + " |")
    lines.append(f"| **geometric mean** | {' | '.join(means(rows, names, part))} |")
    return "\n".join(lines) + "\n"


def share_of_budget(row: dict[str, Any], budget: str) -> str:
    """Return how much of its budget a tuning took; empty if it failed."""
    return f"{row['tune_s'] / parse_duration(budget):.0%} of the budget" if row["tune_s"] else ""


def confirmed(row: dict[str, Any]) -> str:
    """Return what `tune` claims for the steps."""
    seen = row["speedup"]
    return f"{seen['mid']:.2f}x [{seen['low']:.2f}, {seen['high']:.2f}]" if seen else ""


def means(rows: dict[str, dict[str, Any]], names: list[str], part: str) -> list[str]:
    """Return the geometric mean of each rival, counting a failed run as plain python.

    For a rival that runs only some of the scripts, hasten's mean over these is given too.
    """
    found = []
    for name in names:
        own = [row for row in rows.values() if name in row["ratios"]]
        failed = sum(not row["ratios"][name][part] for row in own)
        told = f"**{geometric_mean(own, name, part):.2f}x**" if own else ""
        told += f" ({failed} failed, as 1.00x)" if failed else ""
        if own and len(own) < len(rows):
            told += f" ({len(own)} scripts; hasten {geometric_mean(own, 'hasten run', part):.2f}x)"
        found.append(told)
    return found


def geometric_mean(rows: list[dict[str, Any]], name: str, part: str) -> float:
    """Return the geometric mean ratio of one command over several scripts."""
    seen = [row["ratios"].get(name, {}).get(part) or [1.0] for row in rows]
    logs = [hodges_lehmann([math.log(r) for r in ratios]) for ratios in seen]
    return math.exp(sum(logs) / len(logs))


def measure(entry: dict[str, Any], folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Tune a script and race it."""
    with tempfile.TemporaryDirectory() as scratch:
        plan, before = Path(scratch, "hasten.toml"), tree_hash(folder)
        found = tune(entry, folder, plan, asked.budget)
        if tree_hash(folder) != before:
            raise SystemExit(f"{entry['name']}: tune changed the folder")
        try:
            todo = commands(entry, folder, plan, gpu=asked.gpu)
            ratios = race(entry, todo, folder, asked.rounds)
        finally:
            for name in MADE:
                (folder / name).unlink(missing_ok=True)
    return {
        "ratios": ratios,
        "plan": "failed" if "failed" in found
        else ", ".join(f"{k}={v}" for k, v in found["plan"].items()) or "nothing helps",
        "effect": found.get("maths", {}).get("effect", ""),
        "launches": found.get("cost", {}).get("launches", 0),
        "tune_s": found["wall_s"],
        "speedup": found.get("speedup"),
    }  # fmt: skip


def main() -> None:
    """Run the benchmark and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--gpu", action="store_true", help="the scripts of gpu.json")
    parser.add_argument("--budget", default="75s")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the whole")
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument(
        "--resume", action="store_true", help="keep the scripts that are done, but for the --only"
    )
    asked = parser.parse_args()
    name, scripts, _ = PAGES[asked.gpu]
    done, begun_s, longest_s = asked.out / f"{name}-rounds.json", time.monotonic(), 0.0
    rows = json.loads(done.read_text()) if asked.resume and done.exists() else {}
    entries = json.loads((HERE / scripts).read_text())
    for entry in entries:
        named = any(part in entry["name"] for part in asked.only)
        if not named if asked.only else entry["name"] in rows:
            continue
        script_s = time.monotonic()
        if script_s - begun_s + longest_s > asked.seconds:
            break
        rows[entry["name"]] = measure(entry, (asked.checkouts / entry["folder"]).resolve(), asked)
        rows = {e["name"]: rows[e["name"]] for e in entries if e["name"] in rows}
        longest_s = max(longest_s, time.monotonic() - script_s)
        asked.out.mkdir(exist_ok=True)
        done.write_text(json.dumps(rows, indent=1) + "\n")
        (asked.out / f"{name}.md").write_text(page(rows, asked))
        print(f"{entry['name']}: done", flush=True)


if __name__ == "__main__":
    main()
