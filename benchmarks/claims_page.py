"""The page that `claims.py` writes, prose included."""

from __future__ import annotations

from collections import defaultdict
from math import log
from typing import TYPE_CHECKING, Any

from figures import ratio_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STILL = "nothing_helps"
LEAST_RATIO = 0.99  # no confirmed plan may be below
HEAD = """\
# What `tune` says, beside what `run` gives

{machine}, build {build}

Each script was tuned once with a budget of {budget}; then it ran by plain python and by
`hasten run` in turn, {rounds} rounds. *published* is what `tune` says, for as many passes over
the data as are run. The other ratios are of real runs, timed from outside: *loop* from the end of
the first optimizer step to that of the last, *first pass* and *later passes* the parts of it,
*whole run* the wall time, imports included.
An interval is of 95%; fewer than six rounds show their lowest and highest (marked r). A claim is
*met* where the interval of the loop meets the published one; a plan *harms* where the loop is below
{least}x. [PROTOCOL.md](PROTOCOL.md) says how scripts and sizes were chosen.

"""


def render(found: Mapping[str, Any]) -> str:
    """Return the page.

    >>> "0 of 0" in render({"machine": "", "build": "", "budget": "", "rounds": 6, "rows": {}})
    True
    """
    kinds: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, row in found["rows"].items():
        kinds[key.split("/")[0]][key] = row
    page = HEAD.format(least=LEAST_RATIO, **{k: v for k, v in found.items() if k != "rows"})
    page += claims(kinds["claims"].values())
    page += still(kinds["aa"].values()) if kinds["aa"] else ""
    page += same(kinds["same"].values(), kinds["plans"]) if kinds["same"] else ""
    page += noise(kinds["noise"].values(), kinds["claims"]) if kinds["noise"] else ""
    page += healed(kinds["healed"].values()) if kinds["healed"] else ""
    return page + "\nReproduce with `make bench-claims CHECKOUTS=folder`.\n"


def claims(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of claims and its count."""
    lines = [
        "| script | plan | published | loop | first pass | later passes | whole run | tuned in |"
        " verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for row in rows:
        verdicts.append(verdict(row))
        ratios = row.get("ratios", {})
        cells = [ratio_cell(ratios.get(part)) for part in ("loop", "first", "later", "wall")]
        lines.append(
            f"| {row['script']} | {plan(row)} | {ratio_cell(published(row))} | "
            f"{' | '.join(cells)} | {row['tune_s']:.0f} s | {verdicts[-1]} |"
        )
    made = [word for word in verdicts if word in ("met", "missed", "harms")]
    harms = sum(word == "harms" for word in made)
    return (
        "\n".join(lines)
        + f"\n\n{made.count('met')} of {len(made)} claims are met; {harms} plans harm.\n"
    )


def plan(row: Mapping[str, Any]) -> str:
    """Return a plan in words."""
    if row.get("failed"):
        return f"failed: {row['failed']}".replace("|", "/")
    words = ", ".join(f"{name}={setting}" for name, setting in row["plan"].items())
    return words + ("" if row["confirmed"] else " (unconfirmed)") if words else "nothing helps"


def published(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the published ratio, where there is one."""
    seen = row.get("whole") or row["published"]
    return seen if seen and seen["mid"] is not None and row["plan"] else None


def verdict(row: Mapping[str, Any]) -> str:
    """Return whether a claim is met.

    >>> row = {"plan": {"a": 1}, "published": {"low": 1.1, "mid": 1.2, "high": 1.3}}
    >>> [
    ...     verdict(row | {"ratios": {"loop": {"low": mid - 0.02, "mid": mid, "high": mid + 0.02}}})
    ...     for mid in (1.2, 1.09, 1.05, 0.9)
    ... ]
    ['met', 'met', 'missed', 'harms']
    """
    if row.get("failed"):
        return "failed"
    if not row.get("folder_same", True):
        return "changed the folder"
    claim, seen = published(row), row.get("ratios", {}).get("loop")
    if claim is None:
        return "no claim"
    if seen is None:
        return "not measured"
    if seen["mid"] < LEAST_RATIO:
        return "harms"
    return "met" if seen["high"] >= claim["low"] and seen["low"] <= claim["high"] else "missed"


def still(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how often a gain was claimed where there is none."""
    rows = list(rows)
    count = sum(published(row) is not None for row in rows)
    return f"\n## Where nothing helps\n\n{len(rows)} tunings of `{STILL}`: {count} claims.\n"


def gain(row: Mapping[str, Any]) -> float:
    """Return the real ratio of a plan's loop; an empty plan is plain python."""
    seen = row.get("ratios", {}).get("loop")
    return seen["mid"] if seen else 1.0


def same(rows: Iterable[Mapping[str, Any]], raced: Mapping[str, Any]) -> str:
    """Return how far tunings of one script differ."""
    by_script: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_script[row["script"]].append(row)
    page = (
        "\n## The same answer again\n\nSeveral tunings of one script; their plans then ran in turn."
    )
    page += " *Least* and *most* are of the real loops.\n\n"
    page += (
        "| script | tunings | plans | least | most | least over most |\n|---|---|---|---|---|---|\n"
    )
    for script, group in by_script.items():
        plans, seen = {plan(row) for row in group}, raced.get(f"plans/{script}", {})
        gains = sorted(gain(seen.get(plan(row), {})) for row in group)
        page += (
            f"| {script} | {len(group)} | {len(plans)} | {gains[0]:.2f}x | {gains[-1]:.2f}x | "
            f"{gains[0] / gains[-1]:.2f} |\n"
        )
    return page


def noise(rows: Iterable[Mapping[str, Any]], quiet: Mapping[str, Any]) -> str:
    """Return what is found beside a busy neighbour."""
    page = "\n## Beside another process\n\nReal loops of the plans that `tune` found meanwhile; the"
    page += " runs themselves had the machine to themselves. *share* is of the log gain.\n\n"
    page += "| script | neighbour | plan | loop | in quiet | share |\n|---|---|---|---|---|---|\n"
    for row in rows:
        best = gain(quiet.get(f"claims/{row['script']}", {}))
        share = f"{log(gain(row)) / log(best):.2f}" if best > 1.0 else ""
        page += (
            f"| {row['script']} | {row['neighbour']} | {plan(row)} | {gain(row):.2f}x | "
            f"{best:.2f}x | {share} |\n"
        )
    return page


def healed(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what `run` gives sick scripts beside a cure by hand."""
    page = (
        "\n## Beside a cure by hand\n\nThe real loops of made scripts under the plan of `tune`, and"
    )
    page += " of the same scripts healed by hand as somebody would who knows what ails them.\n"
    page += "*share* is of the log gain.\n\n"
    page += "| script | cure by hand | by hand | plan | loop | share |\n|---|---|---|---|---|---|\n"
    for row in rows:
        own, by_hand = (row.get(name, {}).get("ratios", {}) for name in ("run", "by hand"))
        best = by_hand["loop"]["mid"] if "loop" in by_hand else 1.0
        got = own["loop"]["mid"] if "loop" in own else 1.0
        share = f"{log(got) / log(best):.2f}" if best > 1.0 else ""
        page += (
            f"| {row['script']} | {row['cure']} | {ratio_cell(by_hand.get('loop'))} | "
            f"{plan(row)} | {ratio_cell(own.get('loop'))} | {share} |\n"
        )
    return page
