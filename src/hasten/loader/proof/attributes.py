"""What attributes of values in the code of items may be."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import kinds, library, tokenizers
from hasten.loader.proof.frame import Given
from hasten.loader.proof.objects import OPAQUE, attribute_of, has_attribute
from hasten.loader.proof.source import is_user_class, is_user_file
from hasten.loader.proof.values import Value, either, is_atomic, live, new
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    import ast

    from hasten.loader.proof.frame import Frame

_CODE = (FunctionType, MethodType, BuiltinFunctionType)
_FLAT = words(
    "shape T mT H real imag size width height mode dtype device ndim nbytes itemsize name "
    "stem suffix parent data grad iloc loc at iat values columns index year month day "
    "hour minute second microsecond str dt start stop step format is_sparse requires_grad "
    "itemsize layout is_cuda pattern days seconds dayofweek day_of_week dayofyear weekday "
    "weekofyear week"
)
_OF_FUNCTIONS = ("__name__", "__qualname__", "__doc__", "__module__")


def read(body: Frame, node: Any) -> Value:
    """Follow `owner.name`."""
    return attribute(body, body.value(node.value), node.attr, node)


def attribute(body: Frame, owner: Value, name: str, node: ast.AST) -> Value:
    """Return what `owner.name` may be, if it is not called at once."""
    if owner.objects is not None:
        return either(*(of_object(body, one, name, node) for one in few(owner.objects)))
    if owner.kind is not None and is_user_class(owner.kind):
        return _of_made(body, owner, name, node)
    if owner.stages is not None:
        return body.gap(f"it reads {name} of a chain of transforms", node)
    if name.startswith("__") and not (owner.flat and name == "__class__"):
        return body.gap(f"it reads {name}", node)
    if not owner.flat:  # its owner is unknown: any store to this name may hit it
        body.reads.attributes.add(name)
    body.ask(owner, name, node)
    body.ask(owner, "__getattr__", node)
    holds = body.reads.holds(owner) if not owner.flat else owner.shares or not owner.fresh
    return Value(None, fresh=not holds, shares=holds, flat=owner.flat and name in _FLAT)


def few(objects: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one object of each immutable kind, and all the others."""
    if len(objects) < 2:
        return objects
    return tuple({(type(one) if is_atomic(one) else id(one)): one for one in objects}.values())


def _of_made(body: Frame, owner: Value, name: str, node: ast.AST) -> Value:
    """Return an attribute of an object of the script's that was made for the batch."""
    assert owner.kind is not None  # noqa: S101
    found = attribute_of(owner.kind, name)
    if isinstance(found, property):
        return body.follower.call(body, found.fget, Given([owner], {}, node))
    if found is OPAQUE or name in ("__dict__", "__class__"):
        return body.gap(f"it reads {name}, which cannot be followed", node)
    if isinstance(attribute_of(owner.kind, "__getattr__"), FunctionType):
        return body.gap(f"code of the script's finds {name}", node)
    holds = body.reads.holds(owner)
    mine = Value(None, fresh=not holds, shares=holds)
    if found is None or isinstance(found, _CODE) or type(found).__name__.endswith("descriptor"):
        return mine
    body.reads.attributes.add(name)
    return either(mine, body.reads.load(found))


def of_module(body: Frame, module: Any, name: str, node: ast.AST) -> Value | None:
    """Return a variable of a module; None where it has none of that name."""
    if not isinstance(module, ModuleType):
        return of_object(body, module, name, node)
    if name in vars(module):
        return body.reads.variable(vars(module), name)
    if is_user_file(getattr(module, "__file__", None) or "<frozen"):
        return None
    try:
        return live(getattr(module, name))
    except AttributeError:
        return None


def of_object(body: Frame, one: Any, name: str, node: ast.AST) -> Value:
    """Return what an attribute of a live object is."""
    if isinstance(one, ModuleType):
        found = of_module(body, one, name, node)
        return found if found is not None else body.gap(f"{one.__name__}.{name} is not there", node)
    if isinstance(one, super):  # its dictionary is that of the object, whatever it finds itself
        return body.gap("super() cannot be followed", node)
    if isinstance(one, (FunctionType, MethodType)):
        return new(flat=True) if name in _OF_FUNCTIONS else body.gap(f"it reads {name}", node)
    if not isinstance(one, type) and not library.is_read(type(one)):
        return _of_library(body, one, name, node)
    return _of_users(body, one, name, node)


def _of_users(body: Frame, one: Any, name: str, node: ast.AST) -> Value:
    """Return an attribute of an object of the script's, or of a class."""
    if name == "__class__" and not isinstance(one, type):
        return live(type(one))
    if isinstance(one, type) and name in ("__name__", "__qualname__"):
        return new(flat=True)
    found = attribute_of(one, name)
    body.reads.attributes.add(name)
    if isinstance(one, type):  # what its class methods and its metaclass set
        kinds_of = {*one.__mro__, *type.mro(type(one))}
        body.reads.classes |= kinds_of - {object, type}
    if isinstance(found, property):
        if isinstance(one, type):
            return body.gap(f"it reads the property {name}", node)
        return body.follower.call(body, found.fget, Given([live(one)], {}, node))
    missing = found is None and not _is_stored(one, name)
    if missing or found is OPAQUE or name == "__dict__":
        return body.gap(f"it reads {name}, which cannot be followed", node)
    return body.reads.load(found)


def _is_stored(one: Any, name: str) -> bool:
    """Return whether an attribute is an object's own, or its class's; a class's own if it is one.

    What only the class of a class has is not read as it is stored.
    """
    if isinstance(one, type):
        return any(name in vars(kind) for kind in one.__mro__)
    return has_attribute(one, name)


def _of_library(body: Frame, one: Any, name: str, node: ast.AST) -> Value:
    """Return an attribute of a library's object: its data if it has any, else a property of it."""
    if is_atomic(one) or tokenizers.has_figure(one, name):
        return new(flat=True)
    if name == "__getitems__" and kinds.is_arrow_table(one):  # a `Subset` asks whether it has that
        return live(getattr(one, name))
    if name.startswith("__") and name != "__class__":
        return body.gap(f"it reads {name}", node)
    held = getattr(one, "__dict__", None)
    if isinstance(held, dict) and name in held:
        if hasattr(getattr(type(one), name, None), "__set__"):
            return body.gap(f"it reads {name} of {kinds.shown(one)}", node)
        body.reads.attributes.add(name)
        return body.reads.load(held[name])
    if not kinds.is_known(one):
        return body.gap(f"it reads {name} of {kinds.shown(one)}", node)
    if kinds.is_container(one) and isinstance(getattr(one, name, None), BuiltinFunctionType):
        return live(getattr(one, name))
    return Value(flat=live(one).flat and name in _FLAT)


def after(bound: Any, name: str) -> Any:
    """Return what `super().name` is."""
    owner, start = bound.__self__, bound.__thisclass__
    mro = (owner if isinstance(owner, type) else type(owner)).__mro__
    for kind in mro[mro.index(start) + 1 :]:
        if name in vars(kind):
            found = vars(kind)[name]
            if isinstance(found, (staticmethod, classmethod)):
                return attribute_of(kind, name)
            return MethodType(found, owner) if isinstance(found, FunctionType) else found
    return None
