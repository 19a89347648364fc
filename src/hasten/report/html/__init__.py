"""The report as one HTML file that opens offline, makes no requests and runs no scripts.

The charts are our own inline SVG and boxes rather than a chart library's: such a library
takes megabytes where these take kilobytes, needs scripts (which mail clients and wikis strip),
draws labels at a fixed size (which a phone shrinks), and hides them from screen readers.
A content security policy in the page forbids every script and request, so what a path or a
source line of the user's contains stays text, whatever it is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hasten.records import Outcome
from hasten.report import doctor, steps, text, wording
from hasten.report.html import curves, races, sections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

    from hasten.records import Profile, Profiling, Tuning
    from hasten.report.edits import Edits


def render_tuning(
    tuning: Tuning, *, plan_path: Path, snippets: Mapping[str, str], edits: Edits | None = None
) -> str:
    """Return the page of a tuning; `edits` is None where the source cannot be edited."""
    before, after = tuning.baseline, tuning.tuned
    known = tuning.plan.settings if tuning.proof.holds else ()
    skipped = [row for row in tuning.levers if row.outcome is Outcome.SKIPPED]
    tried = [row for row in tuning.levers if row.outcome is not Outcome.SKIPPED]
    return _template().render(
        title=f"{Path(tuning.workload.argv[0]).name}: {text.headline(tuning)}",
        command=wording.command_line("tune", tuning.workload),
        headline=text.headline(tuning),
        lead=text.beneath(tuning),
        tiles=sections.tiles(tuning),
        run=wording.command_line("run", tuning.workload, plan_path=plan_path) if known else "",
        by_hand=[(name, snippets[name]) for name, _ in known if snippets.get(name, "").strip()],
        edits=sections.diff(edits.diff) if edits else [],
        notes=edits.notes if edits else (),
        partial=bool(edits and edits.missing),
        apply=f"{wording.report_line(tuning.workload, plan_path)} --edits | patch -p1",
        bars=sections.bars(before, after),
        phases=steps.phase_rows(before, *([after] if after else [])),
        where=sections.where(before, after),
        strips=races.strips(tuning),
        levers={"tried": tried, "skipped": skipped},
        maths=sections.maths(tuning.proof),
        losses=curves.losses(tuning.proof),
        trust=text.trust(tuning),
        usage=[],
        **_seen(tuning, before, tuning),
    )


def render_profile(found: Profiling) -> str:
    """Return the page of a profile."""
    profile = found.profile
    return _template().render(
        title=f"{Path(found.workload.argv[0]).name}: {steps.speed(profile)}",
        command=wording.command_line("profile", found.workload),
        headline=f"{steps.speed(profile)}.",
        lead=steps.verdicts(profile),
        tiles=[],
        run="",
        bars=sections.bars(profile, None),
        phases=steps.phase_rows(profile),
        where=[],
        strips=None,
        levers=None,
        maths=None,
        losses=None,
        trust=[*wording.granted(found.assumed), *found.notes],
        usage=steps.usage(profile, found.machine),
        **_seen(found, profile, None),
    )


def _seen(found: Profiling | Tuning, profile: Profile, tuning: Tuning | None) -> dict[str, Any]:
    """Return what both pages show: findings, lines, the steps over time, the machine."""
    diagnosis, workload = found.diagnosis, found.workload
    return {
        "findings": sections.findings(diagnosis, workload, tuning),
        "hot_lines": sections.hot_lines(diagnosis, workload),
        "course": curves.course(diagnosis.steps),
        "outside": steps.outside(profile),
        "lines_title": steps.lines_title(profile),
        "machine": list(doctor.rows(found.machine)),
        "caveats": found.machine.caveats,
    }


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("hasten.report.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = {"code": sections.code, "interval": wording.interval, "setting": text.setting}
    environment.filters.update(shown)
    return environment.get_template("page.html.j2")
