"""The plan file: written by `tune`, applied by `run`, read and edited by the user.

A plan is refused where its settings could be wrong, not merely less effective: on a different
number of cores (which thread and worker counts were tuned to), under another torch release
(the maths was proved with the kernels of the original one), or with another script (the proof
covers the original one). Any other difference, such as in arguments or the processor, is only a
warning. A plan without levers changes nothing, so it is never refused.
"""

from __future__ import annotations

import hashlib
import reprlib  # values in a file may be long
import shlex
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten import lever
from hasten.errors import PlanError, reason_of, shown
from hasten.records import REPEATABLE, STRUCTURE, Effect, Entry, LossEnvelope, Plan
from hasten.report.plan_state import State
from hasten.report.wording import PASSED, PLAN_NAME, utf8, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.records import Machine, Workload


SCHEMA = 1
_HASH_COUNT = 16  # of its digits
_SETTINGS = (".py", ".yaml", ".yml", ".toml")
_DOUBTS = {
    State.FAILED: "A numerics gate failed under this plan.",
    State.UNPROVED: "This plan is not proved: run `hasten tune` again.",
    State.PROVED: "This plan is proved, but fresh launches have not confirmed its gain.",
}
REDO = "Run `hasten tune` again to write a new one."
_UNJUDGED = "No gate could judge what this plan does to the numbers: see its [evidence]."


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan as read from a file.

    Attributes:
        machine: the fingerprint: cpu, instructions, cores, torch, python; a missing key means
            unknown.
        command: the script (module, notebook, program) and its arguments.
        script_hash: of the script's own file; None if the file does not say.
        settings: hashes of the files with settings that its arguments name.
        envelope: how the script begins without levers; None if the run is not to be watched.
        state: how far the plan can be relied on; None if the file does not say.
        assumed: names of the assumptions that the user granted when it was tuned.
        is_contended: other processes kept CPUs busy when it was tuned.
        is_judged: a gate that compares numbers passed, or the file has no gates.
    """

    plan: Plan
    machine: Mapping[str, object]
    command: tuple[str, ...] = ()
    script_hash: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    entry: Entry | None = None
    envelope: LossEnvelope | None = None
    state: State | None = None
    assumed: frozenset[str] = frozenset()
    is_contended: bool = False
    is_judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One way in which a plan was not shown to be valid here and now.

    Attributes:
        refuses: True if the plan may be wrong here, not merely less effective.
    """

    message: str
    refuses: bool


def other_script(path: Path, workload: Workload) -> str:
    """Return the script whose plan lies there, empty if it is that of this one, or of none."""
    try:
        saved = read_plan(path)
    except PlanError:  # of another release: it cannot be used any more
        return ""
    tuned = _tuned(saved, _spelt(workload))
    then, now = _compared(saved, tuned, _spelt(workload)) if tuned else ("", "")
    return then if saved.plan.settings and then != now else ""


def read_plan(path: Path) -> SavedPlan:
    """Read a plan file.

    Raises:
        PlanError: it is missing or broken, has another schema, names an unknown lever, or gives a
            lever a setting that it does not accept.
    """
    content = _load(path)
    if content.get("schema") != SCHEMA:
        raise PlanError(
            f"{path} has schema {reprlib.repr(content.get('schema'))}, and this hasten reads "
            f"{SCHEMA}.",
            remedy=REDO,
        )
    command = _table(path, content, "command")
    evidence = _table(path, content, "evidence")
    saved = SavedPlan(
        plan=_plan(path, _table(path, content, "plan", required=True)),
        machine=_machine(path, content),
        command=_texts(path, command, "argv"),
        script_hash=command.get("sha256"),
        settings=_table(path, command, "settings"),
        entry=_entry(path, command),
        envelope=read_envelope(path, _table(path, content, "guard")),
        state=_state(evidence),
        assumed=frozenset(_texts(path, content, "assume")),
        is_contended=evidence.get("contended") is True,
        is_judged=_judged(evidence),
    )
    try:
        lever.check_plan(saved.plan)
    except PlanError as error:
        is_known = saved.plan.levers <= set(lever.names())
        remedy = error.remedy if is_known else f"Delete it from [plan] there. {REDO}"
        raise PlanError(f"{path}: {error.problem}", remedy=remedy) from None
    lever.check_assumptions(saved.assumed)
    return saved


def doubts(saved: SavedPlan) -> tuple[Difference, ...]:
    """Return the doubts about a plan that apply wherever it is used."""
    found = []
    if message := _doubt(saved.state, saved.plan):
        found.append(Difference(message=message, refuses=saved.state is State.FAILED))
    if not saved.is_judged and saved.state is not State.FAILED and saved.plan.settings:
        found.append(Difference(message=_UNJUDGED, refuses=False))
    if saved.is_contended and saved.plan.settings:
        sharing = lever.sharing_cpus(saved.plan)
        slower = f", and {sharing} may slow the script down" if sharing.settings else ""
        message = (
            "Other processes kept CPUs busy when this plan was tuned: without them it may gain "
            f"less{slower}. Run `hasten tune` again when they are gone."
        )
        found.append(Difference(message=message, refuses=False))
    return tuple(found)


def differences(saved: SavedPlan, machine: Machine, workload: Workload) -> tuple[Difference, ...]:
    """Return how this machine and workload differ from what the plan was tuned for.

    What is unknown on either side is not held against the plan.
    """
    here = fingerprint(machine)
    found = [
        Difference(
            message=shown(message.format(saved=then, here=here[key])),
            refuses=_decides(key, then, here),
        )
        for key, message in _SENTENCES.items()
        if key in here
        and (then := saved.machine.get(key)) is not None
        and not alike(key, then, here[key])
    ]
    found += _lacking_instructions(saved, machine)
    found += _command_differences(saved, _spelt(workload))
    if not any(one.refuses for one in found) and (edited := _edited(saved, workload)):
        message = f"{shown(edited)} has changed since it was tuned."
        found.append(Difference(message=message, refuses=False))
    if saved.plan.settings:
        return tuple(found)
    return tuple(Difference(message=item.message, refuses=False) for item in found)


def fitting_envelope(saved: SavedPlan, machine: Machine, workload: Workload) -> LossEnvelope | None:
    """Return the part of the envelope that applies here and now.

    Losses are compared only where the script and its arguments are the same, times only on the
    same processor.
    """
    envelope = saved.envelope
    if envelope is None:
        return None
    is_other = saved.command[1:] != _spelt(workload).argv[1:] or _edited(saved, workload)
    if is_other or not saved.command:
        return envelope.only_what_is_sure()
    here = fingerprint(machine)
    same = all(saved.machine.get(key) == here.get(key) for key in ("cpu", "cores"))
    same = same and saved.machine.get("gpu") in (None, here.get("gpu"))
    return envelope if same else replace(envelope, step_s=None)


_SENTENCES = {
    "cpu": "The plan was tuned on {saved!r}, and this is {here!r}.",
    "gpu": "The plan was tuned on a GPU {saved!r}, and this is {here!r}.",
    "cores": "The plan was tuned for {saved} cores, and this job may use {here}.",
    "torch": "The plan was tuned with torch {saved}, and this is {here}.",
    "python": "The plan was tuned with Python {saved}, and this is {here}.",
}


def _decides(key: str, then: object, here: Mapping[str, Any]) -> bool:
    if key == "torch":
        return _release(str(then)) != _release(str(here[key]))
    return key == "cores"


def _lacking_instructions(saved: SavedPlan, machine: Machine) -> list[Difference]:
    """Return what this CPU cannot compute and the other could; many models share one name."""
    then, here = saved.machine.get("instructions"), machine.cpu.instruction_sets
    lacking = [name for name in then if name not in here] if isinstance(then, list) else []
    if not lacking or not here:
        return []
    message = f"The plan was tuned on a CPU with {', '.join(lacking)}, which this one lacks"
    narrow = [item.name for item, _ in lever.lookup(saved.plan) if item.effect is Effect.PRECISION]
    if not narrow or "gpu" in saved.machine:
        return [Difference(message=f"{message}.", refuses=False)]
    slower = f"{', '.join(narrow)} may be many times slower here"
    return [Difference(message=f"{message}: {slower}.", refuses=True)]


def _release(version: str) -> tuple[str, ...]:
    """Return major and minor version: kernels do not change between patch releases."""
    return tuple(version.partition("+")[0].split(".")[:2])


def _command_differences(saved: SavedPlan, workload: Workload) -> list[Difference]:
    tuned = _tuned(saved, workload)
    if tuned is None:
        return []
    then, now = _compared(saved, tuned, workload)
    if then != now:
        message = f"The plan was tuned for {shown(then)}, and this is {shown(now)}."
        return [Difference(message=message, refuses=True)]
    if tuned.argv[1:] != workload.argv[1:]:
        arguments = shown(shlex.join(tuned.argv[1:])) or "(none)"
        message = f"The plan was tuned with the arguments {arguments}."
        return [Difference(message=message, refuses=False)]
    return []


def _tuned(saved: SavedPlan, workload: Workload) -> Workload | None:
    """Return the command that a plan was tuned for; None where the plan does not say."""
    if not saved.command:
        return None
    return replace(workload, argv=saved.command, entry=saved.entry or workload.entry)


def _is_edited(saved: SavedPlan, workload: Workload) -> bool:
    """Return whether the script's file is another than was tuned, as far as both are known."""
    if saved.script_hash is None:
        return False
    here = script_hash(workload)
    return here is not None and here != saved.script_hash


def _edited(saved: SavedPlan, workload: Workload) -> str:
    """Return the script or the file with settings that is another than was tuned, if any."""
    if _is_edited(saved, workload):
        return _trained(_spelt(workload))
    here = settings_hashes(workload)
    names = (name for name, then in saved.settings.items() if here.get(name, then) != then)
    return next(names, "")


def _compared(saved: SavedPlan, tuned: Workload, workload: Workload) -> tuple[str, str]:
    """Return what was tuned and what is started now, by name.

    By path where the script that was tuned is still where it was, as it was: this is a namesake.
    """
    whole = _is_edited(saved, workload) and script_hash(tuned) == saved.script_hash
    return _trained(tuned, whole=whole), _trained(workload, whole=whole)


def script_hash(workload: Workload) -> str | None:
    """Return a hash of the first Python file that a command names; None if it names none.

    A notebook's file changes whenever it is saved.
    """
    folder = Path(workload.cwd)
    places = [folder / word for word in workload.argv if word.endswith(".py")]
    if workload.entry is Entry.MODULE:
        module = folder.joinpath(*workload.argv[0].split("."))
        places = [module.with_suffix(".py"), module / "__main__.py"]
    return next(filter(None, map(_hash, places)), None)


def settings_hashes(workload: Workload) -> dict[str, str]:
    """Return the files with settings that the arguments of a command name, each with its hash."""
    words = [word.rpartition("=")[2] for word in workload.argv[1:] if word.endswith(_SETTINGS)]
    hashes = {word: _hash(Path(workload.cwd, word)) for word in words}
    return {utf8(word): found for word, found in hashes.items() if found}


def _hash(place: Path) -> str | None:
    with suppress(OSError, ValueError):
        return hashlib.sha256(place.read_bytes()).hexdigest()[:_HASH_COUNT]
    return None


def _trained(workload: Workload, *, whole: bool = False) -> str:
    """Return what is trained, as on a command line but without its arguments.

    By name, unless the `whole` path counts: a script is the same when started from another folder.
    The word after a program says what is trained if no file or module is named: `make train`.
    """
    first, *rest = workload.argv
    named = _files_and_modules(rest) or rest[:1] if workload.entry is Entry.COMMAND else []
    name = first if whole else Path(first).name
    return shlex.join(words(replace(workload, argv=(name, *named))))


def _files_and_modules(arguments: Sequence[str]) -> list[str]:
    """Return the names of the scripts and modules that bash, python, srun and so on are to run."""
    found: list[str] = []
    has_file = False
    # Split again: the argument of `bash -c` is itself a command line.
    for before, word in pairwise(["", *" ".join(arguments).split()]):
        is_file = word.endswith((".py", ".sh", ".ipynb"))
        if is_file or (before == "-m" and not has_file):  # after a file, -m is an option for it
            found.append(Path(word).name)
        has_file = has_file or is_file
    return found


def parsed(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; an editor may have put a byte order mark before it."""
    return tomllib.loads(path.read_text("utf-8-sig"))


def _load(path: Path) -> dict[str, Any]:
    try:
        return parsed(path)
    except FileNotFoundError as error:
        remedy = f"Run `hasten tune` first, which writes {PLAN_NAME}, or name another --plan."
        raise PlanError(f"There is no plan at {path}.", remedy=remedy) from error
    except OSError as error:
        problem = f"Cannot read the plan {path}: {reason_of(error)}."
        raise PlanError(problem, remedy="Make it readable, or name another --plan.") from error
    except (ValueError, RecursionError) as error:
        # tomllib.TOMLDecodeError and UnicodeDecodeError are both ValueErrors.
        problem = f"{path} is not a TOML file: {shown(error)}."
        raise PlanError(problem, remedy=f"Mend that line. {REDO}") from error


def _table(
    path: Path, content: Mapping[str, Any], name: str, *, required: bool = False
) -> dict[str, Any]:
    table = content.get(name, None if required else {})
    if not isinstance(table, dict):
        found = "missing" if table is None else f"not a table: {reprlib.repr(table)}"
        raise PlanError(f"The [{name}] of {path} is {found}.", remedy=REDO)
    return table


def _plan(path: Path, table: Mapping[str, Any]) -> Plan:
    for name, setting in table.items():
        if not isinstance(setting, bool | int | float | str):
            raise PlanError(
                f"The setting of {shown(name)} in {path} is {reprlib.repr(setting)}.",
                remedy="Write true, false, a number or a text.",
            )
    applied = ((name, setting) for name, setting in table.items() if setting is not False)
    return Plan(tuple(sorted(applied)))


def _machine(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    machine = _table(path, content, "machine")
    for name in ("cores", "slurm_cpus"):
        value = machine.get(name, 1)
        if type(value) is not int or value < 1:  # `true` is an int, too
            raise PlanError(
                f"The {name} in the [machine] of {path} is {reprlib.repr(value)}.",
                remedy="Write a number from 1, or delete the line.",
            )
    _texts(path, machine, "instructions")
    return machine


def _texts(path: Path, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = table.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PlanError(
            f"The {name} in {path} is not a list of texts: {reprlib.repr(texts)}.", remedy=REDO
        )
    return tuple(texts)


def _entry(path: Path, command: Mapping[str, Any]) -> Entry | None:
    entry = command.get("entry")
    try:
        return None if entry is None else Entry(entry)
    except ValueError as error:
        remedy = f"Choose from: {', '.join(Entry)}."
        raise PlanError(f"The entry in {path} is {reprlib.repr(entry)}.", remedy=remedy) from error


def _spelt(workload: Workload) -> Workload:
    """Return a workload with its arguments spelt as in a plan file."""
    return replace(workload, argv=tuple(map(utf8, workload.argv)))


def read_envelope(path: Path, table: Mapping[str, Any]) -> LossEnvelope | None:
    """Return the envelope in a table; None if there is none.

    Raises:
        PlanError: a figure is missing or is not a number.
    """
    if not table:
        return None
    try:
        losses, spreads, moves = (_figures(table, name) for name in ("losses", "spreads", "moves"))
        if len(losses) != len(spreads):
            raise ValueError("losses and spreads differ in length")
        low, high = _figures(table, "range") if "range" in table else (0.0, 0.0)
        step_s = table.get("step_s")
        if step_s is not None:
            (step_s,) = _figures({"step_s": [step_s]}, "step_s")
    except (TypeError, ValueError, OverflowError) as error:
        raise PlanError(
            f"The [guard] of {path} cannot be read: {error}.",
            remedy="Delete that table to run unwatched, or run `hasten tune` again.",
        ) from error
    return LossEnvelope(
        by_hand=table.get("step") == "backward", losses=losses, spreads=spreads,
        losses_range=(low, high), moves=moves, step_s=step_s,
    )  # fmt: skip


def _figures(table: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or any(
        isinstance(item, bool) or not isinstance(item, int | float) for item in value
    ):
        raise TypeError(f"{name} = {reprlib.repr(value)} is no list of numbers")
    return tuple(map(float, value))


def fingerprint(machine: Machine) -> dict[str, Any]:
    """Return the facts that a plan depends on, as far as they are known."""
    known = {
        "cpu": machine.cpu.model,
        "instructions": list(machine.cpu.instruction_sets) or None,
        "gpu": machine.gpu or None,
        "cores": machine.budget.core_count,
        "slurm_cpus": machine.budget.slurm_count,
        "torch": machine.torch.version if machine.torch else None,
        "python": machine.python_version or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def alike(key: str, then: object, now: object) -> bool:
    """Return whether two values of a key mean the same thing."""
    if key != "torch":
        return then == now
    # PyPI wheels report 2.13.0+cu130 in torch, but only 2.13.0 in their metadata.
    saved, here = str(then).partition("+"), str(now).partition("+")
    return saved[0] == here[0] and (saved[2] == here[2] or not (saved[2] and here[2]))


# ---- the [evidence] of a plan file: what was shown about the plan, and how firmly


def _state(table: Mapping[str, Any]) -> State | None:
    """Return the state given in a table; None if there is none, as in a hand-written plan."""
    gates = table.get("gates")
    verdicts = {str(gate).partition(":")[0] for gate in gates} if isinstance(gates, list) else set()
    if "failed" in verdicts:
        return State.FAILED
    told = table.get("state")
    return State(told) if told in list(State) else None


def _judged(table: Mapping[str, Any]) -> bool:
    """Return whether a gate that compares numbers passed; True where a table has no gates."""
    gates = table.get("gates")
    if not isinstance(gates, list) or not gates:
        return True
    others = tuple(f"{PASSED[True]}: {name}" for name in (REPEATABLE, STRUCTURE))
    passed = [str(gate) for gate in gates if str(gate).startswith(PASSED[True])]
    return any(not gate.startswith(others) for gate in passed)


def _doubt(state: State | None, plan: Plan) -> str:
    """Return the warning to show before a plan is used; empty if there is none."""
    if plan.settings:
        return _DOUBTS.get(state, "") if state else ""
    if state is not State.UNPROVED:
        return ""
    return "This plan is empty, since its search did not come to its end: run `hasten tune` again."
