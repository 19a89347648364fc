"""Follow calls of objects: the script's own, and the transforms of torchvision."""

from __future__ import annotations

import ast
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import functions, kinds, library, operators, tokenizers
from hasten.loader.proof.frame import Given
from hasten.loader.proof.objects import attribute_of, parameter_count
from hasten.loader.proof.source import is_user_class, is_user_function
from hasten.loader.proof.values import MANY, Value, either, elements, new, unknown

if TYPE_CHECKING:
    from hasten.loader.proof.frame import Frame

_DRAW_NOTHING = {
    "ToTensor", "PILToTensor", "ConvertImageDtype", "ToPILImage", "Normalize", "Resize",
    "CenterCrop", "Pad", "FiveCrop", "TenCrop", "Grayscale", "LinearTransformation", "Compose",
    "Lambda", "ToImage", "ToDtype", "ToPureTensor", "Identity", "ConvertBoundingBoxFormat",
    "ClampBoundingBoxes", "MelSpectrogram", "Spectrogram", "MFCC", "AmplitudeToDB", "Resample",
    "MelScale", "Sequential", "StandardTransform",
}  # fmt: skip
_PRIVATE = {"_forward_hooks", "_forward_pre_hooks", "_modules"}


def call_instance(body: Frame, one: Any, given: Given) -> Value:
    """Follow a call of an object that is neither a function nor a class."""
    kind = type(one)
    if not is_user_class(kind):
        if library.is_transform(kind):
            return _transform(body, one, given)
        if kinds.is_tokenizer(one):
            return tokenizers.call(body, one, "__call__", given)
        batch = tokenizers.collate(body, one, given)
        return batch or body.gap(f"it calls {kinds.shown(one)}", given.node)
    body.reads.load(one)
    call = attribute_of(kind, "__call__")
    if _is_of_torch(call):
        return _module(body, one, given)
    target = attribute_of(one, "__call__") if "__call__" not in _held(one) else None
    if not isinstance(target, MethodType):
        return body.gap(f"a call of {kind.__name__} cannot be followed", given.node)
    body.reads.attributes.add("__call__")
    return body.follower.live(body, target, given)


def _held(one: Any) -> dict[str, Any]:
    found = getattr(one, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _is_of_torch(call: Any) -> bool:
    return (
        isinstance(call, FunctionType)
        and call.__module__ == "torch.nn.modules.module"
        and not is_user_function(call)
    )


def _module(body: Frame, one: Any, given: Given) -> Value:
    """Follow a call of a module of the script's: torch calls `forward` if it has no hooks."""
    if any(value for name, value in _held(one).items() if name.endswith("_hooks")):
        return body.gap(f"a {type(one).__name__} with hooks is called", given.node)
    target = attribute_of(one, "forward")
    body.reads.attributes.add("forward")
    if not isinstance(target, (FunctionType, MethodType)):
        return body.gap(f"a call of {type(one).__name__} cannot be followed", given.node)
    return body.follower.live(body, target, given)


def _transform(body: Frame, one: Any, given: Given) -> Value:
    """Follow a transform of torchvision: it reads its attributes, and calls those it was given."""
    reads, node = body.reads, given.node
    args = [value for value in given.args if value is not MANY]
    holds = reads.keeps(args)
    flat = bool(args) and all(value.flat for value in args)
    whole = Value(
        None, fresh=not holds, shares=holds, flat=flat and type(one).__name__ not in _GROUPS
    )
    if type(one).__name__ not in _DRAW_NOTHING:
        reads.draws = True
    if _held(one).get("inplace") and not (args and args[0].fresh):
        return body.gap(f"{type(one).__name__} works in place on what outlives the batch", node)
    for value in args:
        operators.implied(body, value, node)
    following = body.follower.following
    if any(earlier is one for earlier in following):
        return whole
    following.append(one)
    found = _stages(body, one, args or [new()], node)
    following.pop()
    if type(one).__name__ in ("Compose", "Lambda"):  # they return what the last of their parts does
        return [whole, *found][-1]
    return either(whole, *found)


def _stages(body: Frame, one: Any, passed: list[Value], node: Any) -> list[Value]:
    """Follow what a transform calls: each part of it on what the one before returned."""
    found: list[Value] = []
    body.reads.look_into(one)
    for name, value in _held(one).items():
        if name.startswith("_") and name not in _PRIVATE:
            continue
        body.reads.attributes.add(name)
        body.reads.load(value)
        for part in _parts(value):
            args = passed if _is_stage(part) else [unknown()] * parameter_count(part)
            result = body.follower.live(body, part, Given(args, {}, node))
            found.append(result)
            if _is_stage(part):
                passed = [either(passed[0], result), *passed[1:]]
    return found


def make(body: Frame, kind: type, given: Given) -> Value:
    """Follow the making of a transform: what it may call is followed here."""
    node = given.node
    functions.follow_functions(body, "", given)
    told = {**functions.by_signature(kind, given.args), **given.named}
    if "inplace" in told and told["inplace"].only is not False:
        return body.gap(f"a {kind.__name__} that works in place is made", node)
    if kind.__name__ not in _DRAW_NOTHING:
        body.reads.draws = True
    shares = False
    stages = _displayed(body, kind, node)
    if stages is not None:
        shares = any(map(body.reads.holds, stages))
        return Value(None, fresh=True, shares=shares, kind=kind, stages=stages)
    for value in given.values:
        if value.made is not None:
            many = [new()] * len(value.made[0].args.args)
            shares |= body.reads.holds(body.follower.inner(value, Given(many, {}, node)))
        elif body.reads.holds(value) and not value.flat:
            return body.gap(f"a {kind.__name__} of what nobody can know is made", node)
        body.ask(new(), "__call__", node)
    return new(kind=kind, shares=shares)


def _displayed(body: Frame, kind: type, node: Any) -> tuple[Value, ...] | None:
    """Return the stages of a chain that are spelled out where it is made: `Compose([a, b])`."""
    if kind.__name__ != "Compose" or not isinstance(node, ast.Call):
        return None
    given = [*node.args, *(one.value for one in node.keywords)]
    if len(given) != 1 or not isinstance(given[0], (ast.List, ast.Tuple)):
        return None
    if any(isinstance(one, ast.Starred) for one in given[0].elts):
        return None
    return tuple(body.value(one) for one in given[0].elts)


def call_made(body: Frame, made: Value, given: Given) -> Value:
    """Follow a call of a transform that was made for the batch."""
    args, node = given.args, given.node
    if made.stages is not None:
        if len(args) != 1:
            return body.gap("a chain of transforms is given more than a picture", node)
        passed = args[0]
        for stage in made.stages:
            passed = body.follower.value(body, stage, Given([passed], {}, node))
        return passed
    for value in args:
        operators.implied(body, value, node)
    holds = made.shares or body.reads.keeps(args)
    flat = made.kind is not None and made.kind.__name__ not in _GROUPS
    return Value(None, fresh=not holds, shares=holds, flat=flat and all(v.flat for v in args))


_GROUPS = ("FiveCrop", "TenCrop", "Lambda", "Compose", "Sequential")


def _is_stage(part: Any) -> bool:
    return parameter_count(part) == 1 or not isinstance(part, (FunctionType, MethodType))


def _parts(value: Any) -> list[Any]:
    held = elements(value)
    parts = [value] if held is None else list(held)
    return [part for part in parts if _is_called(part)]


def _is_called(part: Any) -> bool:
    # What is called and cannot be followed is a gap: a partial, a cache, a method of C.
    return callable(part) and not isinstance(part, type)
