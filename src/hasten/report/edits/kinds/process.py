"""Settings of the whole process: a line after the import of torch or before the loop, or a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.lever import provided
from hasten.records import LoaderTraits, Traits
from hasten.report.edits.arguments import code
from hasten.report.edits.job import change
from hasten.report.edits.statements import before, ensure_import
from hasten.report.edits.survey import Site
from hasten.units import reaches

if TYPE_CHECKING:
    from hasten.records import Plan
    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Survey

_START = "worker_init_fn"
# A glibc before 2.34 takes 32 MiB at most.
_MMAP, _LEAST_MMAP, _TRIM = "1 << 30", "32 << 20", "(1 << 31) - 1"
# The first torch in which oneDNN's convolutions and recurrent layers have a precision.
_ONEDNN_TORCH = (2, 9)
_UNCOUNTED = Traits(loader=LoaderTraits(worker_count=-1, is_map_style=True))


def intra_op_threads(job: Job) -> None:
    """Set the threads at the start; the script's own calls are changed, as the lever answers them.

    A call in a branch or a function may never run, so that it stands for no line of ours.
    """
    if beside := [name for name in job.unwritten if _adds_workers(job.plan, name)]:
        job.leave(
            "not written, since the number was tuned beside the workers of "
            f"{' and '.join(beside)}, which are not all written"
        )
        return
    survey = job.survey()
    sites = [
        site
        for site in survey.called("torch.set_num_threads")
        if len(site.call.args) == 1 and not site.call.args[0].star
    ]
    inner = [site for site in sites if not _always_runs(job, survey, site)]
    if inner and any(_START in source.before for source in survey.files):
        job.paste(f"a call may be there for the workers of a `{_START}`", at=survey.places(inner))
        return
    change(sites, lambda site: lambda node: _with_only(node, str(job.setting)))
    if len(inner) == len(sites):
        job.set_up(f"{job.torch_name()}.set_num_threads({job.setting})")


def _adds_workers(plan: Plan, name: str) -> bool:
    """Return whether a lever of a plan says how many workers a loader has."""
    return provided(plan.only(frozenset({name})), _UNCOUNTED).worker_count >= 0


def _always_runs(job: Job, survey: Survey, site: Site) -> bool:
    """Return whether a call is a statement of its own at the top level of the script."""
    around = [type(parent) for parent in survey.parents(site.node)]
    in_script = site.source is job.project.entry
    return in_script and around == [cst.Expr, cst.SimpleStatementLine, cst.Module]


def _with_only(node: Any, value: str) -> Any:
    return node.with_changes(args=[node.args[0].with_changes(value=cst.parse_expression(value))])


def flush_denormals(job: Job) -> None:
    """Flush from the start of the script on: threads that start later take it over."""
    job.set_up(f"{job.torch_name()}.set_flush_denormal(True)")


def fp32_precision(job: Job) -> None:
    """Set the precision, unless the script sets one itself, which the lever leaves alone."""
    survey = job.survey()
    first, *newer = job.lines.splitlines()
    own = survey.called("torch.set_float32_matmul_precision")
    words = [code(site.call.args[0].value).strip("'\"") for site in own if site.call.args]
    if any(f'"{word}"' not in first for word in words):
        job.keep_running(f"the script sets a precision itself at {survey.places(own)}")
        return
    lines = [first, *newer] if reaches(job.traits.torch, _ONEDNN_TORCH) else [first]
    torch = job.torch_name()
    job.set_up(*(line.replace("torch.", f"{torch}.", 1) for line in lines))


def malloc_retention(job: Job) -> None:
    """Raise both thresholds of glibc before torch allocates much."""
    job.set_up(
        f"ctypes.CDLL(None).mallopt(-3, {_MMAP}) or ctypes.CDLL(None).mallopt(-3, {_LEAST_MMAP})"
        "  # M_MMAP_THRESHOLD: freed memory stays here",
        f"ctypes.CDLL(None).mallopt(-1, {_TRIM})  # M_TRIM_THRESHOLD",
    )
    ensure_import(job.project.entry, "ctypes")


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
