"""Follow calls: of the script's own functions, and of what is known of libraries."""

from __future__ import annotations

import ast
import random
import sys
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import (
    arrow_tables,
    attributes,
    containers,
    functions,
    kinds,
    library,
    methods,
    objects,
    tokenizers,
    transforms,
)
from hasten.loader.proof.frame import Given
from hasten.loader.proof.source import (
    is_generated,
    is_user_class,
    is_user_file,
    is_user_function,
)
from hasten.loader.proof.values import MANY, Value, either, live, new, unknown

if TYPE_CHECKING:
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
    given = _given(body, node)
    for value in given.values:
        if any(hasattr(type(one), "__next__") for one in value.objects or ()):
            return body.gap("an iterator or a file that outlives the batch goes on", node)
    if isinstance(node.func, ast.Attribute):
        return call_method(body, body.value(node.func.value), node.func.attr, given)
    return call_value(body, body.value(node.func), given)


def _given(body: Frame, node: Any) -> Given:
    """Return the arguments of a call; a starred one is merged with all that follow."""
    found: list[Value] = []
    for position, one in enumerate(node.args):
        if isinstance(one, ast.Starred):
            whole = body.value(one.value)
            rest = [body.value(more) for more in node.args[position + 1 :]]
            found += [either(containers.iterated(body, whole, one), *rest), MANY]
            break
        found.append(body.value(one))
    named = {one.arg or "**": body.value(one.value) for one in node.keywords}
    return Given(found, named, node)


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (node.func.id == "super")
    )


def _super_call(body: Frame, node: Any) -> Value:
    """Follow `super().method(...)`."""
    told, name = [body.value(one) for one in node.func.value.args], node.func.attr
    owner = told[0].only if told else body.owner
    first = told[1] if len(told) > 1 else body.variables.get(body.first)
    if body.name("super").only is not super or not isinstance(owner, type) or first is None:
        return body.gap("super() cannot be followed", node)
    given = _given(body, node)
    if first.objects:
        found = []
        for one in first.objects:
            if not isinstance(one, owner) and not isinstance(one, type):
                return body.gap("super() cannot be followed", node)
            found.append(_of_parent(body, super(owner, one), name, given))
        return either(*found)
    if first.fresh and first.kind is not None and owner in first.kind.__mro__:
        rest = first.kind.__mro__[first.kind.__mro__.index(owner) + 1 :]
        return _of_rest(body, first, rest, name, given)
    return body.gap("super() cannot be followed", node)


def _of_parent(body: Frame, bound: Any, name: str, given: Given) -> Value:
    target = attributes.after(bound, name)
    if target is None or target is object.__init__:
        return live(None)
    if isinstance(target, property):
        return body.gap("super() cannot be followed", given.node)
    if isinstance(target, (MethodType, FunctionType)):
        return call_object(body, target, given)
    return methods.by_name(body, body.reads.load(bound.__self__), name, given)


def _of_rest(body: Frame, first: Value, rest: tuple[type, ...], name: str, given: Given) -> Value:
    """Follow a parent's method on an object that items make."""
    found = next((vars(kind)[name] for kind in rest if name in vars(kind)), None)
    if found is object.__init__ or found is None:
        return live(None)
    if isinstance(found, FunctionType) and is_user_function(found):
        return body.follower.call(body, found, given.after(first))
    return body.gap(f"super().{name}() cannot be followed", given.node)


def call_method(body: Frame, owner: Value, name: str, given: Given) -> Value:
    """Follow `owner.name(...)`."""
    if owner.objects is None:
        if owner.kind is not None and is_user_class(owner.kind):
            return _of_made(body, owner, name, given)
        return methods.by_name(body, owner, name, given)
    objects = attributes.few(owner.objects)
    if len(objects) < len(owner.objects) and methods.is_of_texts(owner.objects, name):
        return new(flat=True)  # one of several strings: it is unknown which
    found = [_call_of(body, one, name, given) for one in objects]
    return either(*found) if found else unknown()


def _of_made(body: Frame, owner: Value, name: str, given: Given) -> Value:
    """Follow a method of an object of the script's that was made for the batch."""
    assert owner.kind is not None  # noqa: S101
    raw = next((vars(kind)[name] for kind in owner.kind.__mro__ if name in vars(kind)), None)
    if name in body.reads.facts.stored:
        return body.gap(f"it calls {name}, which is set on an object", given.node)
    if isinstance(raw, (staticmethod, classmethod)):
        return call_object(body, objects.attribute_of(owner.kind, name), given)
    if isinstance(raw, FunctionType):
        return body.follower.call(body, raw, given.after(owner))
    if raw is None or isinstance(raw, property) or not _is_routine(raw):
        return call_value(body, attributes.attribute(body, owner, name, given.node), given)
    return methods.by_name(body, owner, name, given)


def _call_of(body: Frame, one: Any, name: str, given: Given) -> Value:
    if isinstance(one, ModuleType):
        found = attributes.of_module(body, one, name, given.node)
        if found is None or found.only is ...:
            return body.gap(f"{one.__name__}.{name} is not there", given.node)
        return call_object(body, found.only, given, module=one.__name__)
    if isinstance(one, type) or library.is_read(type(one)):
        target = objects.attribute_of(one, name)
        body.reads.attributes.add(name)
        if target is None or target is objects.OPAQUE or isinstance(target, property):
            found = attributes.attribute(body, live(one), name, given.node)
            return call_value(body, found, given)
        mine = not isinstance(target, (FunctionType, MethodType, BuiltinFunctionType, type))
        if not isinstance(one, type) and mine and _is_routine(target):
            return methods.by_name(body, body.reads.load(one), name, given)
        return call_object(body, target, given)
    held = getattr(one, "__dict__", None)
    if isinstance(held, dict) and name in held and not isinstance(one, (FunctionType, MethodType)):
        return call_value(body, attributes.of_object(body, one, name, given.node), given)
    if kinds.is_unwritten(one):
        follow = tokenizers.call if kinds.is_tokenizer(one) else arrow_tables.call
        return follow(body, one, name, given)
    return methods.by_name(body, body.reads.load(one), name, given)


def call_value(body: Frame, callee: Value, given: Given) -> Value:
    """Follow a call of whatever a value may be."""
    if callee.made is not None:
        return body.follower.inner(callee, given)
    if callee.objects is None:
        kind = callee.kind
        function = objects.attribute_of(kind, "__call__") if kind is not None else None
        if kind is not None and is_user_class(kind) and isinstance(function, FunctionType):
            return body.follower.call(body, function, given.after(callee))
        if kind is not None and callee.fresh and library.is_transform(kind):
            return transforms.call_made(body, callee, given)
        shown = ast.unparse(given.node)[:40] if isinstance(given.node, ast.expr) else "?"
        return body.gap(f"it calls what nobody can know: `{shown}`", given.node)
    found = [call_object(body, one, given) for one in callee.objects]
    return either(*found) if found else unknown()


def call_object(body: Frame, one: Any, given: Given, *, module: str | None = None) -> Value:
    """Follow a call of a live object.

    Args:
        body: the function that calls.
        one: what is called.
        given: with what, and where.
        module: the module that it was taken from, where the code says so.
    """
    if isinstance(one, partial):
        return _wrapped(body, one, given)
    if isinstance(one, (FunctionType, MethodType)):
        return _python(body, one, given, module)
    if isinstance(one, type):
        return _construct(body, one, given)
    if _is_routine(one):
        return _routine(body, one, given, module)
    return transforms.call_instance(body, one, given)


def _routine(body: Frame, one: Any, given: Given, module: str | None) -> Value:
    """Follow a call of a function that is written in C."""
    bound = getattr(one, "__self__", None)
    if bound is not None and not isinstance(bound, (ModuleType, type)):
        if is_global_generator(bound):
            return functions.drawn(body, one.__name__, given)
        if type(bound).__name__ != "_VariableFunctionsClass":
            return methods.by_name(body, body.reads.load(bound), one.__name__, given)
    return functions.library_call(body, one, given, module)


def _wrapped(body: Frame, one: Any, given: Given) -> Value:
    """Follow a call of a `partial`."""
    if type(one) is not partial:
        return body.gap(f"a call of a {type(one).__name__} cannot be followed", given.node)
    named = {name: body.reads.load(value) for name, value in one.keywords.items()}
    first = [body.reads.load(value) for value in one.args]
    whole = Given([*first, *given.args], {**named, **given.named}, given.node)
    return call_object(body, one.func, whole)


def _python(body: Frame, one: Any, given: Given, module: str | None) -> Value:
    """Follow a call of a function or of a bound method that is written in Python."""
    function, told = one, given
    if isinstance(one, MethodType):
        function, bound = one.__func__, one.__self__
        if is_global_generator(bound):
            return functions.drawn(body, function.__name__, given)
        given = given.after(live(bound) if isinstance(bound, type) else body.reads.load(bound))
    if not isinstance(function, FunctionType):
        return body.gap("it calls what cannot be followed", given.node)
    inner = _inside_grad_mode(function)
    if inner is not None:
        return call_object(body, inner, given)
    if is_followed(function):
        return body.follower.call(body, function, given)
    if isinstance(one, MethodType) and not isinstance(one.__self__, type):
        return methods.by_name(body, given.args[0], function.__name__, told)
    return functions.library_call(body, one, told, module)


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


# ---- the making of objects


def _construct(body: Frame, kind: type, given: Given) -> Value:
    """Follow the making of an object."""
    if not is_user_class(kind):
        return _of_library(body, kind, given)
    if isinstance(type(kind).__call__, FunctionType) or not _is_made_plainly(kind):
        return body.gap(f"the making of a {kind.__name__} cannot be followed", given.node)
    body.reads.facts.made.add(kind)
    made = new(kind=kind, shares=body.reads.keeps(given.values))
    init = objects.attribute_of(kind, "__init__")
    if isinstance(init, FunctionType) and not is_generated(init):
        if not is_user_file(init.__code__.co_filename):
            return body.gap(f"{kind.__name__}.__init__ cannot be followed", given.node)
        body.follower.call(body, init, given.after(made))
    elif "__dataclass_fields__" in vars(kind):
        _data_class(body, kind, made, given.node)
    return made


def _of_library(body: Frame, kind: type, given: Given) -> Value:
    """Follow the making of an object of a library's class."""
    if kind is slice:
        body.reads.facts.made.add(kind)
    if issubclass(kind, BaseException):
        return new(shares=body.reads.keeps(given.values))
    if library.is_transform(kind):
        return transforms.make(body, kind, given)
    return functions.library_call(body, kind, given, None, made=kind)


def _is_made_plainly(kind: type) -> bool:
    for parent in kind.__mro__:
        for name in ("__new__", "__del__"):
            own = vars(parent).get(name)
            own = getattr(own, "__func__", own)
            if isinstance(own, FunctionType) and not _is_of_namedtuple(own):
                return not is_user_file(own.__code__.co_filename) and parent is not kind
    return True


def _is_of_namedtuple(function: FunctionType) -> bool:
    name = function.__code__.co_filename
    return (name == "<string>" and is_generated(function)) or name.startswith("<namedtuple")


def _data_class(body: Frame, kind: Any, made: Value, node: Any) -> None:
    for one in kind.__dataclass_fields__.values():
        factory = one.default_factory
        users = isinstance(factory, type) and is_user_class(factory)
        if isinstance(factory, FunctionType) or users:
            found = call_object(body, factory, Given([], {}, node))
            made.shares = made.shares or body.reads.holds(found)
    after = objects.attribute_of(kind, "__post_init__")
    if isinstance(after, FunctionType):
        body.follower.call(body, after, Given([made], {}, node))
