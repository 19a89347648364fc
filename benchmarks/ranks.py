"""Does it help to share each batch among processes, and does `tune` say so?

    python benchmarks/ranks.py

Each of six models (`planted/ranked.py`) is tuned with the lever `ranks` alone. Then it runs by
plain python, by plain python with one thread, and under the setting that fills the cores, in turn.
The ruler is that of `claims.py`. What is done stands in `ranks.json` and is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims import build, race, tune
from figures import machine_line, ratio_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
MODELS = (
    "convolutions", "transformer", "transformer_with_dropout", "recurrent", "autoencoder",
    "contrastive",
)  # fmt: skip
ENDLESS, SHORT = "1000000", "150"
ONE_THREAD = "import torch, runpy, sys; torch.set_num_threads(1); del sys.argv[0]; " + (
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
HEAD = """\
# Each batch in several processes

{machine}, build {build}

Six models ([ranked.py](planted/ranked.py)) ran for {steps} steps by plain python, with one thread,
and under `ranks={setting}`, in turn, {rounds} rounds: *loop* from the end of the first step to that
of the last. *published* is what `tune --only ranks` said with a budget of {budget}.

| model | ranks={setting}, loop | whole run | one thread, loop | published |
|---|---|---|---|---|
"""


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Tune and race one model."""
    entry = {
        "name": name, "file": str(HERE / "planted" / "ranked.py"), "argv": [name, ENDLESS],
        "short": [name, SHORT], "by_hand": name == "recurrent",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = tune(entry, folder, folder / "hasten.toml", asked.budget, ("--only", "ranks"))
        ours = ["-m", "hasten", "run", "--quiet", "--set", f"ranks={asked.setting}"]
        others = {
            "ranks": [*ours, entry["file"], *entry["short"]],
            "one thread": ["-c", ONE_THREAD, entry["file"], *entry["short"]],
        }
        seen = race(entry, folder, others, asked)
    return seen | {
        "plan": found.get("plan", {}), "published": found.get("speedup"),
        "failed": found.get("failed"),
    }  # fmt: skip


def page(kept: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    told = HEAD.format(steps=SHORT, **{k: v for k, v in kept.items() if k != "rows"})
    for name, row in kept["rows"].items():
        ours, alone = row["ranks"]["ratios"], row["one thread"]["ratios"]
        said = ratio_cell(row["published"]) if row["published"] else "nothing helps"
        if row["plan"] and not row["published"]:
            said = "unconfirmed"
        told += (
            f"| {name} | {ratio_cell(ours.get('loop'))} | {ratio_cell(ours.get('wall'))} | "
            f"{ratio_cell(alone.get('loop'))} | {row['failed'] or said} |\n"
        )
    return told + "\nReproduce with `make bench-ranks`.\n"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that benchmarks of planted models share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--setting", default=f"{len(os.sched_getaffinity(0))}x1")
    parser.add_argument("--out", type=Path, default=HERE)
    return parser


def write_page(
    name: str,
    models: Sequence[str],
    asked: argparse.Namespace,
    measure: Callable[[str, argparse.Namespace], dict[str, Any]],
    page: Callable[[dict[str, Any]], str],
) -> None:
    """Measure the models that have not been measured yet, and write the page after each."""
    told = {option: value for option, value in vars(asked).items() if option != "out"}
    settings = {"machine": machine_line(), "build": build()} | told
    file = asked.out / f"{name}.json"
    kept = json.loads(file.read_text()) if file.exists() else settings | {"rows": {}}
    if any(kept[option] != value for option, value in settings.items()):
        raise SystemExit(f"{file} was begun with other settings. Take another --out, or delete it.")
    for model in models:
        if model not in kept["rows"]:
            print(model, flush=True)
            kept["rows"][model] = measure(model, asked)
            file.write_text(json.dumps(kept, indent=1) + "\n")
            file.with_suffix(".md").write_text(page(kept))
    print(file.with_suffix(".md").read_text())


def main() -> None:
    """Measure what has not been measured yet, and write the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--budget", default="60s")
    write_page("ranks", MODELS, parser.parse_args(), measure, page)


if __name__ == "__main__":
    sys.exit(main())
