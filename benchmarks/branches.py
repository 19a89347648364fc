"""What would it give to run independent parts of a training side by side?

    python benchmarks/branches.py

Each of four trainings (`planted/branches.py`) whose parts do not depend on one another runs by
plain python, in turn with the same training written by hand for threads, with one thread, and under
`ranks`. The ruler is that of `claims.py`. What is done stands in `branches.json` and is not done
again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims import race
from figures import ratio_cell
from ranks import ONE_THREAD, parser_of, write_page

if TYPE_CHECKING:
    import argparse

HERE = Path(__file__).parent
SCRIPT = str(HERE / "planted" / "branches.py")
MODELS = ("towers", "ensemble", "distillation", "adversarial")
STEPS, COMPARED_STEPS = "150", "21"
HEAD = """\
# Independent parts, side by side

{machine}, build {build}

Four trainings ([branches.py](planted/branches.py)) ran for {steps} steps by plain python and in
three other ways, in turn, {rounds} rounds: *threads* is the same training written by hand, with
independent parts in threads of their own, one thread of torch each, forward and backward; *one
thread* is the script as it is, with one; `ranks={setting}` is `hasten run`. The ratios are of the
loop, from the end of the first step to that of the last. *losses* is the largest relative
difference between what plain python and *threads* print in {compared} steps.

| training | threads | one thread | ranks={setting} | losses |
|---|---|---|---|---|
"""


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Race one training; compare its losses with those of the way for threads."""
    entry = {"name": name, "file": SCRIPT, "short": [name, "own", STEPS]}
    ours = ["-m", "hasten", "run", "--quiet", "--set", f"ranks={asked.setting}", SCRIPT]
    others = {
        "threads": [SCRIPT, name, "threads", STEPS],
        "one thread": ["-c", ONE_THREAD, SCRIPT, name, "own", STEPS],
        "ranks": [*ours, name, "own", STEPS],
    }
    with tempfile.TemporaryDirectory() as scratch:
        losses = [printed(name, way) for way in ("own", "threads")]
        difference = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
        return race(entry, Path(scratch), others, asked) | {"losses": difference}


def printed(name: str, way: str) -> list[float]:
    """Return the losses that a training prints."""
    words = [sys.executable, SCRIPT, name, way, COMPARED_STEPS]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return [float(line.split()[1]) for line in done.stdout.splitlines()]


def page(kept: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    told = HEAD.format(
        steps=STEPS, compared=COMPARED_STEPS, **{k: v for k, v in kept.items() if k != "rows"}
    )
    for name, row in kept["rows"].items():
        cells = [ratio_cell(row[way]["ratios"].get("loop"), row[way].get("failed"))
                 for way in ("threads", "one thread", "ranks")]  # fmt: skip
        told += f"| {name} | {' | '.join(cells)} | {row['losses']:.1e} |\n"
    return told + "\nReproduce with `make bench-branches`.\n"


def main() -> None:
    """Measure what has not been measured yet, and write the page."""
    write_page("branches", MODELS, parser_of(__doc__).parse_args(), measure, page)


if __name__ == "__main__":
    sys.exit(main())
