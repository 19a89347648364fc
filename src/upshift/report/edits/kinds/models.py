"""Lines about the model, put before the optimizer that is made for its weights.

There the model is built and moved, and the loop has not begun. Methods of a module act in place,
so it does not matter by which name it is known there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from upshift.report.edits.arguments import argument, code, expression, with_argument
from upshift.report.edits.flow import Flow
from upshift.report.edits.job import change
from upshift.report.edits.kinds.optimizers import made
from upshift.report.edits.statements import before, ensure_import
from upshift.report.edits.survey import Site, dotted

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.report.edits.flow import Key
    from upshift.report.edits.job import Job
    from upshift.report.edits.survey import Scope, Survey

_WEIGHTS = frozenset({"parameters", "named_parameters"})
_LAYOUTS = {4: "channels_last", 5: "channels_last_3d"}
_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Model:
    """A module whose weights an optimizer gets.

    Attributes:
        name: how it is called there: `model`, `self.model`.
        key: what stands for it in the flow of names.
        optimizer: where the optimizer is made.
    """

    name: str
    key: Key
    optimizer: Site


def models(survey: Survey, flow: Flow) -> list[Model]:
    """Return the models that optimizers of torch train, each where its first optimizer is made."""
    found: dict[Key, Model] = {}
    for site in made(survey):
        for name in _roots(survey, site):
            key = flow.key(expression(name), site.scope)
            if key is not None:
                found.setdefault(key, Model(name=name, key=key, optimizer=site))
    return list(found.values())


def _roots(survey: Survey, site: Site) -> list[str]:
    """Return whose `parameters()` an optimizer gets, in its call or else in the same function."""
    named = [_root(node) for node in _calls_in(site.node)]
    if not any(named):
        alike = [s for s in survey.calls if s.scope is site.scope]
        named = [_root(s.call) for s in alike]
        if len({name for name in named if name}) != 1:
            return []
    return list(dict.fromkeys(name for name in named if name))


def _calls_in(node: cst.CSTNode) -> list[cst.Call]:
    own = [node] if isinstance(node, cst.Call) else []
    return own + [call for child in node.children for call in _calls_in(child)]


def _root(call: cst.Call) -> str:
    """Return `model` for `model.backbone.parameters()`, and `self.model` under `self`."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _WEIGHTS:
        return ""
    parts = dotted(func.value).split(".")
    return ".".join(parts[:2] if parts[0] == "self" else parts[:1])


def calls_of(survey: Survey, flow: Flow, model: Model) -> list[Site]:
    """Return where a model is called."""
    return [site for site in survey.calls if flow.same(site.call.func, site.scope, model.key)]


def channels_last(job: Job) -> None:
    """Lay out the weights before the optimizer is made, and the inputs at the model's calls."""
    rank = job.traits.get("model.conv_input_rank")
    if job.traits.get("model.conv") and job.traits.get("model.conv3d"):
        job.paste("the model has convolutions of both 2 and 3 dimensions")
        return
    layout = _LAYOUTS[5 if job.traits.get("model.conv3d") else 4]
    survey = job.survey()
    flow = Flow(survey)
    found = models(survey, flow)
    if loads := _optimizer_loads(survey, flow):
        job.keep_running(
            f"the optimizer loads a state at {survey.places(loads)}, which the lever lays out as "
            "the weights are; a fused update reads it wrongly where it is not"
        )
        return
    if not found:
        job.paste("no optimizer is made from `parameters()` of a model in these files")
        return
    calls = [site for model in found for site in calls_of(survey, flow, model)]
    _import_torch(survey, [*(model.optimizer for model in found), *calls])
    _put_before_optimizers(job, lambda name: f"{name}.to(memory_format=torch.{layout})")
    if drops := survey.called("torch.nn.Dropout", "torch.nn.functional.dropout"):
        job.note(
            f"a dropout of feature maps (is it at {survey.places(drops)}?) then drops others than "
            "now: torch draws them in the order of memory, where `upshift run` keeps the script's"
        )
    named = [(site, site.call.func) for site in survey.calls]
    if views := [s for s, f in named if isinstance(f, cst.Attribute) and f.attr.value == "view"]:
        job.note(
            f"a `.view` of feature maps (is it at {survey.places(views)}?) becomes `.reshape`: "
            "torch has no such view in this layout"
        )
    if rank is None or _LAYOUTS.get(int(rank)) != layout or len(found) > 1:
        job.note(
            "the inputs of the model stay as they are, since their dimensions are not known; its "
            "first convolution converts them"
        )
        return
    _convert_inputs(job, layout)


def _convert_inputs(job: Job, layout: str) -> None:
    survey = job.survey()
    flow = Flow(survey)
    sites = [site for model in models(survey, flow) for site in calls_of(survey, flow, model)]
    able = [s for s in sites if s.call.args and _is_convertible(s.call.args[0])]

    def converted(site: Site) -> Callable[[Any], Any]:
        own = _with_torch(survey, site.scope, f".to(memory_format=torch.{layout})")
        return lambda node: _converted(node, own)

    change(able, converted)
    if odd := [site for site in sites if site not in able]:
        job.note(f"the inputs at {survey.places(odd)} stay as they are")
    if not sites:
        job.note("no call of the model was found: its first convolution converts the inputs")


def _is_convertible(arg: cst.Arg) -> bool:
    return not arg.star and arg.keyword is None and isinstance(arg.value, _PLAIN)


def _converted(node: Any, wanted: str) -> Any:
    first, *more = node.args
    text = code(first.value)
    if text.endswith(wanted):
        return node
    return node.with_changes(args=[first.with_changes(value=expression(text + wanted)), *more])


def _optimizer_loads(survey: Survey, flow: Flow) -> list[Site]:
    """Return where an optimizer loads a state."""
    optimizers = {flow.head(flow.result_key(site)) for site in made(survey)}
    return [
        site
        for site in survey.calls
        if isinstance(site.call.func, cst.Attribute)
        and site.call.func.attr.value == "load_state_dict"
        and (key := flow.key(site.call.func.value, site.scope)) is not None
        and flow.head(key) in optimizers
    ]


def torch_compile(job: Job) -> None:
    """Compile the model in place: its class, its keys and its pickles stay as they are."""
    survey = job.survey()
    found = models(survey, Flow(survey))
    if not found:
        job.paste("no optimizer is made from `parameters()` of a model in these files")
        return
    mode = "" if job.setting == "default" else f'mode="{job.setting}"'
    job.set_up(f"{job.torch_name()}._inductor.config.fallback_random = True")
    _put_before_optimizers(job, lambda name: f"{name}.compile({mode})")
    job.note(
        "this compiles evaluation and odd batches, too, and with graph breaks where it must; "
        "`upshift run` leaves all that to plain torch"
    )


def _put_before_optimizers(job: Job, line: Callable[[str], str]) -> None:
    """Put one line for each model before the statement in which its optimizer is made."""
    survey = job.survey()
    flow = Flow(survey)
    wanted: dict[int, tuple[Site, list[str]]] = {}
    for model in models(survey, flow):
        scope = model.optimizer.scope
        text = _with_torch(survey, scope, line(model.name))
        if _is_there(survey, flow, model, text):
            continue
        statement = survey.statement(model.optimizer.node)
        place = Site(scope=scope, node=statement)
        wanted.setdefault(id(statement), (place, []))[1].append(text)
    lines = {key: "".join(f"{text}\n" for text in texts) for key, (_, texts) in wanted.items()}
    places = [place for place, _ in wanted.values()]
    change(places, lambda site: lambda node: before(node, lines[id(site.node)]))  # type: ignore[arg-type]


def _with_torch(survey: Survey, scope: Scope, text: str) -> str:
    """Return a line with torch called as this file calls it."""
    own = survey.local_name(scope.source, "torch") or "torch"
    return text if own == "torch" else text.replace("torch.", f"{own}.")


def _import_torch(survey: Survey, sites: list[Site]) -> None:
    for source in {site.source for site in sites}:
        if not survey.local_name(source, "torch"):
            ensure_import(source, "torch")


def _is_there(survey: Survey, flow: Flow, model: Model, text: str) -> bool:
    """Return whether a model has such a call already, wherever."""
    wanted = expression(text)
    assert isinstance(wanted, cst.Call)  # noqa: S101
    assert isinstance(wanted.func, cst.Attribute)  # noqa: S101
    method = wanted.func.attr.value
    for site in survey.calls:
        func = site.call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != method:
            continue
        if not flow.same(func.value, site.scope, model.key):
            continue
        if method == "compile" or argument(site.call, "memory_format") is not None:
            return True
    return False


def sdpa(job: Job) -> None:
    """Ask Transformers for the fused kernel where the script asks for the eager one."""
    survey = job.survey()
    eager = [
        site
        for site in survey.calls
        if (told := argument(site.call, "attn_implementation")) is not None
        and code(told.value).strip("'\"") == "eager"
    ]
    if not eager:
        job.paste('no attn_implementation="eager" is written in these files')
        return

    change(eager, lambda site: _with_fused_attention)


def _with_fused_attention(node: Any) -> Any:
    return with_argument(node, "attn_implementation", '"sdpa"')
