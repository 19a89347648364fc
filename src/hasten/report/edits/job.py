"""One lever of a plan, to be written into the user's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.report.edits.statements import ensure_import, has_statement, insert_after_imports
from hasten.report.edits.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.records import Plan, Setting, Traits
    from hasten.report.edits.project import Project
    from hasten.report.edits.survey import Site

    Edit = Callable[["Job"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an edit is made from.

    Attributes:
        lines: what a user would write by hand.
        python: the version of Python that starts the script.
        notes: the sentences for the user; edits add to them.
        unwritten: levers that are not written, or not everywhere, so far.
    """

    project: Project
    lever: str
    setting: Setting
    lines: str
    plan: Plan
    traits: Traits
    python: str
    notes: list[str]
    unwritten: list[str]

    def survey(self) -> Survey:
        """Look at the files as they are now."""
        return Survey(self.project)

    def note(self, message: str) -> None:
        """Tell the user something about this lever."""
        self.notes.append(f"{self.lever}: {message}")

    def leave(self, why: str) -> None:
        """Tell the user why this lever is not written."""
        if self.lever not in self.unwritten:
            self.unwritten.append(self.lever)
        self.note(why)

    def keep_running(self, why: str) -> None:
        """Say that no edit gives what the lever gives."""
        self.leave(f"no edit can do this: keep `hasten run`. {why[:1].upper()}{why[1:]}.")

    def paste(self, why: str, *, at: str = "") -> None:
        """Give the user the lines to write by hand, `at` a place if one is known."""
        place = f" at {at}" if at else ""
        lines = "".join(f"\n    {line}" for line in self.lines.splitlines())
        self.leave(f"write this yourself{place}, since {why}:{lines}")

    def set_up(self, *lines: str) -> None:
        """Put lines after the script's import of torch, except those already there."""
        source = self.project.entry
        missing = [line for line in lines if not has_statement(source, line.partition("  #")[0])]
        if missing:
            insert_after_imports(source, "".join(f"{line}\n" for line in missing))

    def torch_name(self) -> str:
        """Return the script's name for torch, importing it if necessary."""
        own = self.survey().local_name(self.project.entry, "torch")
        if not own:
            ensure_import(self.project.entry, "torch")
        return own or "torch"

    def import_torch(self, sites: list[Site]) -> bool:
        """Import torch in the files of some nodes; return whether one of these files changed."""
        survey = self.survey()
        nameless = {site.source for site in sites if not survey.local_name(site.source, "torch")}
        changed = [ensure_import(source, "torch") for source in nameless]
        return any(changed)


def change(sites: list[Site], how: Callable[[Site], Callable[[object], object]]) -> None:
    """Change nodes of several files."""
    for source in {site.source for site in sites}:
        source.apply({id(s.node): how(s) for s in sites if s.source is source})
