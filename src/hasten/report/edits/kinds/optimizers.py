"""Options of the optimizer's constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.report.edits.arguments import code, home, put, value
from hasten.report.edits.job import change

if TYPE_CHECKING:
    import libcst as cst

    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Site, Survey

FUSABLE = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
NAMES = FUSABLE | {"RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"}
ALL = NAMES | {"LBFGS", "SparseAdam"}
_OFF = frozenset({"False", "None"})
_NO_MOMENTUM = frozenset({"0", "0.0", "0."})


def made(survey: Survey, names: frozenset[str] = ALL) -> list[Site]:
    """Return where optimizers of torch are made."""
    return survey.called("torch.optim.", last=names)


def fused_optimizer(job: Job) -> None:
    """Ask the optimizers that were tuned, and have one, for their fused form."""
    survey = job.survey()
    if sparse := [site for site in survey.calls if _given(site.call, "sparse") not in _OFF]:
        job.paste(
            "the fused form takes no sparse gradients, which are asked for at "
            f"{survey.places(sparse)}: leave it out where an optimizer gets these",
            at=survey.places(made(survey, FUSABLE)),
        )
        return
    sites = _tuned(job, survey, FUSABLE)
    moving = survey.places([site for site in sites if _has_momentum(survey, site)])
    _choose(job, survey, sites, "fused", rival="foreach")
    if moving:
        job.note(
            f"leave fused=True out of the SGD at {moving} if some weights get their first gradient "
            "in a later step than others, as layers that are unfrozen one after the other: with "
            "momentum, torch's fused form stops with an error then"
        )


def foreach_optimizer(job: Job) -> None:
    """Ask the optimizers that were tuned for their multi-tensor form."""
    survey = job.survey()
    _choose(job, survey, _tuned(job, survey, NAMES), "foreach", rival="fused")


def _tuned(job: Job, survey: Survey, kinds: frozenset[str]) -> list[Site]:
    """Return the optimizers of some kinds that the lever would choose for.

    Where the tuning saw which class trains, one of another class was not measured.
    """
    found = made(survey, kinds)
    seen = job.traits.optimizer.name
    sites = [site for site in found if seen in (None, _class_name(survey, site))]
    if not sites:
        job.paste("no constructor of such an optimizer of torch was found")
    elif others := [site for site in found if site not in sites]:
        job.note(
            f"the optimizer at {survey.places(others)} stays as it is: the tuning saw {seen} train"
        )
    for reason in ("differentiable", "capturable"):
        # The lever leaves such an optimizer alone.
        sites = [s for s in sites if _given(s.call, reason) in _OFF]
    return sites


def _class_name(survey: Survey, site: Site) -> str:
    return survey.full_name(site.call.func, site.scope).rpartition(".")[2]


def _has_momentum(survey: Survey, site: Site) -> bool:
    """Return whether an optimizer is an SGD with momentum, as far as the text tells."""
    place = home(survey, site, "momentum", index=2)
    given = None if place is None else value(place.node, "momentum", index=2)
    moves = given is not None and code(given) not in _NO_MOMENTUM
    return moves and _class_name(survey, site) == "SGD"


def _choose(job: Job, survey: Survey, sites: list[Site], name: str, *, rival: str) -> None:
    written = [(site, home(survey, site, name)) for site in sites]
    if unclear := [site for site, place in written if place is None]:
        job.paste("its arguments come from elsewhere", at=survey.places(unclear))
    places = {id(place.node): place for _, place in written if place is not None}
    change(list(places.values()), lambda site: lambda node: _chosen(node, name, rival))
    if places:
        job.note(
            "the first update of each weight is rounded otherwise than under `hasten run`, "
            "which leaves it to the script's own form"
        )


def _given(call: cst.Call, name: str) -> str:
    found = value(call, name)
    return "False" if found is None else code(found)


def _chosen(node: Any, name: str, rival: str) -> Any:
    """Return a call or a dict with one form asked for, and the other no longer."""
    told = value(node, rival)
    if told is not None and code(told) not in _OFF:
        node = put(node, rival, "None")
    return put(node, name, "True")
