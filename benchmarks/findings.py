"""Hold the findings of public scripts against their source.

    python benchmarks/make_data.py CHECKOUTS
    python benchmarks/findings.py CHECKOUTS

Each script of `public.json` is profiled as it is. What somebody who read the source says of each
finding (true or false), and what was missed, stands in `findings-judged.json`; the page puts both
side by side. A finding that nobody judged yet shows as such.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import machine_line

HERE = Path(__file__).parent
JUDGED = HERE / "findings-judged.json"
LIMIT_S = 300.0
HEAD = """\
# Findings of public scripts, held against their source

{machine}

Each script was profiled once, unmodified, on made data in its own format. The share is that of a
training step, with its 95% interval. *Judged* is what a reader of the source says.

Reproduce with `python benchmarks/make_data.py CHECKOUTS` and `python benchmarks/findings.py
CHECKOUTS`; the judgements stand in [findings-judged.json](findings-judged.json).

"""


def profile(entry: dict[str, Any], folder: Path) -> list[dict[str, Any]] | str:
    """Return the findings of a script, or why there are none."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "profile.json")
        command = [
            sys.executable, "-m", "hasten", "profile", "--progress", "plain", "--json", str(path),
            entry["file"], *entry["argv"],
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, check=False, timeout=LIMIT_S, capture_output=True, text=True
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        findings = json.loads(path.read_text())["findings"]
    for one in findings:
        del one["why"]  # it contains timings of this machine
    for where in (where for one in findings for where in one["where"]):
        found = Path(where["path"])
        where["path"] = str(
            found.relative_to(folder) if found.is_relative_to(folder) else found.name
        )
    return findings


def share(finding: dict[str, Any]) -> str:
    """Return the share of a finding with its interval."""
    seen = finding["share"]
    if seen is None:
        return ""
    return f"{seen['mid']:.0%} [{seen['low']:.0%}, {seen['high']:.0%}]"


def place(finding: dict[str, Any]) -> str:
    """Return the first place of a finding, relative to the script."""
    where = finding["where"][:1]
    return "".join(f"`{one['path']}:{one['line']}`" for one in where)


def page(seen: dict[str, Any], judged: dict[str, Any]) -> str:
    """Return the tables."""
    lines = [HEAD.format(machine=machine_line())]
    for script, findings in seen.items():
        said = judged.get(script, {})
        lines += [f"## {script}", ""]
        if isinstance(findings, str):
            lines += [f"Not profiled: {findings}", ""]
            continue
        lines += ["| finding | share | where | judged |", "|---|---|---|---|"]
        for one in findings:
            verdict = said.get(one["id"], "not judged yet")
            cells = (f"`{one['id']}`", share(one), place(one), verdict)
            lines.append(f"| {' | '.join(cells)} |")
        if not findings:
            lines.append("| none | | | |")
        lines += ["", f"Missed: {said.get('missed', 'not judged yet')}", ""]
    return "\n".join(lines)


def main() -> None:
    """Profile the scripts and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", action="append", default=[], help="part of a name")
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    judged = json.loads(JUDGED.read_text()) if JUDGED.exists() else {}
    kept = asked.out / "findings.json"
    seen = json.loads(kept.read_text()) if kept.exists() else {}
    entries = json.loads((HERE / "public.json").read_text())
    for entry in entries:
        if asked.only and not any(part in entry["name"] for part in asked.only):
            continue
        seen[entry["name"]] = profile(entry, (asked.checkouts / entry["folder"]).resolve())
        kept.write_text(json.dumps(seen, indent=1) + "\n")
        print(
            entry["name"],
            [one if isinstance(one, str) else one["id"] for one in seen[entry["name"]]],
        )
    (asked.out / "findings.md").write_text(page(seen, judged))


if __name__ == "__main__":
    main()
