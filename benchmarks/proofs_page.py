"""The page that `proofs.py` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = """\
# What the engine's proof says of public datasets

{machine}

A data lever is applied where a proof shows that it changes no bit
([what exact means](../docs/what-exact-means.md)). Here are {classes} dataset classes of {repos}
public repositories, at the commits of [proofs.json](proofs.json), which also says how each is
made: unmodified, over made data in its own format, in a plain script with a DataLoader without
workers. They were chosen before any of them was tried, and none was left out; where a dataset did
not run at the first try, its data or options were mended.

- **{proven} of the {running} that run here are proven**; {before} were before the proof was mended
  (commit {commit}, the same classes).
- Batches and random states of the proven ones, two passes under
  `hasten run --set loader_workers=2 --set sample_cache=1GiB`: {same} of {proven} are those of
  plain Python, to the bit.
- A proof took {median:.2f} s of processor time in the median, {most:.2f} s at most.

`random` marks items that draw from the global generators: they are not cached. A reason is what
the engine itself gives, with its line in the repository; *judged* is what a reader of the source
says of it.

Reproduce with `make bench-proofs CHECKOUTS=folder`, where `folder/OWNER/NAME` is a checkout of each
repository; all figures are in [proofs-results.json](proofs-results.json).

| repository | class | before | proven | why not | judged |
|---|---|---|---|---|---|
"""
BROKEN = """
## Those that do not run here

With today's libraries, and without the network:

| repository | class | error |
|---|---|---|
"""
NEEDS = """
## What else was installed

Beside torch, torchvision, numpy and Pillow: {needs}. None of them brought another torch.
"""


def name_of(entry: Mapping[str, Any]) -> str:
    """Return the name of a class in the results."""
    return f"{entry['repo']}:{entry['file']}:{entry['class']}"


def page(
    entries: Sequence[Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Any],
    machine: str,
) -> str:
    """Return the page.

    Args:
        entries: the entries of `proofs.json`.
        results: what was found, by name.
        before: the commit before the proof was fixed, and the names that were proved there.
        machine: the machine it was found on.
    """
    running = [one for one in entries if "error" not in results[name_of(one)]]
    broken = [one for one in entries if "error" in results[name_of(one)]]
    proven = [results[name_of(one)] for one in running if results[name_of(one)]["whole"]]
    seconds = sorted(results[name_of(one)]["seconds"] for one in running)
    head = HEAD.format(
        machine=machine, classes=len(entries), repos=len({one["repo"] for one in entries}),
        proven=len(proven), running=len(running), same=sum(one["same"] for one in proven),
        before=sum(name_of(one) in before["proven"] for one in running), commit=before["commit"],
        median=seconds[len(seconds) // 2], most=seconds[-1],
    )  # fmt: skip
    lines = [_line(one, results[name_of(one)], before["proven"]) for one in running]
    errors = [
        f"| {one['repo']} | `{one['class']}` | {_cell(results[name_of(one)]['error'])} |"
        for one in broken
    ]
    needs = sorted({need for one in entries for need in one.get("needs", ())})
    return "".join((
        head, "\n".join(lines), "\n", BROKEN, "\n".join(errors), "\n",
        NEEDS.format(needs=", ".join(needs)),
    ))  # fmt: skip


def _line(entry: Mapping[str, Any], found: Mapping[str, Any], before: Sequence[str]) -> str:
    said = "yes" if found["whole"] else "no"
    if found["whole"] and not found["same"]:
        said = "yes, **but the bits differ**"
    if found["draws"]:
        said += ", random"
    why = ""
    if found["gaps"]:
        _, what, where = found["gaps"][0]
        why = f"{_cell(what)} (`{where}`)" if where else _cell(what)
    earlier = "yes" if name_of(entry) in before else "no"
    judged = "" if found["whole"] else entry.get("judged", "")
    link = f"[`{entry['class']}`](https://github.com/{entry['repo']}/blob/{entry['commit']}/{entry['file']})"
    return f"| {entry['repo']} | {link} | {earlier} | {said} | {why} | {judged} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
