"""Options of the optimizer's constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from upshift.report.edits.arguments import (
    argument,
    code,
    entry,
    spread_literal,
    spread_names,
    with_argument,
    with_entry,
    without_argument,
)
from upshift.report.edits.job import change

if TYPE_CHECKING:
    from upshift.report.edits.job import Job
    from upshift.report.edits.survey import Site, Survey

FUSABLE = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
NAMES = FUSABLE | {"RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"}
ALL = NAMES | {"LBFGS", "SparseAdam"}
_OFF = frozenset({"False", "None"})


def made(survey: Survey, names: frozenset[str] = ALL) -> list[Site]:
    """Return where optimizers of torch are made."""
    return survey.called("torch.optim.", last=names)


def fused_optimizer(job: Job) -> None:
    """Ask every optimizer that has one for its fused form."""
    _choose(job, "fused", FUSABLE, rival="foreach")


def foreach_optimizer(job: Job) -> None:
    """Ask every optimizer for its multi-tensor form."""
    _choose(job, "foreach", NAMES, rival="fused")


def _choose(job: Job, name: str, kinds: frozenset[str], *, rival: str) -> None:
    survey = job.survey()
    sites = made(survey, kinds)
    if not sites:
        job.paste("no constructor of such an optimizer of torch was found")
        return
    for reason in ("differentiable", "capturable"):
        # The lever leaves such an optimizer alone.
        sites = [s for s in sites if _given(s.call, reason) in _OFF]
    written = [(site, _home(survey, site, name)) for site in sites]
    if unclear := [site for site, home in written if home is None]:
        job.paste("its arguments come from elsewhere", at=survey.places(unclear))
    homes = {id(home.node): home for _, home in written if home is not None}
    change(list(homes.values()), lambda site: lambda node: _chosen(node, name, rival))
    if homes:
        job.note(
            "the first update of each weight is rounded otherwise than under `upshift run`, "
            "which leaves it to the script's own form"
        )


def _given(call: cst.Call, name: str) -> str:
    found = argument(call, name)
    return "False" if found is None else code(found.value)


def _home(survey: Survey, site: Site, name: str) -> Site | None:
    """Return the node that has or gets the argument: the call, or the dict that it spreads."""
    if argument(site.call, name) is not None or not spread_names(site.call):
        return site
    return spread_literal(survey, site)


def _chosen(node: Any, name: str, rival: str) -> Any:
    """Return a call or a dict with one form asked for, and the other no longer."""
    if isinstance(node, cst.Dict):
        told = entry(node, rival)
        node = node if told is None or code(told) in _OFF else with_entry(node, rival, "None")
        return with_entry(node, name, "True")
    other = argument(node, rival)
    if other is not None and code(other.value) not in _OFF:
        node = without_argument(node, other)
    return with_argument(node, name, "True")
