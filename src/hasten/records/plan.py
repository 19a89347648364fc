"""What is run: the user's command and the levers applied to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hasten.records.enums import Entry, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The user's own training command, untouched.

    Attributes:
        entry: whether `argv` begins with a script, a module name, a notebook or a program.
        argv: the script (module, notebook, program) and its own arguments.
        cwd: the working directory.
        python: the interpreter that runs it.
    """

    entry: Entry
    argv: tuple[str, ...]
    cwd: str
    python: str

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that the user would have typed."""
        lead = {
            Entry.SCRIPT: (self.python,),
            Entry.MODULE: (self.python, "-m"),
            Entry.NOTEBOOK: (self.python, "-m", "hasten.trials.notebook"),
            Entry.COMMAND: (),
        }[self.entry]
        return (*lead, *self.argv)


@dataclass(frozen=True, slots=True)
class Plan:
    """Levers and their settings. The empty plan is the user's script as it is."""

    settings: tuple[tuple[str, Setting], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.settings]
        if names != sorted(set(names)):
            raise ValueError(f"settings must be sorted by lever and unique, got {names}")

    def with_lever(self, lever: str, setting: Setting) -> Plan:
        """Return this plan with `lever` at `setting`; False leaves it as the script has it.

        >>> Plan().with_lever("intra_op_threads", 8).with_lever("fused_optimizer", True).settings
        (('fused_optimizer', True), ('intra_op_threads', 8))
        """
        if setting is False:
            return self.without(lever)
        kept = {**dict(self.settings), lever: setting}
        return replace(self, settings=tuple(sorted(kept.items())))

    @property
    def levers(self) -> frozenset[str]:
        """The names of its levers."""
        return frozenset(name for name, _ in self.settings)

    def without(self, *levers: str) -> Plan:
        """Return this plan with `levers` left as the script has them."""
        return self.only(self.levers.difference(levers))

    def merged(self, other: Plan) -> Plan:
        """Return this plan with the settings of another, which come first."""
        return Plan(tuple(sorted({**dict(self.settings), **dict(other.settings)}.items())))

    def only(self, levers: frozenset[str]) -> Plan:
        """Return the part of this plan that concerns `levers`."""
        return Plan(tuple((name, s) for name, s in self.settings if name in levers))

    def differing(self, other: Plan) -> frozenset[str]:
        """Return the levers whose setting is not the same in both plans."""
        return frozenset(name for name, _ in set(self.settings) ^ set(other.settings))

    def __str__(self) -> str:
        return ", ".join(f"{name}={setting}" for name, setting in self.settings) or "nothing"
