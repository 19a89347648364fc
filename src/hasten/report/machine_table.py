"""The [machine] of a plan file: what a plan was measured on, and what it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.records import Entry

if TYPE_CHECKING:
    from tomlkit.items import Table

    from hasten.records import Machine, Tuning


def fingerprint(machine: Machine) -> dict[str, Any]:
    """Return what a plan depends on, as far as it is known."""
    known = {
        "cpu": machine.cpu.model,
        "cores": machine.budget.core_count,
        "torch": machine.torch.version if machine.torch else None,
        "python": machine.python_version or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def alike(key: str, then: object, now: object) -> bool:
    """Return whether two values of a key mean the same."""
    if key != "torch":
        return then == now
    # The wheels of PyPI call themselves 2.13.0+cu130 inside and 2.13.0 outside.
    saved, here = str(then).partition("+"), str(now).partition("+")
    return saved[0] == here[0] and (saved[2] == here[2] or not (saved[2] and here[2]))


def machine_table(tuning: Tuning) -> Table:
    """Return the table of a tuning.

    Its torch is that of the process that trained. Where a program has started another one than
    that of the Python in front, which a run looks at, there is nothing to compare it with.
    """
    import tomlkit

    table = tomlkit.table()
    comments = [
        "What it was measured on. `hasten run` refuses the plan on another number of",
        "cores, another torch release or another script, unless you say --force.",
    ]
    known, torch = fingerprint(tuning.machine), tuning.traits.get("torch")
    if tuning.workload.entry is Entry.COMMAND:
        known.pop("python", None)  # that of hasten
        if torch and not alike("torch", known.get("torch", torch), torch):
            comments.append(f"It trained with torch {torch}; a run is not asked which it has.")
            del known["torch"]
            torch = None
    for comment in comments:
        table.add(tomlkit.comment(comment))
    for name, value in (known | ({"torch": torch} if torch else {})).items():
        table.add(name, value)
    return table
