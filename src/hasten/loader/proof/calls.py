"""Follow calls: of the script's own functions, and of what is known of libraries."""

from __future__ import annotations

import ast
import random
import sys
from functools import _lru_cache_wrapper as memoised
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import (
    attributes,
    containers,
    functions,
    library,
    methods,
    objects,
    transforms,
)
from hasten.loader.proof.source import is_user_class, is_user_file, is_user_function
from hasten.loader.proof.values import MANY, Value, either, live, new, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.loader.proof.frame import Frame


_ROUTINES = {
    "ufunc", "method_descriptor", "builtin_function_or_method", "method-wrapper",
    "wrapper_descriptor", "cython_function_or_method", "fused_cython_function",
    "_ArrayFunctionDispatcher", "classmethod_descriptor",
}  # fmt: skip


def call(body: Frame, node: Any) -> Value:
    """Follow a call; return what it may return."""
    if isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
        return _super_call(body, node)
    for one in node.args:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if isinstance(one, ast.GeneratorExp) and containers.consumes(name):
            body.consumed.add(one)
    args = arguments(body, node)
    named = {one.arg or "**": body.value(one.value) for one in node.keywords}
    for value in (*args, *named.values()):
        if any(hasattr(type(one), "__next__") for one in value.objects or ()):
            return body.gap("an iterator or a file that outlives the batch goes on", node)
    if isinstance(node.func, ast.Attribute):
        owner = body.value(node.func.value)
        return call_method(body, owner, node.func.attr, args, named, node)
    return call_value(body, body.value(node.func), args, named, node)


def arguments(body: Frame, node: Any) -> list[Value]:
    """Return the positional arguments of a call; a starred one is merged with all that follow."""
    found: list[Value] = []
    for position, one in enumerate(node.args):
        if isinstance(one, ast.Starred):
            whole = body.value(one.value)
            rest = [body.value(getattr(more, "value", more) if isinstance(more, ast.Starred)
                               else more) for more in node.args[position + 1 :]]  # fmt: skip
            return [*found, either(containers.iterated(body, whole, one), *rest), MANY]
        found.append(body.value(one))
    return found


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (node.func.id == "super")
    )


def _super_call(body: Frame, node: Any) -> Value:
    """Follow `super().method(...)`."""
    given = [body.value(one) for one in node.func.value.args]
    owner = given[0].only if given else body.owner
    first = given[1] if len(given) > 1 else body.variables.get(body.first)
    if body.name("super").only is not super or not isinstance(owner, type) or first is None:
        return body.gap("super() cannot be followed", node)
    args = arguments(body, node)
    named = {one.arg or "**": body.value(one.value) for one in node.keywords}
    if first.objects:
        found = []
        for one in first.objects:
            if not isinstance(one, owner) and not isinstance(one, type):
                return body.gap("super() cannot be followed", node)
            found.append(_of_parent(body, super(owner, one), node.func.attr, args, named, node))
        return either(*found)
    if first.fresh and first.kind is not None and owner in first.kind.__mro__:
        rest = first.kind.__mro__[first.kind.__mro__.index(owner) + 1 :]
        return _of_rest(body, first, rest, node.func.attr, args, named, node)
    return body.gap("super() cannot be followed", node)


def _of_parent(  # noqa: PLR0917
    body: Frame, bound: Any, name: str, args: list[Value], named: Mapping[str, Value], node: ast.AST
) -> Value:
    target = attributes.after(bound, name)
    if target is None or target is object.__init__:
        return live(None)
    if isinstance(target, property):
        return body.gap("super() cannot be followed", node)
    if isinstance(target, (MethodType, FunctionType)):
        return call_object(body, target, args, named, node, module=None)
    return methods.by_name(body, body.reads.load(bound.__self__), name, args, named, node)


def _of_rest(  # noqa: PLR0917
    body: Frame, first: Value, rest: tuple[type, ...], name: str, args: list[Value],
    named: Mapping[str, Value], node: ast.AST,
) -> Value:  # fmt: skip
    """Follow a parent's method on an object that items make."""
    found = next((vars(kind)[name] for kind in rest if name in vars(kind)), None)
    if found is object.__init__ or found is None:
        return live(None)
    if isinstance(found, FunctionType) and is_user_function(found):
        return body.follower.call(found, [first, *args], named, body, node)
    if name == "__init__" and rest[0] in (list, dict, tuple, set, Exception):
        first.shares = first.shares or any(map(body.reads.holds, args))
        return live(None)
    return body.gap(f"super().{name}() cannot be followed", node)


def call_method(  # noqa: PLR0917
    body: Frame, owner: Value, name: str, args: list[Value], named: Mapping[str, Value], node: Any
) -> Value:
    """Follow `owner.name(...)`."""
    if owner.objects is None:
        if owner.kind is not None and is_user_class(owner.kind):
            return _of_made(body, owner, name, args, named, node)
        return methods.by_name(body, owner, name, args, named, node)
    objects = attributes.few(owner.objects)
    if len(objects) < len(owner.objects) and methods.is_of_texts(owner.objects, name):
        return new(flat=True)  # one of several strings: it is unknown which
    found = [_call_of(body, one, name, args, named, node) for one in objects]
    return either(*found) if found else unknown()


def _of_made(  # noqa: PLR0917
    body: Frame, owner: Value, name: str, args: list[Value], named: Mapping[str, Value], node: Any
) -> Value:
    """Follow a method of an object of the script's that was made for the batch."""
    assert owner.kind is not None  # noqa: S101
    raw = next((vars(kind)[name] for kind in owner.kind.__mro__ if name in vars(kind)), None)
    if name in body.reads.facts.stored:
        return body.gap(f"it calls {name}, which is set on an object", node)
    if isinstance(raw, (staticmethod, classmethod)):
        return call_object(
            body, objects.attribute_of(owner.kind, name), args, named, node, module=None
        )
    if isinstance(raw, FunctionType):
        return body.follower.call(raw, [owner, *args], named, body, node)
    if raw is None or isinstance(raw, property) or not _is_routine(raw):
        return call_value(body, attributes.attribute(body, owner, name, node), args, named, node)
    return methods.by_name(body, owner, name, args, named, node)


def _call_of(  # noqa: PLR0917
    body: Frame, one: Any, name: str, args: list[Value], named: Mapping[str, Value], node: Any
) -> Value:
    if isinstance(one, ModuleType):
        found = attributes.of_module(body, one, name, node)
        if found is None or found.only is ...:
            return body.gap(f"{one.__name__}.{name} is not there", node)
        return call_object(body, found.only, args, named, node, module=one.__name__)
    if isinstance(one, type) or library.is_read(type(one)):
        target = objects.attribute_of(one, name)
        body.reads.attributes.add(name)
        if target is None or target is objects.OPAQUE or isinstance(target, property):
            found = attributes.attribute(body, live(one), name, node)
            return call_value(body, found, args, named, node)
        mine = not isinstance(target, (FunctionType, MethodType, BuiltinFunctionType, type))
        if not isinstance(one, type) and mine and _is_routine(target):
            return methods.by_name(body, body.reads.load(one), name, args, named, node)
        return call_object(body, target, args, named, node, module=None)
    held = getattr(one, "__dict__", None)
    if isinstance(held, dict) and name in held and not isinstance(one, (FunctionType, MethodType)):
        found = attributes.of_object(body, one, name, node)
        return call_value(body, found, args, named, node)
    return methods.by_name(body, body.reads.load(one), name, args, named, node)


def call_value(
    body: Frame, callee: Value, args: list[Value], named: Mapping[str, Value], node: Any
) -> Value:
    """Follow a call of whatever a value may be."""
    if callee.made is not None:
        return body.follower.inner(callee, args, named)
    if callee.objects is None:
        kind = callee.kind
        function = objects.attribute_of(kind, "__call__") if kind is not None else None
        if kind is not None and is_user_class(kind) and isinstance(function, FunctionType):
            return body.follower.call(function, [callee, *args], named, body, node)
        if kind is not None and callee.fresh and library.is_transform(kind):
            return transforms.call_made(body, callee, args, node)
        shown = ast.unparse(node)[:40] if isinstance(node, ast.expr) else "?"
        return body.gap(f"it calls what nobody can know: `{shown}`", node)
    found = [call_object(body, one, args, named, node, module=None) for one in callee.objects]
    return either(*found) if found else unknown()


def call_object(
    body: Frame, one: Any, args: list[Value], named: Mapping[str, Value], node: Any,
    *, module: str | None,
) -> Value:  # fmt: skip
    """Follow a call of a live object.

    Args:
        body: the function that calls.
        one: what is called.
        args: positional arguments.
        named: keyword arguments.
        node: where.
        module: the module that it was taken from, where the code says so.
    """
    if isinstance(one, (partial, memoised)):
        return _wrapped(body, one, args, named, node)
    if isinstance(one, (FunctionType, MethodType)):
        return _python(body, one, args, named, node, module)
    if isinstance(one, type):
        return functions.construct(body, one, args, named, node)
    if _is_routine(one):
        return _routine(body, one, args, named, node, module)
    return transforms.call_instance(body, one, args, named, node)


def _routine(  # noqa: PLR0917
    body: Frame, one: Any, args: list[Value], named: Mapping[str, Value], node: Any,
    module: str | None,
) -> Value:  # fmt: skip
    """Follow a call of a function that is written in C."""
    bound = getattr(one, "__self__", None)
    if bound is not None and not isinstance(bound, (ModuleType, type)):
        if is_global_generator(bound):
            return functions.drawn(body, one.__name__, args, named, node)
        if type(bound).__name__ != "_VariableFunctionsClass":
            return methods.by_name(body, body.reads.load(bound), one.__name__, args, named, node)
    return functions.library_call(body, one, args, named, node, module)


def _wrapped(
    body: Frame, one: Any, args: list[Value], named: Mapping[str, Value], node: Any
) -> Value:
    """Follow a call of a `partial`."""
    if isinstance(one, memoised):
        return body.gap("it calls what keeps its results from one call to another", node)
    if type(one) is not partial:
        return body.gap(f"a call of a {type(one).__name__} cannot be followed", node)
    given = {name: body.reads.load(value) for name, value in one.keywords.items()}
    first = [body.reads.load(value) for value in one.args]
    return call_object(body, one.func, [*first, *args], {**given, **named}, node, module=None)


def _python(  # noqa: PLR0917
    body: Frame, one: Any, args: list[Value], named: Mapping[str, Value], node: Any,
    module: str | None,
) -> Value:  # fmt: skip
    """Follow a call of a function or of a bound method that is written in Python."""
    function = one.__func__ if isinstance(one, MethodType) else one
    given = args
    if isinstance(one, MethodType):
        if is_global_generator(one.__self__):
            return functions.drawn(body, function.__name__, args, named, node)
        is_type = isinstance(one.__self__, type)
        owner = live(one.__self__) if is_type else body.reads.load(one.__self__)
        given = [owner, *args]
    if not isinstance(function, FunctionType):
        return body.gap("it calls what cannot be followed", node)
    inner = _inside_grad_mode(function)
    if inner is not None:
        return call_object(body, inner, given, named, node, module=None)
    if is_followed(function):
        return body.follower.call(function, given, named, body, node)
    if isinstance(one, MethodType) and not isinstance(one.__self__, type):
        return methods.by_name(body, given[0], function.__name__, args, named, node)
    return functions.library_call(body, one, args, named, node, module)


def _inside_grad_mode(function: FunctionType) -> Any:
    """Return the function that `torch.no_grad` and its like decorate."""
    if not function.__code__.co_filename.endswith("torch/utils/_contextlib.py"):
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells["func"].cell_contents if "func" in cells else None


def is_followed(function: FunctionType) -> bool:
    """Return whether a function's own code is read: the user's, or an analysed library's."""
    if is_user_file(function.__code__.co_filename):
        return True
    module = function.__module__ or ""
    return module.startswith(library.ANALYSED) and not library.is_pure(module, function.__name__)


def _is_routine(one: Any) -> bool:
    return type(one).__name__ in _ROUTINES and not is_user_class(type(one))


def is_global_generator(bound: Any) -> bool:
    """Return whether an object is the generator behind `random` or `numpy.random`."""
    numpys = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return bound is getattr(random, "_inst", None) or (numpys is not None and bound is numpys)
