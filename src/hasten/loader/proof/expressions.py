"""What expressions in the code of items may be."""

from __future__ import annotations

import ast
import sys
from importlib.util import resolve_name
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import attributes, calls, containers, operators
from hasten.loader.proof.frame import Given
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import Value, either, live, new, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.loader.proof.frame import Frame


def value(body: Frame, node: ast.expr) -> Value:
    """Return what an expression may be."""
    follow = _EXPRESSIONS.get(type(node))
    if follow is None:
        return body.gap(f"`{type(node).__name__.lower()}` cannot be followed", node)
    return follow(body, node)


def tested(body: Frame, node: ast.expr) -> bool | None:
    """Follow a test; return its outcome, None if it is unknown."""
    found = body.value(node)
    return operators.tested(body, found, node)


def enter(body: Frame, value: Value, node: ast.AST) -> Value:
    """Follow the entry and exit of a `with` block; return what `__enter__` gives."""
    if value.fresh and value.kind is not None and is_user_class(value.kind):
        found = body.follower.method(body, value, "__enter__", Given([], {}, node))
        body.follower.method(body, value, "__exit__", Given([new()] * 3, {}, node))
        return found
    if not value.fresh or value.objects is not None:
        return body.gap("a context that cannot be followed is entered", node)
    body.ask(value, "__enter__", node)
    body.ask(value, "__exit__", node)
    return value


def imported(body: Frame, node: Any) -> Iterator[tuple[str, Value]]:
    """Follow an import: nothing runs if the module is already loaded."""
    for alias in node.names:
        bound = alias.asname or alias.name.partition(".")[0]
        if isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            package = body.space.get("__package__") or ""
            home: Any = sys.modules.get(resolve_name(name, package) if node.level else name)
            found = None if home is None else attributes.of_module(body, home, alias.name, node)
            if found is None or found.only is ...:
                body.gap(f"it imports {alias.name}, which is not loaded yet", node)
                found = unknown()
            yield bound, found
            continue
        whole = sys.modules.get(alias.name)
        if whole is None:
            yield bound, body.gap(f"it imports {alias.name}, which is not loaded yet", node)
        else:
            yield bound, live(whole if alias.asname else sys.modules[bound])


def _choice(body: Frame, node: Any) -> Value:
    known = tested(body, node.test)
    if known is not None:
        return body.value(node.body if known else node.orelse)
    return either(body.value(node.body), body.value(node.orelse))


def _text(body: Frame, node: Any) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            shown = body.value(part.value)
            operators.implied(body, shown, node)
            if part.format_spec is not None:
                body.value(part.format_spec)
    return new(flat=True)


def _slice(body: Frame, node: Any) -> Value:
    parts = [body.value(one) for one in (node.lower, node.upper, node.step) if one is not None]
    shares = any(body.reads.holds(part) and not part.flat for part in parts)
    return new(shares=shares, kind=slice)


def _walrus(body: Frame, node: Any) -> Value:
    found = body.value(node.value)
    body.assign(node.target, found)
    return found


def _yield(body: Frame, node: Any) -> Value:
    given = live(None) if node.value is None else body.value(node.value)
    body.returned.append(new(shares=body.reads.keeps([given]), kind=list))
    return unknown()


_EXPRESSIONS: dict[type, Callable[[Frame, Any], Value]] = {
    ast.Constant: lambda body, node: live(node.value),
    ast.Name: lambda body, node: body.name(node.id), ast.Attribute: attributes.read,
    ast.Subscript: containers.subscript, ast.BinOp: operators.binary,
    ast.Compare: operators.compare, ast.BoolOp: operators.boolean,
    ast.UnaryOp: operators.unary, ast.IfExp: _choice, ast.Tuple: containers.sequence,
    ast.List: containers.sequence, ast.Set: containers.sequence,
    ast.Dict: containers.dictionary, ast.ListComp: containers.comprehension,
    ast.SetComp: containers.comprehension, ast.GeneratorExp: containers.comprehension,
    ast.DictComp: containers.comprehension, ast.JoinedStr: _text,
    ast.Lambda: lambda body, node: Value(None, fresh=True, shares=False, made=(node, body)),
    ast.Starred: lambda body, node: body.value(node.value), ast.Slice: _slice,
    ast.NamedExpr: _walrus, ast.Yield: _yield, ast.YieldFrom: _yield,
    ast.Call: calls.call,
}  # fmt: skip
