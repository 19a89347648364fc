"""Arguments of the DataLoader that feeds the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import libcst as cst

from hasten.report.edits.arguments import (
    code,
    home,
    put,
    spread_names,
)
from hasten.report.edits.flow import Flow
from hasten.report.edits.job import change
from hasten.report.edits.survey import Site, dotted
from hasten.units import reaches

if TYPE_CHECKING:
    from hasten.report.edits.flow import Key
    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Survey

_CONTEXT = "multiprocessing_context"
_WORKERS, _INDEX = "num_workers", 5
_SET_UP = "worker_init_fn"
# From this Python on, Linux does not fork: each worker runs the file of the script once more.
_NO_FORK_PYTHON = (3, 14)
_NEEDS_WORKERS = ("persistent_workers", "prefetch_factor", "timeout", _CONTEXT)


def loader_workers(job: Job) -> None:
    """Let so many workers fetch, where the samples cannot depend on who makes them.

    `persistent_workers` is left out: a loader that keeps its workers draws one number less from
    the script's generator in each later pass, and so shuffles otherwise.
    """
    if why := _why_other_draws(job) or _why_drawn_early(job):
        job.keep_running(why)
        return
    if _write(job):
        job.note(
            "the workers start anew with each pass; persistent_workers=True would spare that, and "
            "shuffle otherwise from the second pass on. No sample that was watched drew a random "
            "number; `hasten run` also checks the batches that come later"
        )


def redrawing_workers(job: Job) -> None:
    """Let so many workers fetch and draw for themselves."""
    if _write(job):
        job.note(
            "random draws differ from those of `hasten run`, but not in distribution; the workers "
            "start anew with each pass, which persistent_workers=True would spare where no pass "
            "over the loader begins within another"
        )


def _why_drawn_early(job: Job) -> str:
    """Say why two loaders would shuffle differently: with workers a pass draws when it begins."""
    survey = job.survey()
    flow = Flow(survey)
    made = survey.called("torch.utils.data.", last=frozenset({"DataLoader"}))
    heads = {flow.result(site) for site in made}

    def loaders(*sites: Site) -> list[Key]:
        keys = [flow.key(arg.value, site.scope) for site in sites for arg in site.call.args]
        return [flow.head(key) for key in keys if key is not None and flow.head(key) in heads]

    together = [s for s in survey.calls if dotted(s.call.func) == "zip" and len(loaders(s)) > 1]
    begun = [s for s in survey.calls if dotted(s.call.func) == "iter" and loaders(s)]
    together += begun if len(set(loaders(*begun))) > 1 else []
    if not together:
        return ""
    return (
        f"two loaders begin together at {survey.places(together)}: with workers each draws its "
        "order at once, and so other numbers than without"
    )


def _why_other_draws(job: Job) -> str:
    loader = job.traits.loader
    if loader is None:
        return "whether the samples draw random numbers was not recorded; tune again to know"
    if loader.worker_count:
        return "workers of another number or life would draw other random numbers than the script's"
    if loader.draws is None:
        return "whether the samples draw random numbers could not be seen"
    if loader.draws:
        return (
            "the samples draw random numbers, which workers of torch's own would draw otherwise; "
            "the lever gives each of them the numbers that the script would have drawn"
        )
    return ""


def _write(job: Job) -> bool:
    survey = job.survey()
    sites = survey.called("torch.utils.data.", last=frozenset({"DataLoader"}))
    if not sites:
        job.paste("no DataLoader is made in these files")
        return False
    feeding = feeds(survey, sites)
    if not feeding:
        job.paste(
            "which of these loaders feeds the training loop cannot be told from the text",
            at=survey.places(sites),
        )
        return False
    homes = [(site, home(survey, site, _WORKERS, index=_INDEX)) for site in sites]
    known = {id(at.node): at for site, at in homes if at is not None and site in feeding}
    if unclear := [site for site, at in homes if at is None and site in feeding]:
        job.paste("its arguments come from elsewhere", at=survey.places(unclear))
    if why := _why_set_up(job, survey, [pair for pair in homes if pair[0] in feeding]):
        job.keep_running(why)
        return False
    # Torch refuses these without workers.
    bound = [s for s in known.values() if any(name in code(s.node) for name in _NEEDS_WORKERS)]
    if bound and not job.setting:
        job.keep_running(f"the loader at {survey.places(bound)} asks for what needs workers")
        return False
    is_written = {id(site.node) for site, at in homes if at is not None and id(at.node) in known}
    if others := [s for s in sites if s not in feeding and id(s.node) not in is_written]:
        job.note(
            f"the loader at {survey.places(others)} does not feed the training loop and stays as "
            "it is; `hasten run` gives it workers, too"
        )
    context = _context(job, survey, list(known.values()))

    def written(node: object) -> object:
        node = put(node, _WORKERS, str(job.setting), index=_INDEX)
        return put(node, _CONTEXT, context) if context else node

    change(list(known.values()), lambda site: written)
    return bool(known)


def _why_set_up(job: Job, survey: Survey, homes: list[tuple[Site, Site | None]]) -> str:
    """Say which loader would run a function in the workers that it never had."""
    loader = job.traits.loader
    had_none = job.setting and (loader is None or not loader.worker_count)
    texts = {id(s.node): code(s.node) + (code(at.node) if at else "") for s, at in homes}
    given = [site for site, _ in homes if had_none and _SET_UP in texts[id(site.node)]]
    if not given:
        return ""
    return (
        f"torch's own workers would run the {_SET_UP} of the loader at {survey.places(given)}, "
        "which the script without workers never does, nor those of the lever"
    )


def _context(job: Job, survey: Survey, homes: list[Site]) -> str:
    """Return how workers start that the script never had: by fork, as under the lever."""
    chosen = survey.called(
        "multiprocessing.set_start_method", "torch.multiprocessing.set_start_method"
    )
    is_chosen = chosen or any(_CONTEXT in code(place.node) for place in homes)
    had_workers = not job.setting or job.traits.worker_count
    if is_chosen or had_workers or not reaches(job.python, _NO_FORK_PYTHON):
        return ""
    if any(isinstance(place.node, cst.Call) and spread_names(place.call) for place in homes):
        job.note(
            "from Python 3.14 on, workers run the script anew: what it does then belongs below "
            f'`if __name__ == "__main__":`, or the loader takes {_CONTEXT}="fork"'
        )
        return ""
    return '"fork"'


def feeds(survey: Survey, sites: list[Site]) -> list[Site]:
    """Return the loaders over which a loop with a backward pass goes, or else whose items it takes.

    Where there is no such loop, as with a library that trains, an only one is taken, unless a loop
    goes over it.
    """
    flow = Flow(survey)
    training = _training_loops(survey)
    around = {id(loop.node) for loop in training}
    taken = [
        site
        for site in survey.calls
        if dotted(site.call.func) == "next"
        and any(id(parent) in around for parent in survey.parents(site.node))
    ]
    loops = training or survey.loops
    gone_over = [
        Site(scope=loop.scope, node=cast("cst.For", loop.node).iter)
        for loop in loops
        if not isinstance(loop.node, cst.While)
    ]

    def among(places: list[Site]) -> list[Site]:
        keys = {key for place in places for key in _iterated(flow, place)}
        return [site for site in sites if flow.result(site) in keys]

    found = among(gone_over)
    if training:
        return found or among(taken)
    return sites if len(sites) == 1 and not found else []


def _training_loops(survey: Survey) -> list[Site]:
    """Return the loops around a backward pass, or around a call of a function that makes one."""
    inside = survey.methods("backward")
    reached = {id(site.node) for site in inside}
    grew = True
    while grew:
        scopes = [site.scope for site in inside]
        more = [
            s for s in survey.calls if id(s.node) not in reached and survey.function(s) in scopes
        ]
        reached |= {id(site.node) for site in more}
        inside, grew = inside + more, bool(more)
    return [
        Site(scope=site.scope, node=parent)
        for site in inside
        for parent in survey.parents(site.node)
        if isinstance(parent, cst.For | cst.While)
    ]


def _iterated(flow: Flow, site: Site) -> list[Key]:
    """Return the names in what is gone over: `loader`, `enumerate(tqdm(loader))`."""
    found, waiting = [], [site.node]
    while waiting:
        node = waiting.pop()
        key = flow.key(node, site.scope)
        if key is not None:
            found.append(flow.head(key))
        if isinstance(node, cst.Call):
            found.append(flow.head((node, "")))
            waiting += [arg.value for arg in node.args]
    return found
