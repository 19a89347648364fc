"""The code of an item, followed for a whole batch.

The syntax tree of `__getitem__` is walked with a batch's indices instead of one index. A
value is either shared by all items, or an `ItemStack` with one for each. Whatever is not known to
give the same bits for a stack as for one item is refused, and so is anything with an effect:
none of the script's code is run.
"""

from __future__ import annotations

import ast
import operator
from functools import cache
from inspect import getattr_static
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.source import function_of, is_user_class, is_user_function
from hasten.loader.sources.item_stack import (
    ItemKind,
    ItemStack,
    NotBatched,
    computed,
    indexed,
    is_number,
    is_plain,
)
from hasten.loader.sources.stack_functions import BUILTINS, known_functions, method_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DEEPEST = 6
_MOST_MEMBERS = 100
_PLAIN = frozenset({bool, int, float, str, type(None)})
_DECIDING = _PLAIN | {FunctionType, list, tuple, dict}  # stacks inside are of one length
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def made(dataset: Any, indices: Any) -> Any:
    """Return what `dataset[index]` returns for each index, in stacks.

    Args:
        dataset: of a class of the script's own.
        indices: an array of int64.

    Raises:
        NotBatched: its code does something that is not followed.
    """
    getitem = getattr_static(type(dataset), "__getitem__", None)
    return _run(getitem, [dataset, ItemStack(ItemKind.INT, indices)], {}, 0)


def _run(function: Any, arguments: Sequence[Any], named: dict[str, Any], depth: int) -> Any:
    if type(function) is not FunctionType or not is_user_function(function):
        raise NotBatched("it calls what is not the script's own function")
    if depth > _DEEPEST:
        raise NotBatched("its calls are nested deeply")
    node = _node_of(function.__code__)
    body = _Body(function, depth, _bound(function, node.args, arguments, named))
    if isinstance(node, ast.Lambda):
        return body.value(node.body)
    found = body.block(node.body)
    return None if found is _GOES_ON else found


@cache
def _node_of(code: CodeType) -> ast.FunctionDef | ast.Lambda:
    node = function_of(code)
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        raise NotBatched("its source is not there")
    return node


def _bound(
    function: FunctionType, asked: ast.arguments, given: Sequence[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """Return the variables of a function when it starts."""
    if asked.vararg or asked.kwarg or asked.kwonlyargs or asked.posonlyargs:
        raise NotBatched("a function takes arguments of any number")
    names = [one.arg for one in asked.args]
    defaults = function.__defaults__ or ()
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found |= dict(zip(names, given, strict=False)) | named
    if len(given) > len(names) or set(found) != set(names):
        raise NotBatched("a function is called with other arguments")
    return found


_GOES_ON = object()


class _Body:
    """One call of a function, for all items."""

    def __init__(self, function: FunctionType, depth: int, variables: dict[str, Any]) -> None:
        self._function = function
        self._depth = depth
        self._variables = variables

    # ---- statements

    def block(self, statements: Sequence[ast.stmt]) -> Any:
        """Return what the statements return; `_GOES_ON` if they do not return."""
        for statement in statements:
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self.value(statement.value)
            if isinstance(statement, ast.If):
                found = self.block(
                    statement.body if self.decides(statement.test) else statement.orelse
                )
                if found is not _GOES_ON:
                    return found
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], self.value(statement.value))
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._assign(statement.target, self.value(statement.value))
            elif not isinstance(statement, ast.Pass) and not _is_text(statement):
                raise NotBatched(f"`{ast.unparse(statement).splitlines()[0]:.60}` is not followed")
        return _GOES_ON

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._variables[target.id] = value
        elif isinstance(target, ast.Tuple) and type(value) in (tuple, list):
            if len(target.elts) != len(value):
                raise NotBatched("it unpacks another number of values")
            for one, part in zip(target.elts, value, strict=True):
                self._assign(one, part)
        else:
            raise NotBatched(f"it sets `{ast.unparse(target):.40}`")

    def decides(self, test: ast.expr) -> bool:
        return self.holds(self.value(test), test)

    def holds(self, found: Any, test: ast.expr) -> bool:
        """Return whether the value of a test counts as true, for all items."""
        if type(found) not in _DECIDING:
            if _is_there(found):
                return True
            raise NotBatched(f"`{ast.unparse(test):.60}` may differ from item to item")
        return bool(found)

    # ---- expressions

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        evaluate = _EXPRESSIONS.get(type(node))
        if evaluate is None:
            raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")
        return evaluate(self, node)

    def name(self, node: ast.Name) -> Any:
        if node.id in self._variables:
            return self._variables[node.id]
        function = self._function
        code, free = function.__code__, function.__code__.co_freevars
        if node.id in code.co_varnames or node.id in code.co_cellvars:
            raise NotBatched(f"`{node.id}` has no value yet")
        if node.id in free and function.__closure__:
            return function.__closure__[free.index(node.id)].cell_contents
        if node.id in function.__globals__:
            return function.__globals__[node.id]
        if node.id in BUILTINS:
            return BUILTINS[node.id]
        raise NotBatched(f"`{node.id}` is not followed")

    def call(self, node: ast.Call) -> Any:
        if any(one.arg is None for one in node.keywords):
            raise NotBatched("it passes arguments of any number")
        arguments = [self.value(one) for one in node.args]
        named = {str(one.arg): self.value(one.value) for one in node.keywords}
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if isinstance(owner, ItemStack):
                return method_of(owner, node.func.attr, arguments, named)
            method = getattr_static(type(owner), node.func.attr, None)
            is_method = type(method) is FunctionType and node.func.attr not in _own(owner)
            if is_method and _is_readable(owner):
                return _run(method, [owner, *arguments], named, self._depth + 1)
            called = _member(owner, node.func.attr)
        else:
            called = self.value(node.func)
        known = known_functions().get(id(called))
        if known is not None:
            return known(*arguments, **named)
        if type(called) is FunctionType:
            return _run(called, arguments, named, self._depth + 1)
        if is_user_class(type(called)):
            function = getattr_static(type(called), "__call__", None)
            return _run(function, [called, *arguments], named, self._depth + 1)
        raise NotBatched(f"`{ast.unparse(node.func):.60}` is not known")


def _slice(body: _Body, node: ast.Slice) -> Any:
    ends = (node.lower, node.upper, node.step)
    return slice(*(None if end is None else body.value(end) for end in ends))


def _dict(body: _Body, node: ast.Dict) -> Any:
    keys = [None if key is None else body.value(key) for key in node.keys]
    if not all(type(key) is str for key in keys):
        raise NotBatched("its items are dicts with other keys than words")
    return dict(zip(keys, map(body.value, node.values), strict=True))


def _unary(body: _Body, node: ast.UnaryOp) -> Any:
    if isinstance(node.op, ast.Not):
        return not body.decides(node.operand)
    found = body.value(node.operand)
    if isinstance(node.op, ast.USub) and (isinstance(found, ItemStack) or is_number(found)):
        return found._replace(value=-found.value) if isinstance(found, ItemStack) else -found
    raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")


def _either(body: _Body, node: ast.BoolOp) -> Any:
    *others, last = node.values
    for one in others:
        found = body.value(one)
        if body.holds(found, one) is isinstance(node.op, ast.Or):
            return found
    return body.value(last)


def _compare(body: _Body, node: ast.Compare) -> Any:
    left, right = body.value(node.left), body.value(node.comparators[0])
    if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _contains(right, left, node) is isinstance(node.ops[0], ast.In)
    named = any(one is None or type(one) is bool for one in (left, right))
    by_identity = isinstance(node.ops[0], ast.Is | ast.IsNot)
    plain = {type(left), type(right)} <= _PLAIN
    compared = _COMPARED.get(type(node.ops[0]))
    if len(node.ops) > 1 or compared is None or not (named if by_identity else plain):
        raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")
    return compared(left, right)


def _contains(owner: Any, member: Any, node: ast.Compare) -> bool:
    """Return whether a word or number is in a short container of such; none differs by item."""
    is_plain_owner = type(owner) in (dict, list, tuple, set, frozenset, str)
    if (
        type(member) not in _PLAIN
        or not is_plain_owner
        or len(owner) > _MOST_MEMBERS
        or not set(map(type, owner)) <= _PLAIN
    ):
        raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")
    return member in owner


_EXPRESSIONS: dict[type[ast.expr], Callable[[_Body, Any], Any]] = {
    ast.Constant: lambda body, node: node.value,
    ast.Name: _Body.name,
    ast.Attribute: lambda body, node: _member(body.value(node.value), node.attr),
    ast.Subscript: lambda body, node: indexed(body.value(node.value), body.value(node.slice)),
    ast.Slice: _slice,
    ast.Tuple: lambda body, node: tuple(map(body.value, node.elts)),
    ast.List: lambda body, node: [*map(body.value, node.elts)],
    ast.Dict: _dict,
    ast.BinOp: lambda body, node: computed(
        type(node.op), body.value(node.left), body.value(node.right)
    ),
    ast.UnaryOp: _unary,
    ast.BoolOp: _either,
    ast.Compare: _compare,
    ast.IfExp: lambda body, node: body.value(node.body if body.decides(node.test) else node.orelse),
    ast.Call: _Body.call,
}


def _is_there(value: Any) -> bool:
    """Return whether a value is true for being there: an object whose class says nothing else."""
    kind = type(value)
    silent = all(getattr_static(kind, name, None) is None for name in ("__bool__", "__len__"))
    return silent and is_user_class(kind)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _own(value: Any) -> dict[str, Any]:
    """Return an object's own attributes."""
    found = getattr(value, "__dict__", None)
    return found if type(found) is dict else {}


def _member(owner: Any, name: str) -> Any:
    """Return an attribute without running any code of the script's."""
    if isinstance(owner, ModuleType):
        if owner.__name__ in ("torch", "numpy") and name in vars(owner):
            return vars(owner)[name]
        raise NotBatched(f"`{owner.__name__}.{name}` is not known")
    if isinstance(owner, ItemStack) or not _is_readable(owner):
        raise NotBatched(f"`.{name}` is not followed")
    of_class = getattr_static(type(owner), name, None)
    if name in _own(owner) and not hasattr(type(of_class), "__set__"):
        return _own(owner)[name]
    if type(of_class) in (int, float, bool, str) or is_plain(of_class):
        return of_class
    raise NotBatched(f"`.{name}` is not followed")


def _is_readable(owner: Any) -> bool:
    """Return whether attributes of an object are read by Python's own code."""
    kind: Any = type(owner)
    return not isinstance(owner, type) and kind.__getattribute__ is object.__getattribute__
