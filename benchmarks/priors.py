"""Make `src/hasten/search/priors.toml` from the records that are committed here.

    python benchmarks/priors.py             # from the records
    python benchmarks/priors.py --measure   # tunes the scripts of `examples/` anew first

The search orders its trials by what each lever did to the phases of a step that it acts on. A
figure of whole steps counts as one of their phases, which gained at least as much. Read are

- `priors-loader.json`: cases of the data engine, "end to end" or "time in the loader";
- `priors.json`: documents of `hasten tune --json` of the examples, by their rows of levers, those
  that were dropped too.

No script that another benchmark reports is among them: what a search gains on those must not come
from having seen them.

Where several levers were pulled together, each gets an even share of the log of the speed-up. A
lever helped where the lower end of the interval is above 1. The result depends on nothing but
these files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median, pstdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "hasten" / "search" / "priors.toml"
TUNE_KEYS = {"schema", "workload", "plan", "levers", "baseline"}
HEAD = """\
# What levers did to other scripts. Made by `python benchmarks/priors.py`: do not edit.
#
# script_count: on how many a lever was tried; helped_count: on how many of them it helped.
# log_gain: median log of the speed-up of the phases that it acts on, where it helped, or of whole
# steps, of which they are a part. log_spread: standard deviation of these logs over the scripts.
# from: the file and case of each figure.
"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One lever on one script."""

    lever: str
    source: str
    log_gain: float
    helped: bool


def shared(
    levers: list[str], source: str, *, mid_ratio: float, low_ratio: float
) -> Iterator[Record]:
    """Split a figure evenly among the levers that were applied for it."""
    for lever in levers:
        yield Record(
            lever=lever,
            source=source,
            log_gain=log(mid_ratio) / len(levers),
            helped=low_ratio > 1.0,
        )


def from_loader(path: Path) -> Iterator[Record]:
    """Read records from the cases of the data engine."""
    for case in json.loads(path.read_text())["cases"]:
        ratio = case["ratio"]
        if case["failed"] or not ratio:
            continue
        levers = [text.split("=")[0] for text in case["levers"]]
        yield from shared(
            levers,
            f"{path.name}: {case['case']}",
            mid_ratio=ratio["mid"],
            low_ratio=ratio["low"],
        )


def from_tunings(path: Path) -> Iterator[Record]:
    """Read the lever rows of every tuning in a document, however deeply nested."""
    for index, document in enumerate(tunings(json.loads(path.read_text()))):
        argv = document["workload"].get("argv") or [str(index)]
        source = f"{path.name}: {Path(argv[0]).name} {index}"
        for row in document["levers"]:
            speedup = row.get("speedup")
            if not speedup or not speedup.get("mid"):
                continue
            helped = row["verdict"] == "kept" and speedup["low"] > 1.0
            yield Record(
                lever=row["lever"],
                source=source,
                log_gain=log(speedup["mid"]),
                helped=helped,
            )


def tunings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the `hasten tune` documents nested in a value."""
    if isinstance(value, dict):
        if value.keys() >= TUNE_KEYS and isinstance(value["levers"], list):
            yield value
            return
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        for item in value:
            yield from tunings(item)


def read_records(folder: Path) -> list[Record]:
    """Read every record in a folder, in a fixed order."""
    return [
        record
        for name, read in (("priors-loader.json", from_loader), ("priors.json", from_tunings))
        if (path := folder / name).exists()
        for record in read(path)
    ]


def entry(lever: str, records: list[Record]) -> str:
    """Return the lines for one lever."""
    gains = [record.log_gain for record in records if record.helped]
    lines = [
        f"[lever.{lever}]",
        f"script_count = {len(records)}",
        f"helped_count = {len(gains)}",
        f"log_gain = {median(gains or [0.0]):.3f}",
        f"log_spread = {pstdev(gains or [0.0]):.3f}",
    ]
    sources = "".join(f"    {json.dumps(record.source)},\n" for record in records)
    return "\n".join(lines) + f"\nfrom = [\n{sources}]\n"


def render(folder: Path) -> str:
    """Return the whole file."""
    levers: dict[str, list[Record]] = {}
    for record in read_records(folder):
        levers.setdefault(record.lever, []).append(record)
    return "\n".join([HEAD, *(entry(lever, levers[lever]) for lever in sorted(levers))])


def measure(folder: Path, budget: str) -> None:
    """Tune each example with the current priors, and keep the documents."""
    documents = {}
    for path in sorted((HERE.parent / "examples").glob("*.py")):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "out.json")
            subprocess.run(
                [
                    sys.executable, "-m", "hasten", "tune", "--progress", "plain",
                    "--budget", budget,
                    "--plan", str(Path(scratch, "hasten.toml")), "--json", str(out), path.name,
                ], cwd=path.parent, check=True,
            )  # fmt: skip
            found = json.loads(out.read_text())
        documents[path.name] = {key: found[key] for key in TUNE_KEYS} | {
            "workload": {"argv": [path.name]}, "baseline": {},
        }  # fmt: skip
    (folder / "priors.json").write_text(json.dumps(documents, indent=1) + "\n")


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--measure", action="store_true")
    asked.add_argument("--budget", default="5m")
    words = asked.parse_args()
    if words.measure:
        measure(HERE, words.budget)
    TARGET.write_text(render(HERE))
    print(f"wrote {TARGET}")
