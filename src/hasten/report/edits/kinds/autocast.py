"""The model's call under autocast, its answer widened again; the loss stays outside.

The answer has to be one tensor to be widened by a word. Where the text does not show that, the
lines are given to the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from hasten.lever import provided
from hasten.records import Traits
from hasten.report.edits.arguments import code
from hasten.report.edits.flow import Flow
from hasten.report.edits.job import change
from hasten.report.edits.kinds.trained import calls_of, models
from hasten.report.edits.statements import parsed
from hasten.report.edits.survey import Site, dotted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.report.edits.job import Job
    from hasten.report.edits.survey import Survey

_TENSOR_METHODS = frozenset({
    "argmax", "backward", "detach", "flatten", "float", "log_softmax", "mean", "permute",
    "reshape", "sigmoid", "softmax", "squeeze", "sum", "transpose", "view",
})  # fmt: skip
_NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode"})
_SWITCH = "torch.set_grad_enabled"
_OWN = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")


def autocast(job: Job) -> None:
    """Put each call of the model that a backward pass follows under autocast."""
    survey = job.survey()
    flow = Flow(survey)
    if provided(job.plan, Traits()).model.device is not None:
        job.keep_running("the plan computes on another device than the edited script would")
        return
    if job.setting == "float16":
        where = survey.places(survey.methods("backward"))
        job.paste("gradients have to be unscaled before whatever reads them", at=where)
        return
    if own := survey.called(*_OWN):
        job.leave(
            f"nothing is written, since the script has an autocast of its own at "
            f"{survey.places(own)}. Where that one is off, switch it on with "
            f"dtype=torch.{job.setting}, around the model's call alone"
        )
        return
    training = {id(site.scope) for site in survey.methods("backward")}
    calls = [
        site
        for model in models(survey, flow)
        for site in calls_of(survey, flow, model)
        if id(site.scope) in training and not _without_gradients(survey, site)
    ]
    able = [site for site in calls if _is_tensor(survey, flow, site) and _comes_first(survey, site)]
    if not calls or len(able) < len(calls):
        where = survey.places([site for site in calls if site not in able])
        why = "nothing here shows that the model's answer is one tensor" if calls else (
            "no call of the model is followed by a backward pass in the same function"
        )  # fmt: skip
        job.paste(why, at=where)
        return
    if job.import_torch(able):
        autocast(job)  # once more, on the new text
        return
    _write(job, survey, able)


def _write(job: Job, survey: Survey, sites: list[Site]) -> None:
    device = job.traits.model.device or "cpu"
    calls = {id(survey.statement(site.node)): site for site in sites}

    def wrapped(statement: Site) -> Callable[[object], object]:
        call = calls[id(statement.node)]
        torch = survey.local_name(call.source, "torch") or "torch"
        asked = f"enabled={torch}.is_grad_enabled(), " if _is_shared(survey, call) else ""
        head = (
            f'with {torch}.autocast("{device}", dtype={torch}.{job.setting}, {asked}'
            "cache_enabled=False):"
        )
        return lambda node: _under(node, call, head, _free_name(survey, call))

    change([Site(scope=s.scope, node=survey.statement(s.node)) for s in sites], wrapped)


def _under(
    statement: object, site: Site, head: str, name: str
) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return a statement with its call of the model made before it, under autocast."""
    assert isinstance(statement, cst.SimpleStatementLine)  # noqa: S101
    call = code(site.node)
    (block,) = parsed(f"{head}\n    {name} = {call}\n")
    block = block.with_changes(leading_lines=statement.leading_lines)
    text = code(statement.with_changes(leading_lines=(), trailing_whitespace=_PLAIN_END))
    (rest,) = parsed(text.replace(call, f"{name}.float()", 1))
    rest = rest.with_changes(trailing_whitespace=statement.trailing_whitespace)
    return cst.FlattenSentinel([block, rest])


_PLAIN_END = cst.TrailingWhitespace()


def _free_name(survey: Survey, site: Site) -> str:
    """Return a name for the answer that nothing in the function has."""
    taken = site.scope.bound | set(survey.files[site.source].bound)
    statement = survey.statement(site.node)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Assign) and small.value is site.node:
        return code(small.targets[0].target)
    names = ("outputs", *(f"outputs_{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def _without_gradients(survey: Survey, site: Site) -> bool:
    """Return whether a call is under `torch.no_grad()` or similar."""
    around = _around(survey, site)
    return any(full in _NO_GRAD or (full, given) == (_SWITCH, "False") for full, given in around)


def _is_shared(survey: Survey, site: Site) -> bool:
    """Return whether an evaluation goes through the same lines: the lever leaves that alone."""
    callers = [call for call in survey.calls if survey.function(call) is site.scope]
    is_switched = any(full == _SWITCH for full, _ in _around(survey, site))
    return is_switched or any(_without_gradients(survey, caller) for caller in callers)


def _around(survey: Survey, site: Site) -> list[tuple[str, str]]:
    """Return the contexts and decorators around a node, with the first argument of each."""
    items: list[cst.CSTNode] = []
    for parent in survey.parents(site.node):
        if isinstance(parent, cst.With):
            items += [item.item for item in parent.items]
        elif isinstance(parent, cst.FunctionDef):
            items += [decorator.decorator for decorator in parent.decorators]
    called = [(i.func, i.args[:1]) if isinstance(i, cst.Call) else (i, ()) for i in items]
    return [
        (survey.full_name(func, site.scope), "".join(code(arg.value) for arg in args))
        for func, args in called
    ]


def _comes_first(survey: Survey, site: Site) -> bool:
    """Return whether nothing of the statement is computed before the call of the model."""
    node: cst.CSTNode = site.node
    statement = survey.statement(node)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    if isinstance(statement.body[0], cst.AugAssign | cst.AnnAssign):
        return False
    for parent in survey.parents(site.node):
        if parent is statement:
            return True
        if isinstance(parent, cst.Call):
            first = bool(parent.args) and parent.args[0] is node and dotted(parent.func)
            if not first and parent.func is not node:
                return False
        elif not isinstance(parent, cst.Arg | cst.Attribute | cst.Assign | cst.Expr):
            return False
        node = parent
    return False


def _is_tensor(survey: Survey, flow: Flow, site: Site) -> bool:
    """Return whether the text shows that an answer is one tensor: what is done with it."""
    parent = next(survey.parents(site.node))
    if isinstance(parent, cst.Attribute):
        return parent.attr.value in _TENSOR_METHODS
    if isinstance(parent, cst.Arg):
        taker = next(node for node in survey.parents(parent) if isinstance(node, cst.Call))
        return _is_loss(survey, flow, Site(scope=site.scope, node=taker))
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return False
    name = dotted(parent.targets[0].target)
    return bool(name) and any(
        _shows_tensor(survey, flow, other, name)
        for other in survey.calls
        if other.scope is site.scope
    )


def _shows_tensor(survey: Survey, flow: Flow, site: Site, name: str) -> bool:
    func = site.call.func
    if isinstance(func, cst.Attribute) and dotted(func.value) == name:
        return func.attr.value in _TENSOR_METHODS
    given = bool(site.call.args) and dotted(site.call.args[0].value) == name
    return given and _is_loss(survey, flow, site)


def _is_loss(survey: Survey, flow: Flow, site: Site) -> bool:
    """Return whether a call is a loss of torch: a function, or a module that is made here."""
    func = site.call.func
    if survey.full_name(func, site.scope).startswith("torch.nn.functional."):
        return True
    made = [(s, survey.full_name(s.call.func, s.scope)) for s in survey.calls]
    losses = [s for s, full in made if full.startswith("torch.nn.") and full.endswith("Loss")]
    return any(flow.same(func, site.scope, flow.result(loss)) for loss in losses)
