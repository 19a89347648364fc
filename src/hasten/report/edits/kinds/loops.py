"""What belongs around or into the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.report.edits.arguments import argument, code, expression
from hasten.report.edits.flow import loop_around
from hasten.report.edits.job import change
from hasten.report.edits.statements import before, ensure_import
from hasten.report.edits.survey import Site

if TYPE_CHECKING:
    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Survey


def backwards(survey: Survey) -> list[Site]:
    """Return the calls of `backward`, of whatever."""
    return [
        site
        for site in survey.calls
        if isinstance(site.call.func, cst.Attribute) and site.call.func.attr.value == "backward"
    ]


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
    sites, found = backwards(survey), None
    while sites:
        scopes = {id(site.scope): site.scope for site in sites}
        loops = {
            id(loop): Site(scope=site.scope, node=loop)
            for site in sites
            if (loop := loop_around(survey, site.node)) is not None
        }
        outside = [site for site in sites if loop_around(survey, site.node) is None]
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


def foreach_ema(job: Job) -> None:
    """Average in one pass where torch's own average over single tensors is asked for."""
    survey = job.survey()
    loops = survey.called("torch.optim.swa_utils.get_ema_avg_fn")
    whole = [site for site in loops if isinstance(site.call.func, cst.Attribute)]
    owners = [site for site in survey.calls if _asks(site, whole)]
    if not owners:
        job.paste("no avg_fn=torch.optim.swa_utils.get_ema_avg_fn(...) is written in these files")
        return
    change(owners, lambda site: _averaged)


def _asks(site: Site, averages: list[Site]) -> bool:
    told = argument(site.call, "avg_fn", index=2)
    return told is not None and any(told.value is average.node for average in averages)


def _averaged(node: Any) -> Any:
    told = argument(node, "avg_fn", index=2)
    assert told is not None  # noqa: S101  # `_asks` has seen it
    text = code(told.value).replace("get_ema_avg_fn", "get_ema_multi_avg_fn", 1)
    empty = argument(node, "multi_avg_fn", index=3)
    if empty is not None:
        values = {id(told): expression("None"), id(empty): expression(text)}
        swapped = [a.with_changes(value=values.get(id(a), a.value)) for a in node.args]
        return node.with_changes(args=swapped)
    new = told.with_changes(
        keyword=cst.Name("multi_avg_fn"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        value=expression(text),
    )
    return node.with_changes(args=[new if arg is told else arg for arg in node.args])
