"""What belongs around or into the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from hasten.report.edits.job import change
from hasten.report.edits.statements import before, ensure_import
from hasten.report.edits.survey import Site

if TYPE_CHECKING:
    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Survey


def garbage_collector(job: Job) -> None:
    """Freeze what is there right before the outermost loop that trains."""
    survey = job.survey()
    loop = _training_loop(survey)
    if loop is None:
        job.paste("which loop trains cannot be told from the text")
        return
    if survey.called("gc.freeze"):
        job.note("the script freezes its objects already")
        return
    raised = "*gc.get_threshold()[1:]"
    lines = ["gc.collect()  # what is garbage now would stay for ever", "gc.freeze()"]
    if job.setting != 1:
        lines.append(f"gc.set_threshold({job.setting} * gc.get_threshold()[0], {raised})")
    text = "".join(f"{line}\n" for line in lines)
    change([loop], lambda site: lambda node: before(node, text))  # type: ignore[arg-type]
    ensure_import(loop.source, "gc")


def _training_loop(survey: Survey) -> Site | None:
    """Return the outermost loop around the backward pass, through the functions that call it.

    It is begun once only where the callers can be followed up to the file itself.
    """
    sites, found = survey.methods("backward"), None
    while sites:
        scopes = {id(site.scope): site.scope for site in sites}
        loops = {
            id(loop): Site(scope=site.scope, node=loop)
            for site in sites
            if (loop := _loop_around(survey, site.node)) is not None
        }
        outside = [site for site in sites if _loop_around(survey, site.node) is None]
        again = found is not None and len(sites) > 1 and bool(outside)
        if len(scopes) > 1 or len(loops) > 1 or again:
            return None
        found = next(iter(loops.values()), found)
        (scope,) = scopes.values()
        if not scope.name:
            return found
        # A loop around a call of this function is farther out than any in it.
        sites = [s for s in survey.calls if s.scope is not scope and survey.function(s) is scope]
    return None


def _loop_around(survey: Survey, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the outermost loop of the same function around a node."""
    found = None
    for parent in survey.parents(node):
        if isinstance(parent, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            break
        if isinstance(parent, cst.For | cst.While):
            found = parent
    return found
