"""Lines about the model, put before the optimizer that is made for its weights.

Methods of a module act in place, so it does not matter by which name it is known there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.report.edits.arguments import argument, code
from hasten.report.edits.flow import Flow
from hasten.report.edits.job import change
from hasten.report.edits.kinds.optimizers import made
from hasten.report.edits.kinds.trained import calls_of, means, models, nameless, places
from hasten.report.edits.statements import before, ensure_import

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.report.edits.job import Job
    from hasten.report.edits.kinds.trained import Model
    from hasten.report.edits.survey import Site, SourceScope, Survey

_LAYOUTS = {4: "channels_last", 5: "channels_last_3d"}
_FLATTENING = (
    "torch.nn.utils.parameters_to_vector",
    "torch.nn.utils.convert_parameters.parameters_to_vector",
)
_DRAWN = (
    "torch.nn.Dropout", "torch.nn.functional.dropout", "torch.nn.AlphaDropout",
    "torch.nn.functional.alpha_dropout", "torch.nn.RReLU", "torch.nn.functional.rrelu",
    "torch.rand_like", "torch.randn_like", "torch.randint_like", "torch.bernoulli",
)  # fmt: skip
_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
_AROUND = (cst.For, cst.While, cst.FunctionDef)


def channels_last(job: Job) -> None:
    """Lay out the weights before the optimizer is made, and the inputs at the model's calls."""
    own = job.traits.model
    if own.has_conv2d and own.has_conv3d:
        job.paste("the model has convolutions of both 2 and 3 dimensions")
        return
    layout = _LAYOUTS[5 if own.has_conv3d else 4]
    survey = job.survey()
    flow = Flow(survey)
    if loads := _optimizer_loads(survey, flow):
        job.keep_running(
            f"the optimizer loads a state at {survey.places(loads)}, which the lever lays out as "
            "the weights are; a fused update reads it wrongly where it is not"
        )
        return
    if flat := made(survey, frozenset({"LBFGS"})) + survey.called(*_FLATTENING):
        job.keep_running(
            f"torch flattens weights or gradients by a `.view` at {survey.places(flat)}, which "
            "fails in this layout"
        )
        return
    found = _found(job, survey, flow)
    if not found:
        return
    if drops := survey.called(*_DRAWN):
        job.note(
            f"a dropout or noise of feature maps (is it at {survey.places(drops)}?) then draws "
            "other numbers: torch draws in the order of memory, where `hasten run` keeps the "
            "script's"
        )
    if views := survey.methods("view"):
        job.note(
            f"a `.view` of feature maps (is it at {survey.places(views)}?) becomes `.reshape`: "
            "torch has no such view in this layout"
        )
    called = [site for model in found for site in calls_of(survey, flow, model)]
    calls = _in_training(survey, called)
    job.import_torch([*(site for model in found for site in model.optimizers), *calls])
    _put_before_optimizers(job, "to", f"memory_format=torch.{layout}")
    if _LAYOUTS.get(own.conv_input_dimension_count or 0) != layout or len(found) > 1:
        job.note(
            "the inputs of the model stay as they are, since their dimensions are not known; its "
            "first convolution converts them"
        )
        return
    _convert_inputs(job, layout)


def _found(job: Job, survey: Survey, flow: Flow) -> list[Model]:
    """Return the models that are trained, and give the lines for those that have no sure name."""
    found, unsure = models(survey, flow), nameless(survey, flow)
    if unsure:
        job.paste(
            "no name there is sure to mean the model on a line before it", at=survey.places(unsure)
        )
    elif not found:
        job.paste("no optimizer is made from `parameters()` of a model in these files")
    return found


def _convert_inputs(job: Job, layout: str) -> None:
    survey = job.survey()
    flow = Flow(survey)
    sites = [site for model in models(survey, flow) for site in calls_of(survey, flow, model)]
    training = _in_training(survey, sites)
    inputs = [(site, site.call.args[0]) for site in training if site.call.args]
    able = [
        site
        for site, arg in inputs
        if not arg.star and arg.keyword is None and isinstance(arg.value, _PLAIN)
    ]

    def converted(site: Site) -> Callable[[Any], Any]:
        own = _with_torch(survey, site.scope, f".to(memory_format=torch.{layout})")
        return lambda node: _converted(node, own)

    change(able, converted)
    if odd := [site for site in sites if site not in able]:
        job.note(
            f"the inputs at {survey.places(odd)} stay as they are; the first convolution there "
            "converts them"
        )
    if not sites:
        job.note("no call of the model was found: its first convolution converts the inputs")


def _in_training(survey: Survey, sites: list[Site]) -> list[Site]:
    """Return the calls beside a backward pass: in the innermost loop or function around it.

    Others may get something else than batches, or mean another model by that name.
    """
    blocks = {
        id(next((n for n in survey.parents(site.node) if isinstance(n, _AROUND)), None))
        for site in survey.methods("backward")
    }
    return [s for s in sites if any(id(n) in blocks for n in survey.parents(s.node))]


def _converted(node: Any, wanted: str) -> Any:
    first, *more = node.args
    text = code(first.value)
    if text.endswith(wanted):
        return node
    return node.with_changes(
        args=[first.with_changes(value=cst.parse_expression(text + wanted)), *more]
    )


def _optimizer_loads(survey: Survey, flow: Flow) -> list[Site]:
    """Return where an optimizer loads a state."""
    optimizers = [flow.result(site) for site in made(survey)]
    return [
        site
        for site in survey.methods("load_state_dict")
        if any(flow.same(site.receiver, site.scope, optimizer) for optimizer in optimizers)
    ]


def torch_compile(job: Job) -> None:
    """Compile the model in place: its class, its keys and its pickles stay as they are."""
    survey = job.survey()
    flow = Flow(survey)
    found = _found(job, survey, flow)
    if not found:
        return
    if idle := [model.name for model in found if not calls_of(survey, flow, model)]:
        job.note(
            f"no call of {' and '.join(idle)} was found: compile() acts only where the module "
            "itself is called, not on its other methods or on parts that are called alone"
        )
    mode = "" if job.setting == "default" else f'mode="{job.setting}"'
    ensure_import(job.project.entry, "torch._inductor.config")
    job.set_up("torch._inductor.config.fallback_random = True")
    _put_before_optimizers(job, "compile", mode)
    job.note(
        "this compiles evaluation and odd batches, too, and with graph breaks where it must; "
        "`hasten run` leaves all that to plain torch"
    )


def _put_before_optimizers(job: Job, method: str, arguments: str) -> None:
    """Put a call of a method of each model before the statements that make its optimizers."""
    survey = job.survey()
    flow = Flow(survey)
    wanted: dict[int, tuple[Site, list[str]]] = {}
    for model in models(survey, flow):
        own = [s for s in survey.methods(method) if means(flow, s.receiver, s, model)]
        if method == "to":
            own = [site for site in own if argument(site.call, "memory_format") is not None]
        for place in places(survey, model, own):
            texts = wanted.setdefault(id(place.node), (place, []))[1]
            texts.append(_with_torch(survey, place.scope, f"{model.name}.{method}({arguments})"))
    lines = {key: "".join(f"{text}\n" for text in texts) for key, (_, texts) in wanted.items()}
    statements = [place for place, _ in wanted.values()]
    change(statements, lambda site: lambda node: before(node, lines[id(site.node)]))  # type: ignore[arg-type]


def _with_torch(survey: Survey, scope: SourceScope, text: str) -> str:
    """Return a line with torch called as this file calls it."""
    own = survey.local_name(scope.source, "torch") or "torch"
    return text if own == "torch" else text.replace("torch.", f"{own}.")
