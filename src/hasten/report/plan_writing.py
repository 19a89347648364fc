"""Writing a plan file, with comments that explain it.

Apart from reading it, since `hasten run` does without what writing imports.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import tomlkit

from hasten.records import Entry, Outcome
from hasten.report.files import write_atomically
from hasten.report.plan_file import SCHEMA, alike, fingerprint, script_hash, settings_hashes
from hasten.report.plan_state import State, state_of
from hasten.report.text import headline
from hasten.report.wording import EFFECTS, PASSED, command_line, granted, interval, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from tomlkit import TOMLDocument
    from tomlkit.items import InlineTable, Table

    from hasten.records import Interval, LossEnvelope, Passes, Tuning, Workload

_DIGITS = 4
_SAYS = {
    State.FAILED: "a numerics gate failed",
    State.UNPROVED: "the search ended before a proof, or could not make one",
    State.PROVED: "no gate failed; fresh launches have not confirmed the gain",
    State.EMPTY: "nothing was found that helps",
    State.CONFIRMED: "no gate failed, and fresh launches have confirmed the gain",
}


def write_plan(path: Path, tuning: Tuning, *, snippets: Mapping[str, str], today: date) -> None:
    """Write the plan of a tuning, with comments that explain it.

    An empty plan is written too: "nothing helps" is a valid answer.

    Raises:
        UsageError: it cannot be written.
    """
    document = tomlkit.document()
    rerun = command_line("run", tuning.workload, plan_path=path)
    _say(document, f"Written by `hasten tune` on {today}. Use it with:")
    _say(document, f"    {rerun}")
    _say(document, "The script itself is not edited. You may edit this file.")
    document.add("schema", tomlkit.item(SCHEMA))
    _add_assumed(document, tuning.assumed)
    document.add("machine", _machine_table(tuning))
    document.add("command", _command_table(tuning.workload))
    document.add("plan", _plan_table(tuning, snippets))
    document.add("evidence", evidence_table(tuning))
    if tuning.envelope is not None and tuning.plan.settings:
        document.add("guard", _guard_table(tuning.envelope))
    write_atomically(path, tomlkit.dumps(document))


def _add_assumed(document: TOMLDocument, assumed: Sequence[str]) -> None:
    if assumed:
        for sentence in granted(assumed):
            _say(document, sentence)
        document.add("assume", tomlkit.item(list(assumed)))


def _command_table(workload: Workload) -> Table:
    table = tomlkit.table()
    _say(table, "What it was tuned for.")
    table.add("entry", workload.entry.value)
    table.add("argv", [utf8(word) for word in workload.argv])
    if found := script_hash(workload):
        table.add("sha256", found)
    if settings := settings_hashes(workload):
        inline = tomlkit.inline_table()
        inline.update(settings)
        table.add("settings", inline)
    return table


def _plan_table(tuning: Tuning, snippets: Mapping[str, str]) -> Table:
    table = tomlkit.table()
    if not tuning.plan.settings:
        _say(table, f"Empty. {headline(tuning)}")
        return table
    _say(table, "One lever per line. Delete a line to leave that lever alone.")
    rows = {row.lever: row for row in tuning.levers if row.outcome is Outcome.KEPT}
    for name, setting in tuning.plan.settings:
        for code in snippets.get(name, "").strip("\n").splitlines():
            _say(table, f"  by hand: {code}")
        item = tomlkit.item(utf8(setting) if isinstance(setting, str) else setting)
        if row := rows.get(name):
            gain = f"{interval(row.speedup)}; " if row.speedup else ""
            item.comment(_printable(f"{gain}{row.effect}: {EFFECTS[row.effect]}"))
        table.add(name, item)
    return table


def _machine_table(tuning: Tuning) -> Table:
    """Return the [machine] table of a tuning.

    Its torch is that of the process that trained. If a program started a different torch than
    the one that `run` can see, there is nothing to compare it with.
    """
    table = tomlkit.table()
    _say(table, "What it was measured on. `hasten run` refuses the plan if the core count,")
    _say(table, "torch release or script differs, unless you pass --force.")
    known, torch = fingerprint(tuning.machine), tuning.traits.torch
    if tuning.traits.model.device in (None, "cpu"):
        known.pop("gpu", None)
    if tuning.workload.entry is Entry.COMMAND or tuning.workload.python != sys.executable:
        known.pop("python", None)  # this is hasten's own
    is_other = bool(torch) and not alike("torch", known.get("torch", torch), torch)
    if tuning.workload.entry is Entry.COMMAND and is_other:
        _say(table, f"It trained with torch {torch}; a run is not asked which it has.")
        del known["torch"]
        torch = ""
    for name, value in (known | ({"torch": torch} if torch else {})).items():
        table.add(name, value)
    return table


def evidence_table(tuning: Tuning) -> Table:
    """Return the [evidence] table of a tuning."""
    table = tomlkit.table()
    state = state_of(tuning)
    table.add("state", tomlkit.item(state.value).comment(_SAYS[state]))
    if tuning.diagnosis.is_contended:
        table.add("contended", tomlkit.item(True).comment("other processes kept CPUs busy"))
    if tuning.speedup is not None:
        _add_speedup(table, tuning.speedup, tuning.passes)
    table.add("effect", tuning.proof.effect.value)
    gates = tomlkit.array()
    gates.extend(utf8(f"{PASSED[g.passed]}: {g.name}: {g.message}") for g in tuning.proof.gates)
    table.add("gates", gates.multiline(multiline=len(gates) > 1))
    return table


def _add_speedup(table: Table, speedup: Interval, passes: Passes | None) -> None:
    part = ""
    if passes is not None:
        part = " of later passes" if passes.longer_s else " of steps alone"
    table.add(tomlkit.comment(f"Speedup{part} from fresh launches after the search; 95% interval."))
    table.add("speedup", _inline(speedup))
    if passes is not None:
        table.add(tomlkit.comment(f"Of the whole training, passes: {passes.pass_count}."))
        table.add("whole", _inline(passes.whole))


def _inline(ratio: Interval) -> InlineTable:
    ends = {"low": ratio.low_ratio, "mid": ratio.mid_ratio, "high": ratio.high_ratio}
    inline = tomlkit.inline_table()
    inline.update({end: round(value, 4) for end, value in ends.items()})
    return inline


def _guard_table(envelope: LossEnvelope) -> Table:
    """Return the table of an envelope; figures are rounded to four digits."""
    table = tomlkit.table()
    for comment in (
        "How the script begins without levers, in windows of 8 steps. `hasten run` compares its",
        "first 50 steps with it, later ones with its own, and disables the levers if the loss",
        "diverges. Delete this table to run unwatched.",
    ):
        _say(table, comment)
    table.add("step", "backward" if envelope.by_hand else "optimizer")
    if envelope.losses:
        table.add("losses", _rounded(envelope.losses))
        table.add("spreads", _rounded(envelope.spreads))
        table.add("range", _rounded(envelope.losses_range))
    if envelope.moves:
        table.add("moves", _rounded(envelope.moves))
    if envelope.step_s is not None:
        table.add("step_s", _rounded((envelope.step_s,))[0])
    return table


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _say(place: TOMLDocument | Table, comment: str) -> None:
    """Add a comment; TOML comments have no escapes, so control characters become spaces."""
    place.add(tomlkit.comment(_printable(comment)))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in utf8(text))
