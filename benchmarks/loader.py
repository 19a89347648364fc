"""Race the data engine against torch's own DataLoader, and other engines, on made data.

    python benchmarks/loader.py                     everything: about a quarter of an hour
    python benchmarks/loader.py --only rows         one case, or several
    python benchmarks/loader.py --quick             whether all runs; the figures mean nothing

For each case one unmodified script runs as `python script.py` and as `hasten run --set ...
script.py`, in turn and in random order, in this one run. Only ratios are written, with paired
intervals, to `loader.md` and `loader.json`. In runs of their own both also hash all batches, the
random states after each epoch and the final weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

import loader_choice  # noqa: E402  after the path to hasten
from figures import machine_line, ratio  # noqa: E402
from loader_cases import CASES, Case  # noqa: E402
from loader_page import case_line, choice_line, page_of, peer_line  # noqa: E402
from loader_peers import PEERS, Peer  # noqa: E402
from loader_race import Failed, Race, TrialProcess, differ, hashes  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGES = ("torch", "torchvision", "numpy", "pillow", "torchdata", "spdl-core", "grain")
FRESH_ROUNDS, LIVING_ROUNDS = 6, 10
PEER_FRESH_ROUNDS, PEER_LIVING_ROUNDS = 3, 6
CHOICE = "choice"


def missing(case: Case, levers: Mapping[str, Any]) -> str:
    """Say why a case cannot run here; "" if it can."""
    from hasten.lever import discover

    if absent := [name for name in case.needs if find_spec(name) is None]:
        return f"skipped: {', '.join(absent)} not installed"
    if absent := [name for name in levers if name not in discover()]:
        return f"lever missing: {', '.join(absent)}"
    return ""


def hasten_arm(script: Path, levers: Mapping[str, Any]) -> TrialProcess:
    """Return the arm of `hasten run`."""
    applied = [word for pair in words_of(levers) for word in ("--set", pair)]
    command = (sys.executable, "-m", "hasten", "run", "--quiet", *applied, str(script))
    return TrialProcess(name="hasten", command=command)


def words_of(levers: Mapping[str, Any]) -> list[str]:
    """Return the levers as written on the command line."""
    return [f"{name}={setting}" for name, setting in levers.items()]


class TrialRunner:
    """One case: its folder, its scripts, its arms.

    Args:
        case: what is measured.
        folder: a folder of its own, for data and scripts.
        levers: the levers to apply.
        quick: use little data and one round.
    """

    def __init__(self, case: Case, folder: Path, levers: Mapping[str, Any], *, quick: bool) -> None:
        self.case, self.folder, self.levers, self.quick = case, folder, levers, quick
        self.numbers = case.settings(quick=quick)
        self.stock = self._arm("stock")

    def _write(self, name: str, text: str) -> Path:
        serial = len(list(self.folder.glob("*.py")))
        path = self.folder / f"{name.partition(' ')[0]}-{serial}.py"
        path.write_text(text)
        return path

    def _arm(self, name: str, peer: Peer | None = None, **numbers: int) -> TrialProcess:
        text = self.case.script(self.folder / "data", **{**self.numbers, **numbers})
        path = self._write(name, text if peer is None else peer.apply(text))
        return TrialProcess(name=name, command=(sys.executable, str(path)))

    def run(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Measure the case; return its row and the rows of its peers."""
        if self.case.make is not None:
            self.case.make(self.folder / "data", self.numbers)
        ours = hasten_arm(Path(self.stock.command[1]), self.levers)
        with Race(self.folder, stays=self.case.is_living) as race:
            peers = self._settle(race) if self.case.has_peers else []
            arms = [arm for _, arm, _ in peers if arm is not None]
            peer_round_count = PEER_LIVING_ROUNDS if self.case.is_living else PEER_FRESH_ROUNDS
            for place in range(self._round_count()):
                race.round([self.stock, ours, *(arms if place < peer_round_count else [])])
            # a quick run asks the running processes; otherwise each hash gets a new process
            bits = self._bits([ours, *arms], race.hashes if self.quick else self._hashes)
        row = self._row(race, ours, bits)
        beside = [self._peer_row(race, bits, *found) for found in peers]
        if self.case.has_peers:
            first = {"case": self.case.name, "engine": "hasten", "workers": "unchanged"}
            beside.insert(0, {**first, **{k: row[k] for k in ("ratio", "bits", "failed")}})
        return row, beside

    def _round_count(self) -> int:
        if self.quick:
            return 1
        return LIVING_ROUNDS if self.case.is_living else FRESH_ROUNDS

    def _settle(self, race: Race) -> list[tuple[Peer, TrialProcess | None, int]]:
        """Return the fastest arm of each peer, by one block for each number of workers."""
        found: list[tuple[Peer, TrialProcess | None, int]] = []
        own_count = self.numbers["WORKERS"]
        for peer in PEERS:
            if not peer.is_installed:
                found.append((peer, None, 0))
                continue
            counts = peer.worker_counts or (own_count,)
            counts = counts[-1:] if self.quick else counts
            swept = {
                count: self._arm(f"{peer.name} {count}", peer, WORKERS=count) for count in counts
            }
            sweep = race.round(list(swept.values())) if len(swept) > 1 else {}
            walls_s = {count: sweep.get(arm.name, float("inf")) for count, arm in swept.items()}
            best = min(walls_s, key=lambda count: walls_s[count])
            # under a new name, because the block that chose it must not count as evidence
            chosen = TrialProcess(name=f"{peer.name} {best} again", command=swept[best].command)
            found.append((peer, chosen, best))
        return found

    def _hashes(self, arm: TrialProcess) -> dict[str, Any]:
        return hashes(arm, self.folder)

    def _bits(
        self, arms: Sequence[TrialProcess], ask: Callable[[TrialProcess], dict[str, Any]]
    ) -> dict[str, str | Failed]:
        """Say for each arm where its bits differ from those of the stock script.

        Nothing is timed here, so several arms run at once.
        """
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            expected = threads.submit(ask, self.stock)
            asked = {arm.name: threads.submit(ask, arm) for arm in arms}
        bits: dict[str, str | Failed] = {}
        for name, answer in asked.items():
            error = answer.exception()
            if error is not None and not isinstance(error, Failed):
                raise error
            bits[name] = error or differ(expected.result(), answer.result())
        return bits

    def _row(
        self, race: Race, ours: TrialProcess, bits: Mapping[str, str | Failed]
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"case": self.case.name, "what": self.case.what}
        row |= {"target": self.case.target_ratio, "levers": words_of(self.levers)}
        row |= {"is_fresh": not self.case.is_living}
        return row | self._outcome(race, ours, bits)

    def _peer_row(
        self,
        race: Race,
        bits: Mapping[str, str | Failed],
        peer: Peer,
        arm: TrialProcess | None,
        worker_count: int,
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"case": self.case.name, "engine": peer.name}
        if arm is None:
            return row | {"workers": "", "failed": "not installed", "ratio": None, "bits": None}
        return row | {"workers": worker_count} | self._outcome(race, arm, bits)

    def _outcome(
        self, race: Race, arm: TrialProcess, bits: Mapping[str, str | Failed]
    ) -> dict[str, Any]:
        """Return the ratio of an arm, whether its bits are the same, and what went wrong."""
        found = bits[arm.name]
        failed = race.failures.get(self.stock.name) or race.failures.get(arm.name)
        if isinstance(found, Failed):
            failed = failed or str(found)
        return {
            "ratio": ratio(race.logs(self.stock, arm)),
            "bits": None if isinstance(found, Failed) else found,
            "failed": failed,
        }


def measure(
    case: Case, levers: Mapping[str, Any], *, quick: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure one case; a failure becomes a row too."""
    row: dict[str, Any] = {"case": case.name, "what": case.what, "target": case.target_ratio}
    row |= {"levers": words_of(levers)}
    if reason := missing(case, levers):
        return row | {"failed": reason}, []
    with tempfile.TemporaryDirectory(prefix="hasten-bench-") as folder:
        try:
            return TrialRunner(case, Path(folder), levers, quick=quick).run()
        except Failed as failure:
            return row | {"failed": f"the script failed: {failure}"}, []


def applied_by_hand(words: Sequence[str]) -> dict[str, str]:
    """Return levers given as NAME=SETTING."""
    return dict(word.split("=", 1) for word in words)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*(case.name for case in CASES), CHOICE]
    parser.add_argument("--quick", action="store_true", help="whether everything runs; no figures")
    parser.add_argument("--only", action="append", default=[], choices=names, help="repeatable")
    parser.add_argument("--no-peers", action="store_true", help="leave the other engines out")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=SETTING",
        help="pull these instead of those of the cases",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=HERE, help="folder of loader.md, loader.json")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark and write both files."""
    from dataclasses import replace

    asked = arguments()
    random.seed()
    found = earlier(asked) | {"machine": machine_line(PACKAGES), "quick": asked.quick}
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        shown = replace(case, has_peers=case.has_peers and not asked.no_peers)
        row, peers = measure(shown, applied_by_hand(asked.set) or case.levers, quick=asked.quick)
        found["cases"] = merged(found["cases"], [row])
        if shown.has_peers:
            found["peers"] = merged(found["peers"], peers)
        print("\n".join([case_line(row), *map(peer_line, peers)]), flush=True)
        write(found, asked.out)
    if not asked.only or CHOICE in asked.only:
        with tempfile.TemporaryDirectory(prefix="hasten-bench-") as folder:
            found["choice"] = loader_choice.measure(Path(folder), quick=asked.quick)
        print("\n".join(map(choice_line, found["choice"])), flush=True)
        write(found, asked.out)


def earlier(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the results of an earlier run if only part is measured again, else empty ones."""
    path = asked.out / "loader.json"
    if asked.only and not asked.quick and path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept
    return {"cases": [], "peers": [], "choice": []}


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all rows in the order of the cases, with new rows replacing old ones."""
    again = {row["case"] for row in new}
    rows = [*(row for row in old if row["case"] not in again), *new]
    order = [case.name for case in CASES]
    return sorted(rows, key=lambda row: order.index(row["case"]))


def write(found: dict[str, Any], folder: Path) -> None:
    """Write the page and the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loader.md").write_text(page_of(found))
    (folder / "loader.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
