"""The page that `loader.py` writes, with ratios and never times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from figures import ratio_cell
from loader_choice import LARGEST_COUNT, NEAR_RATIO

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = """\
# The data engine against torch's own

{machine}

{warning}`ratio` is the time of plain `python script.py` over that of `hasten run --set ...
script.py`, both unmodified, in turn in one run: the Hodges-Lehmann estimate with its 95%
interval. `same bits` compares hashes of all batches (types, strides and pin flags too), of the
random states of torch, Python and numpy after each epoch, and of the weights after training on
the batches. Cases marked * start a fresh process for each block; in the others both processes
stay and their first block does not count.

Reproduce with `python benchmarks/loader.py`, or one row with `--only NAME`; all rounds are in
[loader.json](loader.json).

| case | what | ratio | target | same bits | levers |
|---|---|---|---|---|---|
"""
PEERS_HEAD = """
## Side by side

Samples per second over those of the stock DataLoader with the script's own settings, in the same
rounds as above. Brackets hold the 95% interval, or the lowest and highest round where there were
fewer than six (marked r). Other engines need an edit of the script; SPDL is asked for batches in
order; grain runs in its threads. `workers` is the fastest of those that were tried.

| case | engine | workers | ratio | same bits |
|---|---|---|---|---|
"""
CHOICE_HEAD = """
## The number of workers

Time per step with the chosen number over that with the best of a sweep from 0 to {largest},
measured again where they differ. A step is {step}. Target: {target} at most.

| loader, per item | chosen | best of the sweep | ratio | |
|---|---|---|---|---|
"""


def bits_cell(bits: str | None) -> str:
    """Return whether the bits are the same, and where they first differ."""
    if bits is None:
        return ""
    return f"no: {bits}" if bits else "yes"


def case_line(row: Mapping[str, Any]) -> str:
    """Return one line of the first table."""
    target = "" if row["target"] is None else f">= {row['target']:g}x"
    cells = (
        row["case"] + ("*" if row.get("is_fresh") else ""), row["what"],
        ratio_cell(row.get("ratio"), row.get("failed")), target, bits_cell(row.get("bits")),
        ", ".join(row["levers"]),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def peer_line(row: Mapping[str, Any]) -> str:
    """Return one line of the second table."""
    cells = (
        row["case"], row["engine"], str(row["workers"]), ratio_cell(row["ratio"], row["failed"]),
        bits_cell(row["bits"]),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def choice_line(row: Mapping[str, Any]) -> str:
    """Return one line of the third table."""
    if "failed" in row:
        return f"| {row['loader']} | {row['failed']} | | | |"
    near = "near" if row["ratio"] <= NEAR_RATIO else "off"
    return f"| {row['loader']} | {row['chosen']} | {row['best']} | {row['ratio']:.2f} | {near} |"


def page_of(found: Mapping[str, Any]) -> str:
    """Return the whole page."""
    warning = (
        "**A trial run with `--quick`: the ratios mean nothing.**\n\n" if found["quick"] else ""
    )
    page = HEAD.format(machine=found["machine"], warning=warning)
    page += "".join(f"{case_line(row)}\n" for row in found["cases"])
    if found["peers"]:
        page += PEERS_HEAD + "".join(f"{peer_line(row)}\n" for row in found["peers"])
    if found["choice"]:
        page += CHOICE_HEAD.format(
            largest=LARGEST_COUNT,
            step="4 ms of work, a batch 8 items",
            target=f"{NEAR_RATIO:.2f}",
        )
        page += "".join(f"{choice_line(row)}\n" for row in found["choice"])
    return page
