"""Hold what `hasten tune` publishes against what `hasten run` gives, by a ruler of its own.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/claims.py CHECKOUTS                 # every script, then the page
    python benchmarks/claims.py CHECKOUTS --made          # the made scripts alone
    python benchmarks/claims.py CHECKOUTS --only gpt --rounds 2 --budget 20s --out /tmp/x
    python benchmarks/claims.py CHECKOUTS --aa 20         # tunings where nothing helps
    python benchmarks/claims.py CHECKOUTS --same 10       # ten tunings of each of four scripts
    python benchmarks/claims.py CHECKOUTS --neighbour busy --neighbour bursty
    python benchmarks/claims.py CHECKOUTS --healed        # made scripts beside a cure by hand

Each script is tuned, its folder compared, and then it runs by plain python and by `hasten run` in
turn. The ruler (`ruler/sitecustomize.py`) is torch's own hook on optimizer steps; the wall clock is
read from outside. Each question has a page of its own, which names the build that answered it, and
beside it a file of what is done, which is not done again: a run that was stopped goes on.
PROTOCOL.md says what is a success.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import claims_page
from figures import machine_line, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
LIMIT_S = 1_200.0
IGNORED = {".git", "__pycache__"}
NEIGHBOURS = {
    "busy": "while True: pass",
    "bursty": (
        "import random, time\nrandom.seed(3)\n"
        "while True:\n"
        "    until = time.monotonic() + random.expovariate(1 / 2)\n"
        "    while time.monotonic() < until: pass\n"
        "    time.sleep(random.expovariate(1 / 2))"
    ),
}
BY_HAND = {"LSTM language model"}  # scripts that update their weights without an optimizer
PARTS = ("loop", "first", "later", "wall")


def scripts(checkouts: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the scripts to measure: public ones in their checkouts, made ones in a copy."""
    made = json.loads((HERE / "made.json").read_text())
    found = [] if asked.made else json.loads((HERE / "public.json").read_text())
    for entry in made:
        name = entry["name"]
        found.append({"folder": "made", "file": f"{name}.py", "made": True, **entry})
    copy_made(checkouts / "made")
    return [e for e in found if not asked.only or any(part in e["name"] for part in asked.only)]


def copy_made(folder: Path) -> None:
    """Copy the made scripts, and write their pictures, to where trials may run."""
    import numpy as np
    from PIL import Image

    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for path in (HERE / "made").glob("*.py"):
        shutil.copy2(path, folder)
    drawn = np.random.default_rng(0)
    for place in range(600):
        pixels = drawn.integers(256, size=(96, 96, 3), dtype=np.uint8)
        if not (path := folder / "pictures" / f"{place:03d}.png").exists():
            Image.fromarray(pixels).save(path)


def tree_hash(folder: Path) -> str:
    """Return a hash of the names and contents of everything in a folder but `IGNORED`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if IGNORED & set(path.parts):
            continue
        digest.update(str(path.relative_to(folder)).encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def beside(kind: str | None) -> Iterator[None]:
    """Keep another process running meanwhile."""
    if kind is None:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", NEIGHBOURS[kind]]) as process:
        try:
            yield
        finally:
            process.kill()


def environment(entry: dict[str, Any], *first: str, **more: str) -> dict[str, str]:
    """Return the environment of a script, with `first` at the front of its PYTHONPATH."""
    paths = [*first, os.environ.get("PYTHONPATH"), entry.get("pythonpath")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def tune(
    entry: dict[str, Any], folder: Path, plan: Path, budget: str, words: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Tune a script, with more options; return its document, or why it failed."""
    document = plan.with_suffix(".json")
    command = [
        sys.executable, "-m", "hasten", "tune", "--progress", "plain", "--budget", budget,
        "--plan", str(plan),
        "--json", str(document), *words, entry["file"], *entry["argv"],
    ]  # fmt: skip
    begun_s = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment(entry), check=False, capture_output=True, text=True
    )
    found = json.loads(document.read_text()) if document.exists() else {}
    if done.returncode:
        found["failed"] = " ".join(done.stderr.split()) or "no word"
    return found | {"wall_s": time.monotonic() - begun_s}


def whole(found: dict[str, Any], step_count: float) -> dict[str, float] | None:
    """Return what `tune` claims for a run of so many steps, first pass and evaluation included.

    >>> found = {"speedup": {"low": 4.0, "mid": 5.0, "high": 6.0}, "baseline": {"step_s": 0.1}}
    >>> passes = {"longer_s": 8.0, "outside_s": 0.0, "outside_under_s": 0.0}
    >>> round(whole(found | {"passes": passes}, 500)["mid"], 2)
    2.78
    >>> whole(found, 500)
    {'low': 4.0, 'mid': 5.0, 'high': 6.0}
    """
    said, passes = found.get("speedup"), found.get("passes")
    if not said or not passes:
        return said
    step_s, spent_s = found["baseline"]["step_s"], passes["outside_s"]
    plain_s, outside_s, under_s = (
        step_count * seconds for seconds in (step_s, spent_s, passes["outside_under_s"])
    )
    later_s = under_s + passes["longer_s"]
    return {end: (plain_s + outside_s) / (plain_s / said[end] + later_s) for end in said}


def timed(entry: dict[str, Any], words: list[str], folder: Path) -> dict[str, float] | None:
    """Run a script to its end; return the seconds of its parts, or None if it failed."""
    with tempfile.TemporaryDirectory(prefix="ruler-") as out:
        by_hand = entry.get("by_hand", entry["name"] in BY_HAND)
        step = "backward" if by_hand else "optimizer"
        env = environment(entry, str(HERE / "ruler"), RULER_OUT=out, RULER_STEP=step)
        begun_s = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *words], cwd=folder, env=env, check=False, timeout=LIMIT_S,
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        wall_s = time.monotonic() - begun_s
        if done.returncode:
            print(f"  failed: {' '.join(words[:4])}: {done.stderr.strip()[-300:]}", flush=True)
            return None
        ends = max((json.loads(p.read_text()) for p in Path(out).iterdir()), key=len, default=[])
    return {"wall": wall_s} | parts(ends, entry.get("pass_steps"))


def parts(ends: list[int], pass_steps: int | None) -> dict[str, float]:
    """Return the seconds of the loop, its first pass and later passes, and the number of steps.

    >>> parts([0, 2 * 10**9, 3 * 10**9, 4 * 10**9], 2)
    {'loop': 4.0, 'steps': 4.0, 'first': 2.0, 'later': 2.0}
    """
    if len(ends) < 2:
        return {}
    found = {"loop": (ends[-1] - ends[0]) / 1e9, "steps": float(len(ends))}
    if pass_steps and len(ends) >= 2 * pass_steps:
        found["first"] = (ends[pass_steps - 1] - ends[0]) / 1e9
        found["later"] = (ends[-1] - ends[pass_steps - 1]) / 1e9
    return found


def own(entry: dict[str, Any]) -> list[str]:
    """Return the arguments for a complete run."""
    return [entry["file"], *entry["short"]]


def under(plan: Path, entry: dict[str, Any]) -> list[str]:
    """Return the arguments for the same run under a plan."""
    return ["-m", "hasten", "run", "--quiet", "--force", "--plan", str(plan), *own(entry)]


def race(
    entry: dict[str, Any], folder: Path, others: dict[str, list[str]], asked: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Race the plain run against each other command; return the ratios of the parts of a run."""
    rounds, coin = asked.rounds, random.Random(3)
    commands = {"": own(entry)} | others
    logs: dict[str, dict[str, list[float]]] = {name: {} for name in others}
    failed, plain = set(), {}
    for number in range(rounds):
        names = coin.sample(sorted(commands.keys() - failed), len(commands) - len(failed))
        seen = {name: timed(entry, commands[name], folder) for name in names}
        failed |= {name for name, parts_s in seen.items() if parts_s is None}
        plain = seen.get("") or {}
        for name in others.keys() - failed if plain else ():
            for part in plain.keys() & seen[name].keys():
                logs[name].setdefault(part, []).append(log(plain[part] / seen[name][part]))
            print(f"  round {number + 1}: {name} " + told(logs[name], number), flush=True)
    found = {}
    for name in others:
        ratios = {part: ratio(logs[name][part]) for part in PARTS if part in logs[name]}
        found[name] = {"ratios": ratios, "step_count": plain.get("steps", 0)}
        if {"", name} & failed:
            found[name] = {"failed": "a run failed", "ratios": {}}
    return found


def told(logs: dict[str, list[float]], number: int) -> str:
    """Return the ratios of one round, as text."""
    from math import exp

    return ", ".join(f"{part} {exp(logs[part][number]):.2f}x" for part in PARTS if part in logs)


def measure(
    entry: dict[str, Any], asked: argparse.Namespace, neighbour: str | None, *, runs: bool
) -> dict[str, Any]:
    """Tune one script and, if `runs`, compare the claim with real runs."""
    folder = (asked.checkouts / entry["folder"]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        plan, before = Path(scratch, "hasten.toml"), tree_hash(folder)
        with beside(neighbour):
            found = tune(entry, folder, plan, asked.budget)
        row = {
            "script": entry["name"], "made": bool(entry.get("made")), "neighbour": neighbour,
            "plan": found.get("plan", {}), "published": found.get("speedup"),
            "whole": found.get("speedup"),
            "confirmed": found.get("speedup") is not None,
            "effect": found.get("maths", {}).get("effect", ""), "tune_s": found["wall_s"],
            "failed": found.get("failed"), "folder_same": tree_hash(folder) == before,
        }  # fmt: skip
        print(f"  {row['plan'] or row['failed'] or 'nothing'} {row['published']}", flush=True)
        if row["plan"] and plan.exists():
            row["plan_file"] = plan.read_text()
            if runs:
                row |= race(entry, folder, {"run": under(plan, entry)}, asked)["run"]
                row["whole"] = whole(found, row.get("step_count", 0)) or row["published"]
    return row


def race_again(
    entry: dict[str, Any], asked: argparse.Namespace, tuned: list[dict[str, Any]]
) -> dict[str, Any]:
    """Compare the different plans from several tunings of a script with one another."""
    with tempfile.TemporaryDirectory() as scratch:
        plans: dict[str, list[str]] = {}
        for row in tuned:
            if (words := claims_page.plan(row)) not in plans and "plan_file" in row:
                plan = Path(scratch, f"{len(plans)}.toml")
                plan.write_text(row["plan_file"])
                plans[words] = under(plan, entry)
        folder = (asked.checkouts / entry["folder"]).resolve()
        return race(entry, folder, plans, asked) if plans else {}


def heal(
    entry: dict[str, Any], cures: dict[str, Any], asked: argparse.Namespace, claims: dict[str, Any]
) -> dict[str, Any]:
    """Compare what `run` gives a made script under its claimed plan with a fix by hand."""
    cure, tuned = cures[entry["name"]], claims.get(entry["name"], {})
    folder = (asked.checkouts / entry["folder"]).resolve()
    text = (folder / entry["file"]).read_text()
    for before, after in cure["edits"]:
        if text.count(before) != 1:
            raise SystemExit(f"{entry['file']} has changed: {before!r} stands in cures.json.")
        text = text.replace(before, after)
    healed = folder / f"healed_{entry['file']}"
    healed.write_text(text)
    with tempfile.TemporaryDirectory() as scratch:
        others = {"by hand": own(entry | {"file": healed.name})}
        if tuned.get("plan") and "plan_file" in tuned:
            plan = Path(scratch, "hasten.toml")
            plan.write_text(tuned["plan_file"])
            others["run"] = under(plan, entry)
        seen = race(entry, folder, others, asked)
    return {"script": entry["name"], "cure": cure["cure"], "confirmed": tuned.get("confirmed"),
            "plan": tuned.get("plan", {})} | seen  # fmt: skip


Work = tuple[str, "Callable[[dict[str, Any]], dict[str, Any]]"]


def question(asked: argparse.Namespace) -> str:
    """Return which page was requested.

    Raises:
        SystemExit: more than one was.
    """
    options = {"aa": asked.aa, "same": asked.same, "neighbours": asked.neighbour,
               "healed": asked.healed}  # fmt: skip
    questions = [name for name, value in options.items() if value] or ["claims"]
    if len(questions) > 1:
        raise SystemExit(f"Ask one question at a time: {' and '.join(questions)} were asked.")
    return questions[0]


def todo(asked: argparse.Namespace, claims: dict[str, Any]) -> Iterator[Work]:
    """Yield each requested measurement: its key, and a function that makes it from earlier rows.

    Args:
        asked: the command-line options.
        claims: the rows of the claims page.
    """
    found = scripts(asked.checkouts, asked)
    steady = [entry for entry in found if entry.get("repeated")] or found

    def tuned(entry: dict[str, Any], neighbour: str | None = None, *, runs: bool) -> Any:
        return lambda _rows: measure(entry, asked, neighbour, runs=runs)

    which = question(asked)
    if which == "claims":
        yield from ((entry["name"], tuned(entry, runs=True)) for entry in found)
    elif which == "aa":
        (still,) = (entry for entry in found if entry["name"] == claims_page.STILL)
        yield from ((str(index), tuned(still, runs=False)) for index in range(asked.aa))
    elif which == "same":
        for entry in steady:
            yield from repeated(entry, asked, tuned(entry, runs=False))
    elif which == "neighbours":
        for kind in asked.neighbour:
            yield from ((f"{kind}/{e['name']}", tuned(e, kind, runs=True)) for e in steady)
    else:
        yield from cured(found, asked, claims)


def cured(
    found: list[dict[str, Any]], asked: argparse.Namespace, claims: dict[str, Any]
) -> Iterator[Work]:
    """Yield the race of each script that has a fix by hand."""
    cures = json.loads((HERE / "cures.json").read_text())
    for entry in (entry for entry in found if entry["name"] in cures):
        yield entry["name"], lambda _rows, e=entry: heal(e, cures, asked, claims)


def repeated(entry: dict[str, Any], asked: argparse.Namespace, tuned: Any) -> Iterator[Work]:
    """Yield several tunings of a script, and then a race of their plans."""
    keys = [f"{entry['name']}/{index}" for index in range(asked.same)]
    yield from ((key, tuned) for key in keys)
    yield (
        f"{entry['name']}/plans",
        lambda rows: race_again(entry, asked, [rows[key] for key in keys]),
    )


def main() -> None:
    """Measure what has not been measured yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--budget", default="75s")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--made", action="store_true", help="leave the public scripts out")
    parser.add_argument("--aa", type=int, default=0, help="tunings where nothing helps")
    parser.add_argument("--same", type=int, default=0, help="tunings of each of four scripts")
    parser.add_argument("--neighbour", action="append", default=[], choices=sorted(NEIGHBOURS))
    parser.add_argument("--healed", action="store_true", help="beside a cure by hand")
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    which = question(asked)
    asked.checkouts.mkdir(parents=True, exist_ok=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    settings = {"machine": machine_line(), "build": build(), "budget": asked.budget,
                "rounds": asked.rounds}  # fmt: skip
    done, page = (asked.out / f"{which}.{end}" for end in ("json", "md"))
    kept = read(done) or settings | {"rows": {}}
    if any(kept[name] != value for name, value in settings.items()):
        raise SystemExit(f"{done} was begun with other settings. Take another --out, or delete it.")
    claims = kept if which == "claims" else read(asked.out / "claims.json") or settings
    if which == "healed" and claims["build"] != settings["build"]:
        raise SystemExit("The claims are of another build, and so are their plans. Make them anew.")
    for key, work in todo(asked, claims.get("rows", {})):
        if key in kept["rows"]:
            continue
        print(f"{which}/{key}", flush=True)
        kept["rows"][key] = work(kept["rows"])
        done.write_text(json.dumps(kept, indent=1) + "\n")
        page.write_text(claims_page.render(which, kept, claims))
    print(page.read_text())


def read(path: Path) -> dict[str, Any] | None:
    """Return what was measured earlier, or None if nothing was."""
    return json.loads(path.read_text()) if path.exists() else None


def build() -> str:
    """Return a hash of hasten and of the measured scripts, as committed."""
    measured = ["src", "benchmarks/made", "benchmarks/made.json", "benchmarks/public.json"]

    def git(*words: str) -> str:
        command = ["git", *words, "--", *measured]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    content = hashlib.sha256(git("ls-tree", "HEAD").encode()).hexdigest()[:12]
    return f"{content}-dirty" if git("status", "--porcelain") else content


if __name__ == "__main__":
    main()
