"""Operators, comparisons and tests in the code of items."""

from __future__ import annotations

import ast
import operator
from collections import deque
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.frame import Given
from hasten.loader.proof.kinds import gives_batches
from hasten.loader.proof.objects import OPAQUE, attribute_of
from hasten.loader.proof.source import is_generated, is_user_class
from hasten.loader.proof.values import (
    Value,
    derived,
    either,
    elements,
    is_atomic,
    live,
    new,
    unknown,
)
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from hasten.loader.proof.frame import Frame
    from hasten.loader.proof.reads import Reads

_FEW = 64
_COMPARISONS: dict[type, Any] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, held: one in held, ast.NotIn: lambda one, held: one not in held,
}  # fmt: skip
NOT_BY_OPERATORS = "__getitem__ __len__ __iter__ __str__ __repr__"
_NOT_BY_SIGNS = f"{NOT_BY_OPERATORS} __eq__"
_NOT_BY_TESTS = "__getitem__ __iter__ __str__ __repr__ __eq__ __hash__"
"""Special methods that operators of one or two values, and tests of one, never call."""
_NEVER_IMPLIED = words(
    "__init__ __new__ __call__ __del__ __setattr__ __delattr__ __setitem__ __delitem__ "
    "__init_subclass__ __class_getitem__ __set_name__ __enter__ __exit__ __reduce__ "
    "__reduce_ex__ __getstate__ __setstate__ __copy__ __deepcopy__ __getitems__ "
    "__dataclass_fields__ __post_init__ __subclasshook__ __getattr__ __getattribute__ "
    "__sizeof__ __dir__ __class__ __doc__ __module__ __dict__ __weakref__ __slots__ "
    "__getnewargs__"
)


def special_methods(reads: Reads, kind: type) -> list[str]:
    """Return the special methods of the script's own that Python calls implicitly.

    What the methods that Python has generated for a dataclass read is noted.
    """
    reads.attributes |= set(getattr(kind, "__dataclass_fields__", ()))
    found = []
    for parent in kind.__mro__:
        if not is_user_class(parent):
            continue
        found += [
            name for name, one in vars(parent).items()
            if name.startswith("__") and name.endswith("__") and name not in _NEVER_IMPLIED
            and isinstance(one, (FunctionType, property, classmethod, staticmethod))
            and not ("__dataclass_fields__" in vars(parent) and is_generated(one))
        ]  # fmt: skip
    return sorted(set(found))


def implied(
    body: Frame, value: Value, node: ast.AST | None, *, but: str = "", deep: bool = True
) -> None:
    """Follow what Python may call on a value implicitly: `__str__`, `__eq__`, `__len__`.

    Args:
        body: the function.
        value: the value.
        node: where.
        but: special methods that are not called here.
        deep: whether the same may be called on its members.
    """
    if value.flat:
        return
    body.ask(value, "*", node)
    if deep and any(elements(one) is not None for one in value.objects or ()):
        body.ask(unknown(), "*", node)
    if any(map(gives_batches, value.objects or ())):
        body.gap("it goes through a loader of its own", node)
    kinds = set(map(type, value.objects or ())) | ({value.kind} if value.kind else set())
    for kind in filter(is_user_class, kinds):
        for name in set(special_methods(body.reads, kind)) - set(but.split()):
            _special(body, value, kind, name, node)


def _special(body: Frame, value: Value, kind: type, name: str, node: ast.AST | None) -> None:
    owner = value
    if value.objects is not None:
        owner = body.reads.load(*(one for one in value.objects if type(one) is kind))
    function = attribute_of(kind, name)
    if isinstance(function, FunctionType):
        many = [unknown()] * (function.__code__.co_argcount - 1)
        body.follower.call(body, function, Given([owner, *many], {}, node))
    elif function is OPAQUE or function is not None:
        body.gap(f"{kind.__name__}.{name} cannot be followed", node)


def binary(body: Frame, node: Any) -> Value:
    """Follow `left + right` and its like."""
    left, right = body.value(node.left), body.value(node.right)
    for operand in (left, right):
        implied(body, operand, node, but=NOT_BY_OPERATORS, deep=False)
    if left.flat and right.flat:
        return new(flat=True)
    users = any(_is_users(one) for one in (left, right))
    if users or any(_may_be_list(one) for one in (left, right)):
        return new(shares=any(map(body.reads.holds, (left, right))))
    return new(flat=left.flat or right.flat)


def _is_users(value: Value) -> bool:
    kinds = {*map(type, value.objects or ()), value.kind or int}
    return any(map(is_user_class, kinds))


_JOINED = (list, tuple, dict, set, frozenset, deque)
"""Types whose sums and unions hold what both sides hold."""


def _may_be_list(value: Value) -> bool:
    if value.flat:
        return False
    if value.objects is not None:
        return any(isinstance(one, _JOINED) for one in value.objects)
    return True


def truth(value: Value) -> bool | None:
    """Return whether a value is truthy; None if that is unknown."""
    if not value.objects or len(value.objects) > _FEW:
        return None
    found = {_truth_of(one) for one in value.objects}
    return found.pop() if len(found) == 1 else None


def _truth_of(one: Any) -> bool | None:
    if is_atomic(one):
        return bool(one)
    kind = type(one)
    return None if hasattr(kind, "__bool__") or hasattr(kind, "__len__") else True


def tested(body: Frame, value: Value, node: ast.AST) -> bool | None:
    """Follow the test of a value; return its outcome, None if it is unknown."""
    known = truth(value)
    if known is None:
        implied(body, value, node, but=_NOT_BY_TESTS, deep=False)
    return known


def _known_comparison(sign: ast.cmpop, operands: list[Value]) -> bool | None:
    """Return the result of a comparison of two live values; None if it is unknown."""
    left, right = operands
    compare = _COMPARISONS.get(type(sign))
    if compare is None or not left.objects or right.only is ... or len(left.objects) > _FEW:
        return None
    one = right.only
    if isinstance(sign, (ast.Is, ast.IsNot)):
        if not (one is None or isinstance(one, bool)):
            return None
    elif not all(map(is_atomic, (one, *left.objects))):
        return None
    try:
        found = {bool(compare(each, one)) for each in left.objects}
    except TypeError:
        return None
    return found.pop() if len(found) == 1 else None


def compare(body: Frame, node: Any) -> Value:
    """Follow a comparison."""
    operands = [body.value(one) for one in (node.left, *node.comparators)]
    if len(node.ops) == 1:
        known = _known_comparison(node.ops[0], operands)
        if known is not None:
            return live(known)
    if all(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops):
        return new(flat=True)
    for operand in operands:
        implied(body, operand, node, but="__str__ __repr__ __add__ __mul__ __sub__ __format__")
    return new(flat=True)


def boolean(body: Frame, node: Any) -> Value:
    """Follow `one and another`."""
    stops = isinstance(node.op, ast.Or)
    found: list[Value] = []
    for one in node.values:
        value = body.value(one)
        last = one is node.values[-1]
        known = truth(value) if last else tested(body, value, node)
        if known is None or known is stops or last:
            found.append(value)
        if known is stops:
            break
    return either(*found)


def unary(body: Frame, node: Any) -> Value:
    """Follow `not value`, `-value`, `~value` and `+value`, which may be the value itself."""
    operand = body.value(node.operand)
    if isinstance(node.op, ast.Not):
        known = tested(body, operand, node)
        return new(flat=True) if known is None else live(not known)
    implied(body, operand, node, but=_NOT_BY_SIGNS, deep=False)
    one = operand.only
    if isinstance(node.op, ast.USub) and type(one) in (int, float):
        return live(-one)
    if isinstance(node.op, ast.UAdd):
        return derived(operand, flat=operand.flat)
    return new(flat=True) if operand.flat else derived(operand)
