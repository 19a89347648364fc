"""The pages that `claims.py` writes, prose included."""

from __future__ import annotations

from collections import defaultdict
from math import log
from typing import TYPE_CHECKING, Any

from figures import ratio_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STILL = "nothing_helps"
LEAST_RATIO = 0.99  # no confirmed plan may be slower than this
HEADS = {
    "claims": """\
# What `tune` says, beside what `run` gives

Each script was tuned once with a budget of {budget}; then it ran by plain python and by
`hasten run` in turn, {rounds} rounds. *published* is what `tune` says, for as many passes over
the data as are run. The other ratios are of real runs, timed from outside: *loop* from the end of
the first optimizer step to that of the last, *first pass* and *later passes* the parts of it,
*whole run* the wall time, imports included.
An interval is of 95%; fewer than six rounds show their lowest and highest (marked r). A claim is
*met* where the interval of the loop meets the published one; a plan *harms* where the loop is below
{least}x.
""",
    "aa": """\
# Where nothing helps

Tunings of a script that no lever makes faster, each with a budget of {budget}.
""",
    "same": """\
# The same answer again

Several tunings of each script, with a budget of {budget}; their different plans and plain python
then ran in turn, {rounds} rounds. *Least* and *most* are of the real loops of the plans.
""",
    "neighbours": """\
# Beside another process

Each script was tuned with a budget of {budget} beside another process; then it ran by plain python
and under the plan in turn, {rounds} rounds, without that process. *in quiet* is the loop of the
plan that was found without it, by build {quiet}; *share* is of the log gain.
""",
    "healed": """\
# Beside a cure by hand

Real loops of made scripts under the plan of `tune`, and of the same scripts healed by hand as
somebody would who knows what ails them, in turn, {rounds} rounds. *share* is of the log gain.
""",
}
ARGUMENTS = {
    "aa": "--aa {count}", "same": "--same {count}", "healed": "--healed",
    "neighbours": "--neighbour busy --neighbour bursty",
}  # fmt: skip


def render(which: str, found: Mapping[str, Any], claimed: Mapping[str, Any]) -> str:
    """Return the page for a question.

    Args:
        which: the question, a key of `HEADS`.
        found: what was measured.
        claimed: the same for the claims page.

    >>> empty = {"machine": "", "build": "", "budget": "", "rounds": 6, "rows": {}}
    >>> "0 of 0" in render("claims", empty, empty)
    True
    """
    told = {name: value for name, value in found.items() if name != "rows"}
    head = HEADS[which].format(least=LEAST_RATIO, quiet=claimed["build"], **told)
    title, _, text = head.partition("\n\n")
    rows, quiet = found["rows"], claimed.get("rows", {})
    count = len(rows)
    if which == "claims":
        table = claims(rows.values())
    elif which == "aa":
        table = still(rows.values())
    elif which == "same":
        table, count = same(rows)
    elif which == "neighbours":
        table = neighbours(rows.values(), quiet)
    else:
        table = healed(rows.values())
    words = ARGUMENTS.get(which, "").format(count=count)
    command = "make bench-claims CHECKOUTS=folder" + (f' ARGUMENTS="{words}"' if words else "")
    return (
        f"{title}\n\n{found['machine']}, build {found['build']}\n\n{text}"
        "[PROTOCOL.md](PROTOCOL.md) says how scripts and sizes were chosen, and what is a "
        f"success.\n\n{table}\nReproduce with `{command}`.\n"
    )


def claims(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of claims, followed by their counts."""
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
    """Return the published ratio, or None if there is none."""
    seen = row.get("whole") or row["published"]
    return seen if seen and seen["mid"] is not None and row["plan"] else None


def verdict(row: Mapping[str, Any]) -> str:
    """Return the verdict on a claim.

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
    """Report how often a gain was claimed although there is none."""
    rows = list(rows)
    count = sum(published(row) is not None for row in rows)
    plans = [f"- {plan(row)}: {ratio_cell(published(row))}\n" for row in rows if published(row)]
    return f"{len(rows)} tunings of `{STILL}`: {count} claims.\n" + "".join(["\n", *plans])


def gain(row: Mapping[str, Any]) -> float:
    """Return the real ratio of a plan's loop; an empty plan counts as plain python."""
    seen = row.get("ratios", {}).get("loop")
    return seen["mid"] if seen else 1.0


def same(rows: Mapping[str, Any]) -> tuple[str, int]:
    """Return a table of how far tunings of one script differ, and how many there were.

    >>> same({"a/0": {"plan": {}, "published": None}, "a/plans": {}})[0].splitlines()[-1]
    '| a | 1 | 1 | 1.00x | 1.00x | 1.00 |'
    """
    by_script: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for key, row in rows.items():
        script, _, part = key.rpartition("/")
        if part != "plans":
            by_script[script].append(row)
    page = (
        "| script | tunings | plans | least | most | least over most |\n|---|---|---|---|---|---|\n"
    )
    for script, group in by_script.items():
        plans, seen = {plan(row) for row in group}, rows.get(f"{script}/plans", {})
        gains = sorted(gain(seen.get(plan(row), {})) for row in group)
        page += (
            f"| {script} | {len(group)} | {len(plans)} | {gains[0]:.2f}x | {gains[-1]:.2f}x | "
            f"{gains[0] / gains[-1]:.2f} |\n"
        )
    return page, max((len(group) for group in by_script.values()), default=0)


def neighbours(rows: Iterable[Mapping[str, Any]], quiet: Mapping[str, Any]) -> str:
    """Return the table of what is found beside a busy neighbour."""
    page = "| script | neighbour | plan | published | loop | in quiet | share |\n"
    page += "|---|---|---|---|---|---|---|\n"
    for row in rows:
        best = gain(quiet.get(row["script"], {}))
        share = f"{log(gain(row)) / log(best):.2f}" if best > 1.0 else ""
        page += (
            f"| {row['script']} | {row['neighbour']} | {plan(row)} | "
            f"{ratio_cell(published(row))} | {gain(row):.2f}x | {best:.2f}x | {share} |\n"
        )
    return page


def healed(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of what `run` gives slow scripts, compared with fixes by hand."""
    page = "| script | cure by hand | by hand | plan | loop | share |\n|---|---|---|---|---|---|\n"
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
