"""A tuning as Markdown, for an issue or a pull request on GitHub.

Text from the user's code or machine is escaped: a pipe does not break a table, an `@name`
mentions nobody, and a `#12` links to nothing.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hasten.records import Outcome
from hasten.report import findings, steps, text
from hasten.report.wording import EFFECTS, PASSED, command_line, granted, interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hasten.records import Finding, Machine, Place, Tuning

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~])")
_LINKING = re.compile(r"([@#])(?=\w)|(?<=\w)(#)(?=\d)")


def render(tuning: Tuning, *, plan_path: Path, snippets: Mapping[str, str]) -> str:
    """Return the page: the answer first, how to reproduce it last.

    Args:
        tuning: what was found.
        plan_path: the path of the plan file.
        snippets: for each lever, the code that a user would write by hand.
    """
    parts = [
        ["## " + escaped(text.headline(tuning))],
        _answer(tuning),
        _section("Plan", _plan(tuning)),
        _section("Where time goes", _phases(tuning)),
        _section("What makes it slow", _findings(tuning)),
        _section("What it does to the maths", _gates(tuning)),
        _section("Machine", _machine(tuning.machine)),
        _section("How to reproduce", _commands(tuning, plan_path, snippets)),
        _folded("What else was tried, and what was not", _others(tuning)),
        _folded("Notes", [f"- {escaped(note)}" for note in tuning.notes]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def escaped(sentence: str) -> str:
    r"""Return a sentence on one line, escaped so that it reads literally.

    >>> print(escaped("a|b <c> by @me in #12"))
    a\|b &lt;c&gt; by @<!-- -->me in #<!-- -->12
    """
    flat = " ".join(sentence.split())
    plain = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = _SPECIAL.sub(r"\\\1", plain)
    return _LINKING.sub(lambda found: f"{found[0]}<!-- -->", plain)


def code(source: str) -> str:
    r"""Return a code span that is safe inside a table.

    >>> print(code("a | b"), code("`x`"))
    `a \| b` `` `x` ``
    """
    flat = " ".join(source.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", flat)), default=0)
    fence = "`" * (longest + 1)
    room = " " if longest else ""
    return f"{fence}{room}{flat}{room}{fence}" if flat else ""


def _answer(tuning: Tuning) -> list[str]:
    said = [f"`{_flat(command_line('tune', tuning.workload))}`"]
    if tuning.speedup is not None:
        of = "" if tuning.passes is None else " of training steps"
        if tuning.passes is not None and tuning.passes.longer_s:
            of = " of training steps from the second pass on"
        measured = interval(tuning.speedup)
        said.append(f"Measured in fresh launches: **{measured}**{of}, 95% interval.")
    if tuning.plan.settings:
        said.append(f"Effect: {tuning.proof.effect} ({EFFECTS[tuning.proof.effect]}).")
    said += granted(tuning.assumed)
    said += text.circumstances(tuning)
    return ["  \n".join(said)]


def _flat(command: str) -> str:
    return command.replace("`", "'")


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *rows] if rows else []


def _folded(title: str, rows: Sequence[str]) -> list[str]:
    if not rows:
        return []
    return [f"<details><summary>{title}</summary>", "", *rows, "", "</details>"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> list[str]:
    """Return a table; its last `numbers` columns are right-aligned. Cells are Markdown."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return []
    marks = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(head)} |", f"| {' | '.join(marks)} |", *body]


def _plan(tuning: Tuning) -> list[str]:
    known = {row.lever: row for row in tuning.levers if row.outcome is Outcome.KEPT}
    rows = []
    for name, setting in tuning.plan.settings:
        row = known.get(name)
        gain = interval(row.speedup) if row is not None and row.speedup else ""
        said = (str(row.effect), escaped(row.why)) if row is not None else ("", "set by hand")
        rows.append((code(name), code(str(setting)), gain, *said))
    return _table(("lever", "setting", "alone", "effect", "why"), rows)


def _phases(tuning: Tuning) -> list[str]:
    profiles = [one for one in (tuning.baseline, tuning.tuned) if one is not None]
    head = ["phase", "before", "share", "after", "share"][: 1 + 2 * len(profiles)]
    *rows, total = steps.phase_rows(*profiles)
    bold = [cell and f"**{cell}**" for cell in total]
    return _table(head, [*rows, bold], numbers=len(head) - 1)


def _findings(tuning: Tuning) -> list[str]:
    found = tuning.diagnosis.findings if tuning.diagnosis else ()
    cwd = tuning.workload.cwd
    return _table(
        ("costs", "finding", "measured", "what to do", "where"),
        (
            (
                findings.cost(one), code(one.name), escaped(one.message), _remedy(one),
                "<br>".join(_place(place, cwd) for place in one.places),
            )
            for one in found
        ),
    )  # fmt: skip


def _remedy(finding: Finding) -> str:
    said = escaped(finding.remedy)
    return f"{said} (lever {code(finding.lever)})" if finding.lever else said


def _place(place: Place, cwd: str) -> str:
    where = code(f"{os.path.relpath(place.path, cwd)}:{place.line}")
    return f"{where} {code(place.source)}".rstrip()


def _gates(tuning: Tuning) -> list[str]:
    bold = PASSED | {False: "**failed**"}
    rows = ((bold[g.passed], escaped(g.name), escaped(g.message)) for g in tuning.proof.gates)
    return _table(("gate", "name", "measured"), rows)


def _machine(machine: Machine) -> list[str]:
    torch = machine.torch
    known = {
        "processor": machine.cpu.model,
        "cores for the job": f"{machine.budget.core_count} (by {machine.budget.limited_by})",
        "system": machine.system,
        "python": machine.python_version,
        "torch": torch.version if torch else None,
        "accelerators": ", ".join(torch.accelerators) if torch else None,
    }
    rows = [f"- {name}: {escaped(str(value))}" for name, value in known.items() if value]
    return rows + [f"- {escaped(caveat.problem)}" for caveat in machine.caveats]


def _commands(tuning: Tuning, plan_path: Path, snippets: Mapping[str, str]) -> list[str]:
    commands = [command_line("tune", tuning.workload)]
    if tuning.plan.settings:
        commands.append(command_line("run", tuning.workload, plan_path=plan_path))
    parts = ["```sh", *commands, "```"]
    by_hand = [(n, snippets[n].strip("\n")) for n, _ in tuning.plan.settings if snippets.get(n)]
    if by_hand:
        parts += ["", "Or by hand:", "", "```python"]
        for name, source in by_hand:
            parts += [f"# {name}", source]
        parts.append("```")
    return parts


def _others(tuning: Tuning) -> list[str]:
    rows = (
        (
            code(text.setting(row)), row.outcome,
            interval(row.speedup) if row.speedup else "", escaped(row.why),
        )
        for row in tuning.levers
        if row.outcome is not Outcome.KEPT
    )  # fmt: skip
    return _table(("lever", "outcome", "speed-up", "why"), rows)
