"""The code of an item, followed for a whole batch.

The syntax tree of `__getitem__` is walked with the indices of a batch in place of one index. A
value is one that all items share, as it is, or an `ItemStack` of one for each. The operations on
stacks are those whose bits do not depend on how many items there are: reading rows, changes of
type and shape, and sums, differences, products and quotients of elements (IEEE 754-2019, section
5.4.1). All else is refused, and with it whatever has an effect: nothing of the script's is called.
"""

from __future__ import annotations

import ast
import operator
import sys
from enum import Enum, auto
from functools import cache
from inspect import getattr_static
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader.proof.source import function_of, is_user_class, is_user_function
from hasten.loader.sources.gather import why_not_tensor
from hasten.loader.sources.subsets import take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DEEPEST = 6
_SMALL = 1 << 31  # products of two still fit
_LARGEST, _EXACT = (1 << 63) - 1, 1 << 53
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_WHOLE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class NotBatched(Exception):
    """Why an item cannot be made for a whole batch, in half a sentence."""


class ItemKind(Enum):
    """What one item of a stack is: a number of Python's, an array of NumPy's, or a tensor."""

    INT = auto()
    FLOAT = auto()
    ARRAY = auto()
    TENSOR = auto()


class ItemStack(NamedTuple):
    """One value for each item of a batch.

    Attributes:
        kind: of each.
        value: an array, or a tensor where items are tensors; its first dimension counts the items.
    """

    kind: ItemKind
    value: Any

    @property
    def item_ndim(self) -> int:
        """The dimensions of one item; an array without any is a number of NumPy's."""
        return int(self.value.ndim) - 1


def made(dataset: Any, indices: Any) -> Any:
    """Return what `dataset[index]` returns for each index, in stacks.

    Args:
        dataset: of a class of the script's own.
        indices: an array of int64.

    Raises:
        NotBatched: its code does something else.
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
    """Return the variables of a function as it begins."""
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
        """Return what they return; `_GOES_ON` where they do not."""
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
        found = self.value(test)
        if type(found) not in (bool, int, float, str, type(None), FunctionType):
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
        if node.id in _BUILTINS:
            return _BUILTINS[node.id]
        raise NotBatched(f"`{node.id}` is not followed")

    def call(self, node: ast.Call) -> Any:
        if any(one.arg is None for one in node.keywords):
            raise NotBatched("it passes arguments of any number")
        arguments = [self.value(one) for one in node.args]
        named = {str(one.arg): self.value(one.value) for one in node.keywords}
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if isinstance(owner, ItemStack):
                return _method(owner, node.func.attr, arguments, named)
            method = getattr_static(type(owner), node.func.attr, None)
            is_method = type(method) is FunctionType and node.func.attr not in _own(owner)
            if is_method and _is_readable(owner):
                return _run(method, [owner, *arguments], named, self._depth + 1)
            called = _member(owner, node.func.attr)
        else:
            called = self.value(node.func)
        known = _known().get(id(called))
        if known is not None:
            return known(*arguments, **named)
        if type(called) is FunctionType:
            return _run(called, arguments, named, self._depth + 1)
        if is_user_class(type(called)):
            function = getattr_static(type(called), "__call__", None)
            return _run(function, [called, *arguments], named, self._depth + 1)
        raise NotBatched(f"`{ast.unparse(node.func):.60}` is not known")


def _constant(body: _Body, node: ast.Constant) -> Any:
    return node.value


def _attribute(body: _Body, node: ast.Attribute) -> Any:
    return _member(body.value(node.value), node.attr)


def _subscript(body: _Body, node: ast.Subscript) -> Any:
    return _indexed(body.value(node.value), body.value(node.slice))


def _slice(body: _Body, node: ast.Slice) -> Any:
    ends = (node.lower, node.upper, node.step)
    return slice(*(None if end is None else body.value(end) for end in ends))


def _tuple(body: _Body, node: ast.Tuple) -> Any:
    return tuple(map(body.value, node.elts))


def _list(body: _Body, node: ast.List) -> Any:
    return [body.value(one) for one in node.elts]


def _dict(body: _Body, node: ast.Dict) -> Any:
    keys = [None if key is None else body.value(key) for key in node.keys]
    if not all(type(key) is str for key in keys):
        raise NotBatched("its items are dicts with other keys than words")
    return dict(zip(keys, map(body.value, node.values), strict=True))


def _binary(body: _Body, node: ast.BinOp) -> Any:
    return _computed(type(node.op), body.value(node.left), body.value(node.right))


def _unary(body: _Body, node: ast.UnaryOp) -> Any:
    if isinstance(node.op, ast.Not):
        return not body.decides(node.operand)
    found = body.value(node.operand)
    if isinstance(node.op, ast.USub) and (isinstance(found, ItemStack) or _is_number(found)):
        return found._replace(value=-found.value) if isinstance(found, ItemStack) else -found
    raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")


def _compare(body: _Body, node: ast.Compare) -> Any:
    left, right = body.value(node.left), body.value(node.comparators[0])
    named = any(one is None or type(one) is bool for one in (left, right))
    by_identity = isinstance(node.ops[0], ast.Is | ast.IsNot)
    plain = all(type(one) in (bool, int, float, str, type(None)) for one in (left, right))
    compared = _COMPARED.get(type(node.ops[0]))
    if len(node.ops) > 1 or compared is None or not (named if by_identity else plain):
        raise NotBatched(f"`{ast.unparse(node):.60}` is not followed")
    return compared(left, right)


def _choice(body: _Body, node: ast.IfExp) -> Any:
    return body.value(node.body if body.decides(node.test) else node.orelse)


_EXPRESSIONS: dict[type[ast.expr], Callable[[_Body, Any], Any]] = {
    ast.Constant: _constant, ast.Name: _Body.name, ast.Attribute: _attribute,
    ast.Subscript: _subscript, ast.Slice: _slice, ast.Tuple: _tuple,
    ast.List: _list, ast.Dict: _dict, ast.BinOp: _binary, ast.UnaryOp: _unary,
    ast.Compare: _compare, ast.IfExp: _choice, ast.Call: _Body.call,
}  # fmt: skip


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _own(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has itself."""
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
    if type(of_class) in (int, float, bool, str) or _is_plain(of_class):
        return of_class
    raise NotBatched(f"`.{name}` is not followed")


def _is_readable(owner: Any) -> bool:
    """Return whether attributes of an object are read by Python's own code."""
    kind: Any = type(owner)
    return not isinstance(owner, type) and kind.__getattribute__ is object.__getattribute__


# ---- arrays and tensors


def _numpy() -> Any:
    found = sys.modules.get("numpy")
    if found is None:
        raise NotBatched("NumPy is not there")
    return found


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(value) in (numpy.ndarray, numpy.memmap)
        and value.dtype.kind in "biuf"
        and value.dtype.isnative
    )


def _is_tensor(value: Any) -> bool:
    return not why_not_tensor(value) and not value.is_complex()


def _is_plain(value: Any) -> bool:
    return _is_array(value) or _is_tensor(value)


def _indexed(owner: Any, key: Any) -> Any:
    parts = key if type(key) is tuple else (key,)
    if isinstance(owner, ItemStack):
        if owner.kind in (ItemKind.INT, ItemKind.FLOAT) or not all(map(_is_place, parts)):
            raise NotBatched("it is indexed by what may differ from item to item")
        return owner._replace(value=owner.value[(slice(None), *parts)])
    first, rest = (parts[0], parts[1:]) if parts else (None, ())
    if isinstance(first, ItemStack) and first.kind is ItemKind.INT:
        found = _rows(owner, first.value)
        return _indexed(found, rest) if rest else found
    if isinstance(first, slice) and any(isinstance(end, ItemStack) for end in _ends(first)):
        found = _windows(owner, first)
        return _indexed(found, (slice(None), *rest)) if rest else found
    by_place = _is_plain(owner) or type(owner) in (list, tuple, range, str)
    by_name = type(owner) is dict and type(key) in (str, int)
    if not by_name and not (by_place and all(map(_is_place, parts))):
        raise NotBatched("it is indexed in a way that is not followed")
    return owner[key]


def _ends(window: slice) -> tuple[Any, ...]:
    return window.start, window.stop, window.step


def _is_place(key: Any) -> bool:
    if type(key) is slice:
        return all(end is None or type(end) is int for end in _ends(key))
    return key is None or key is ... or type(key) is int


def _rows(owner: Any, indices: Any) -> ItemStack:
    """Return `owner[index]` for each index."""
    import torch

    if _is_array(owner) and owner.ndim:
        return ItemStack(ItemKind.ARRAY, _numpy().asarray(owner[indices]))
    if _is_tensor(owner) and owner.ndim:
        return ItemStack(ItemKind.TENSOR, take(owner, torch.from_numpy(indices)))
    if type(owner) not in (list, tuple, range):
        raise NotBatched(f"rows of a {type(owner).__name__} are not read together")
    return _stacked([owner[index] for index in indices.tolist()])


def _stacked(items: list[Any]) -> ItemStack:
    """Return values of Python's, arrays or tensors as one stack."""
    import torch

    kinds = set(map(type, items))
    if kinds == {int}:
        return ItemStack(ItemKind.INT, _numpy().array(items, "int64"))
    if kinds == {float}:
        return ItemStack(ItemKind.FLOAT, _numpy().array(items, "float64"))
    alike = len(kinds) == 1 and all(map(_is_plain, items))
    if not alike or len({(item.dtype, item.shape) for item in items}) != 1:
        raise NotBatched("the members of a list are of several kinds")
    if kinds == {torch.Tensor}:
        return ItemStack(ItemKind.TENSOR, torch.stack(items))
    return ItemStack(ItemKind.ARRAY, _numpy().stack(items))


def _windows(owner: Any, window: slice) -> ItemStack:
    """Return `owner[start:stop]` for each item; all are of one length."""
    import torch

    numpy = _numpy()
    if window.step is not None or not _is_plain(owner) or not owner.ndim:
        raise NotBatched("a slice differs from item to item")
    start, stop = (_bound_of(end) for end in (window.start, window.stop))
    lengths = numpy.unique(stop - start)
    if len(lengths) != 1 or lengths[0] < 1:
        raise NotBatched("slices are of several lengths")
    if numpy.min(start) < 0 or numpy.max(stop) > len(owner):
        raise NotBatched("a slice reaches beyond the end")
    places = start[:, None] + numpy.arange(int(lengths[0]))
    if _is_array(owner):
        return ItemStack(ItemKind.ARRAY, numpy.asarray(owner[places]))
    return ItemStack(ItemKind.TENSOR, owner[torch.from_numpy(places)])


def _bound_of(end: Any) -> Any:
    if isinstance(end, ItemStack) and end.kind is ItemKind.INT:
        return end.value
    raise NotBatched("a slice begins or ends at one place for all")


def _computed(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return a sum, a difference, a product or a quotient; of whole numbers a remainder, too."""
    compute = _ARITHMETIC.get(kind) or _WHOLE.get(kind)
    if compute is None:
        raise NotBatched("an operator is not followed")
    both = (left, right)
    stacks = [one for one in both if isinstance(one, ItemStack)]
    if not stacks and all(_is_number(one) or _is_plain(one) or _is_scalar(one) for one in both):
        return compute(left, right)
    kinds = {one.kind for one in stacks}
    if kinds and kinds <= {ItemKind.INT, ItemKind.FLOAT}:
        return _of_numbers(kind, compute, left, right)
    if len(kinds) != 1 or kind not in _ARITHMETIC:
        raise NotBatched("an operator is not followed")
    fits = _fits if stacks[0].item_ndim else _fits_scalar
    if not all(fits(one, stacks[0]) for one in both):
        raise NotBatched("values of several kinds are computed with")
    return ItemStack(
        stacks[0].kind, compute(*(one.value if isinstance(one, ItemStack) else one for one in both))
    )


def _fits(one: Any, stack: ItemStack) -> bool:
    """Return whether a value meets each item as it meets the whole stack."""
    if isinstance(one, ItemStack):
        return one.item_ndim == stack.item_ndim
    if stack.kind is ItemKind.TENSOR:
        return _is_number(one) or (_is_tensor(one) and one.ndim <= stack.item_ndim)
    return _is_number(one) or _is_scalar(one) or (_is_array(one) and one.ndim <= stack.item_ndim)


def _fits_scalar(one: Any, stack: ItemStack) -> bool:
    """Return whether numbers of NumPy's meet a value as an array of them does.

    Alone they are promoted by other rules, but for those of one type and for doubles.
    """
    dtype = stack.value.dtype
    if stack.kind is ItemKind.TENSOR or dtype.name not in ("float32", "float64", "int64"):
        return False
    if isinstance(one, ItemStack) or _is_scalar(one):
        other = one.value if isinstance(one, ItemStack) else one
        return bool(other.ndim <= 1 and other.dtype == dtype)
    return _is_number(one) and dtype.name == "float64"


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a number of NumPy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "iuf"


def _of_numbers(
    kind: type[ast.operator], compute: Callable[[Any, Any], Any], left: Any, right: Any
) -> ItemStack:
    """Compute with numbers of Python's as 64 bits do, where these are enough."""
    numpy = _numpy()
    values = []
    whole = True
    for one in (left, right):
        is_stack = isinstance(one, ItemStack)
        if not is_stack and not _is_number(one):
            raise NotBatched("values of several kinds are computed with")
        is_whole = one.kind is ItemKind.INT if is_stack else type(one) is int
        value = one.value if is_stack else one
        if is_whole and not -_SMALL < numpy.min(value) <= numpy.max(value) < _SMALL:
            raise NotBatched("whole numbers are too large")
        values.append(value)
        whole = whole and is_whole
    if kind in (ast.Div, ast.FloorDiv, ast.Mod) and not numpy.all(values[1]):
        raise NotBatched("it divides by zero")
    if kind in _WHOLE and not whole:
        raise NotBatched("an operator is not followed")
    found = numpy.asarray(compute(*values))
    return ItemStack(ItemKind.INT if whole and kind is not ast.Div else ItemKind.FLOAT, found)


# ---- methods of one item


def _method(stack: ItemStack, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    of_kind = {ItemKind.TENSOR: _TENSOR_METHODS, ItemKind.ARRAY: _ARRAY_METHODS}.get(stack.kind, {})
    method = of_kind.get(name)
    if method is None or any(isinstance(one, ItemStack) for one in named.values()):
        raise NotBatched(f"`.{name}()` is not known")
    try:
        return method(stack, *arguments, **named)
    except TypeError:
        raise NotBatched(f"`.{name}()` is called in a way that is not known") from None


def _cast(name: str) -> Callable[[ItemStack], ItemStack]:
    return lambda stack: _to(stack, _dtype(name))


def _to(stack: ItemStack, dtype: Any) -> ItemStack:
    import torch

    if type(dtype) is not torch.dtype or dtype.is_complex:
        raise NotBatched("a tensor goes to another device")
    if dtype == stack.value.dtype:
        return stack
    if not (dtype.is_floating_point or dtype is torch.bool):
        limits = torch.iinfo(dtype)
        _refuse_beyond(stack.value, limits.min, limits.max)
    return stack._replace(value=stack.value.to(dtype))


def _refuse_beyond(value: Any, lowest: float, highest: float) -> None:
    """Refuse numbers that a type of whole numbers does not hold, and such as are none.

    What becomes of these depends on the place of an element, or torch raises.
    """
    size = value.numel() if hasattr(value, "numel") else value.size
    if size and not lowest <= value.min().item() <= value.max().item() <= highest:
        raise NotBatched("a number does not fit into its type")


def _astype(stack: ItemStack, dtype: Any) -> ItemStack:
    numpy = _numpy()
    asked = numpy.dtype(dtype)
    if asked.kind not in "biuf":
        raise NotBatched("an array becomes one of objects")
    if asked.kind in "iu" and asked != stack.value.dtype:
        limits = numpy.iinfo(asked)
        _refuse_beyond(stack.value, int(limits.min), int(limits.max))
    return stack._replace(value=stack.value.astype(dtype))


def _operation(kind: type[ast.operator]) -> Callable[[ItemStack, Any], Any]:
    return lambda stack, other: _computed(kind, stack, other)


def _axes(stack: ItemStack, axes: Sequence[Any], *, more: int = 0) -> list[int]:
    """Return dimensions of one item as those of the stack."""
    if len(axes) == 1 and type(axes[0]) in (tuple, list):
        axes = axes[0]
    count = stack.item_ndim + more
    if not all(type(axis) is int and -count <= axis < count for axis in axes):
        raise NotBatched("a dimension is not there")
    return [axis % count + 1 for axis in axes]


def _unsqueezed(stack: ItemStack, dim: Any) -> ItemStack:
    (place,) = _axes(stack, [dim], more=1)
    key = (*[slice(None)] * place, None)
    return stack._replace(value=stack.value[key])


def _squeezed(stack: ItemStack, dim: Any) -> ItemStack:
    (place,) = _axes(stack, [dim])
    return stack._replace(value=stack.value.squeeze(place))


def _permuted(stack: ItemStack, *dims: Any) -> ItemStack:
    places = [0, *_axes(stack, dims)]
    if len(places) != stack.item_ndim + 1:
        raise NotBatched("a transposition names some dimensions alone")
    permute = "permute" if stack.kind is ItemKind.TENSOR else "transpose"
    return stack._replace(value=getattr(stack.value, permute)(*places))


def _swapped(stack: ItemStack, one: Any, other: Any) -> ItemStack:
    return stack._replace(value=stack.value.transpose(*_axes(stack, [one, other])))


def _reshaped(stack: ItemStack, *shape: Any) -> ItemStack:
    if len(shape) == 1 and type(shape[0]) in (tuple, list):
        shape = tuple(shape[0])
    if not all(type(size) is int for size in shape):
        raise NotBatched("a shape is not known")
    return stack._replace(value=stack.value.reshape(len(stack.value), *shape))


def _flattened(stack: ItemStack) -> ItemStack:
    return _reshaped(stack, -1)


def _same(stack: ItemStack) -> ItemStack:
    return stack


def _number(stack: ItemStack) -> ItemStack:
    """Return numbers of Python's for those of arrays or tensors."""
    if stack.kind in (ItemKind.INT, ItemKind.FLOAT):
        return stack
    if stack.item_ndim:
        raise NotBatched("an item of several numbers is taken for one")
    value = stack.value.numpy() if stack.kind is ItemKind.TENSOR else stack.value
    if value.dtype.kind in "iu":
        if value.dtype.name == "uint64" and value.max() > _LARGEST:
            raise NotBatched("whole numbers are too large")
        return ItemStack(ItemKind.INT, value.astype("int64"))
    if value.dtype.kind == "f":
        return ItemStack(ItemKind.FLOAT, value.astype("float64"))
    raise NotBatched("an item is neither a whole number nor a real one")


_TENSOR_METHODS: dict[str, Callable[..., Any]] = {
    **{name: _cast(name) for name in ("float", "double", "half", "int", "long", "short", "byte")},
    "to": _to, "type": _to, "add": _operation(ast.Add), "sub": _operation(ast.Sub),
    "mul": _operation(ast.Mult), "div": _operation(ast.Div), "unsqueeze": _unsqueezed,
    "squeeze": _squeezed, "permute": _permuted, "transpose": _swapped, "view": _reshaped,
    "reshape": _reshaped, "flatten": _flattened, "contiguous": _same, "clone": _same,
    "detach": _same, "item": _number,
}  # fmt: skip
_ARRAY_METHODS: dict[str, Callable[..., Any]] = {
    "astype": _astype, "transpose": _permuted, "reshape": _reshaped, "flatten": _flattened,
    "ravel": _flattened, "copy": _same, "item": _number,
}  # fmt: skip


# ---- functions of Python, NumPy and torch


def _tensor(given: Any, dtype: Any = None) -> ItemStack:
    """Return `torch.tensor` of each item, or of a list of numbers in each."""
    import torch

    stack = _listed(given) if type(given) is list else given
    if not isinstance(stack, ItemStack) or stack.kind is ItemKind.TENSOR:
        raise NotBatched("a tensor is made of something else than an array or numbers")
    if stack.value.dtype.kind in "iu" and (type(given) is list or not stack.item_ndim):
        _refuse_beyond(stack.value, -_EXACT, _EXACT)  # torch goes by way of doubles
    found = ItemStack(ItemKind.TENSOR, torch.from_numpy(_numpy().ascontiguousarray(stack.value)))
    return _to(found, torch.tensor(_first(given)).dtype if dtype is None else dtype)


def _listed(members: list[Any]) -> ItemStack:
    """Return lists of numbers, one list for each item, as a stack of arrays."""
    stacks = [one for one in members if isinstance(one, ItemStack) and not one.item_ndim]
    alike = {(one.kind, one.value.dtype) for one in stacks}
    if len(stacks) != len(members) or len(alike) != 1 or stacks[0].kind is ItemKind.TENSOR:
        raise NotBatched("a list is not one of numbers of one kind")
    return ItemStack(ItemKind.ARRAY, _numpy().stack([one.value for one in stacks], 1))


def _first(given: Any) -> Any:
    """Return what the first item is, as the script has it."""
    if type(given) is list:
        return [_first(one) for one in given]
    first = given.value[0]
    return first if given.kind is ItemKind.ARRAY else first.item()


def _legacy(name: str, kinds: str) -> Callable[[Any], ItemStack]:
    """Return what `torch.FloatTensor` and its kin make of arrays; a number is a size to them."""

    def convert(given: Any) -> ItemStack:
        stack = _arrays(_listed(given) if type(given) is list else given)
        if stack.value.dtype.kind not in kinds:
            raise NotBatched("a tensor is made of an array of another kind")
        return _to(_tensor(given if type(given) is list else stack), _dtype(name))

    return convert


def _dtype(name: str) -> Any:
    """Return the type of torch that a method or a constructor is named after.

    >>> _dtype("byte"), _dtype("float32")
    (torch.uint8, torch.float32)
    """
    import torch

    return torch.uint8 if name == "byte" else getattr(torch, name)


def _is_tensor_item(value: Any) -> bool:
    import torch

    kind = value.kind if isinstance(value, ItemStack) else None
    return kind is ItemKind.TENSOR or isinstance(value, torch.Tensor)


def _arrays(stack: Any) -> ItemStack:
    if isinstance(stack, ItemStack) and stack.kind is ItemKind.ARRAY and stack.item_ndim:
        return stack
    raise NotBatched("it is made of something else than an array")


def _from_numpy(stack: Any) -> ItemStack:
    return _tensor(_arrays(stack))


def _array(stack: Any, dtype: Any = None) -> ItemStack:
    return _arrays(stack) if dtype is None else _astype(_arrays(stack), dtype)


def _int(stack: Any) -> ItemStack:
    found = _number(stack) if isinstance(stack, ItemStack) else None
    if found is None or found.kind is not ItemKind.INT:
        raise NotBatched("a whole number is made of something else than one")
    return found


def _float(stack: Any) -> ItemStack:
    if not isinstance(stack, ItemStack):
        raise NotBatched("a real number is made of something else than one")
    return ItemStack(ItemKind.FLOAT, _number(stack).value.astype("float64"))


def _length(value: Any) -> int:
    if type(value) in (list, tuple, dict, range) or (_is_plain(value) and value.ndim):
        return len(value)
    raise NotBatched("a length is not known")


_BUILTINS: dict[str, Any] = {"int": int, "float": float, "len": len}


def _known() -> dict[int, Callable[..., Any]]:
    """Return what stands for functions, by their ids; NumPy may be imported later than torch."""
    return _known_with(sys.modules.get("numpy"))


@cache
def _known_with(numpy: Any) -> dict[int, Callable[..., Any]]:
    import torch

    found: dict[Any, Callable[..., Any]] = {
        int: _int, float: _float, len: _length, torch.tensor: _tensor, torch.as_tensor: _tensor,
        torch.from_numpy: _from_numpy, torch.is_tensor: _is_tensor_item,
        torch.FloatTensor: _legacy("float32", "iuf"), torch.LongTensor: _legacy("int64", "iu"),
    }  # fmt: skip
    if numpy is not None:
        arrays = (numpy.array, numpy.asarray, numpy.ascontiguousarray)
        found |= dict.fromkeys(arrays, _array)
    # Of the script's own are those that it has put in the place of torch's.
    return {
        id(function): answer for function, answer in found.items() if not is_user_function(function)
    }
