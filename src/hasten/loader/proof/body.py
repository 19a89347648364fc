"""Follow the statements of one function, tracking what its variables may be."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import containers, expressions, writes
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.stored_names import StoredNames
from hasten.loader.proof.values import Value, either, live, new, sign, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.loader.proof.frame import CallFollower

Environment = dict[str, Value]
_MOST_ROUNDS = 12


class Body:
    """One call of a function, followed without being executed.

    Args:
        follower: follows the calls in it.
        path: the file it stands in.
        space: the variables of its module.
        enclosed: what it finds in the functions around it.
        owner: the class that `super()` starts from, None outside of methods.
        variables: its arguments.
    """

    def __init__(  # noqa: PLR0917
        self,
        follower: CallFollower,
        path: str,
        space: dict[str, Any],
        enclosed: Mapping[str, Value],
        owner: type | None,
        variables: Environment,
    ) -> None:
        self.follower = follower
        self.reads = follower.reads
        self.path = path
        self.space = space
        self.enclosed = enclosed
        self.owner = owner
        self.variables = variables
        self.names = StoredNames(set(variables))
        self.returned: list[Value] = []
        self.first = next(iter(variables), "")
        self.trails: list[dict[str, list[Value]]] = []

    # ---- names

    def name(self, name: str) -> Value:
        """Return what a variable may be."""
        if name in self.variables:
            return self.variables[name]
        if name in self.names.stored:
            return unknown()
        if name in self.enclosed:
            return self.enclosed[name]
        if name in self.space:
            return self.reads.variable(self.space, name)
        if hasattr(builtins, name):
            return live(getattr(builtins, name))
        return unknown()

    def enclosing(self) -> Environment:
        """Return the variables that functions defined in this one may see, whenever they run."""
        found = {**self.enclosed, **self.variables}
        return {
            name: unknown() if self.names.stores_of(name) > 1 else value
            for name, value in found.items()
        }

    def gap(self, what: str, node: ast.AST | None) -> Value:
        """Note something here that rules out purity."""
        return self.reads.gap(what, self.path, node)

    def ask(self, value: Value, name: str, node: ast.AST | None) -> None:
        """Note that a name is looked up on a value whose class may not be known."""
        self.reads.ask(value, name, self.path, node)

    def value(self, node: ast.expr) -> Value:
        """Return what an expression may be."""
        return expressions.value(self, node)

    def bind(self, name: str, value: Value, node: ast.AST | None = None) -> None:
        """Follow a store into a variable."""
        if name in self.names.outside:
            self.gap(f"it sets the variable {name} outside of the function", node)
        self.variables[name] = value
        for trail in self.trails:
            trail.setdefault(name, []).append(value)

    # ---- statements

    def run(self, statements: Sequence[ast.stmt]) -> Value:
        """Follow a whole function body; return what it may return."""
        self.names.see(statements)
        ended = self.block(statements)
        if not ended and not self.names.has_yield:
            self.returned.append(live(None))
        return either(*self.returned) if self.returned else live(None)

    def block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements in order; return whether nothing runs after them.

        Whatever comes after such a statement never runs, and is not followed.
        """
        for statement in statements:
            follow = _STATEMENTS.get(type(statement))
            if follow is None:
                self.gap(f"`{type(statement).__name__.lower()}` cannot be followed", statement)
            elif follow(self, statement):
                return True
        return False

    def branches(self, *blocks: Sequence[ast.stmt]) -> bool:
        """Follow alternative blocks, one of which will run; return whether nothing runs after."""
        before, ends, ended = dict(self.variables), [], True
        for block in blocks:
            self.variables = dict(before)
            ended &= self.block(block)
            ends.append(self.variables)
        self._join(ends)
        return ended

    def _join(self, ends: Sequence[Environment]) -> None:
        names = {name for end in ends for name in end}
        self.variables = {
            name: either(*(end[name] for end in ends if name in end)) for name in names
        }

    def broken(self, *blocks: Sequence[ast.stmt]) -> None:
        """Follow blocks that may stop anywhere: what follows may see any value that they store."""
        before, trail = dict(self.variables), dict[str, list[Value]]()
        self.trails.append(trail)
        for block in blocks:
            self.block(block)
        self.trails.pop()
        for name, values in trail.items():
            earlier = [before[name]] if name in before else []
            self.variables[name] = either(*earlier, *values)

    def repeated(self, follow: Callable[[], None]) -> None:
        """Follow something repeatedly until its variables no longer change."""
        for _ in range(_MOST_ROUNDS):
            before = {name: sign(value) for name, value in self.variables.items()}
            earlier = dict(self.variables)
            follow()
            self._join([earlier, self.variables])
            if before == {name: sign(value) for name, value in self.variables.items()}:
                return
        for name in self.names.stored & set(self.variables):
            self.variables[name] = unknown()
        follow()

    # ---- stores

    def assign(self, target: ast.expr, value: Value) -> None:
        """Follow `target = value`."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Attribute):
            writes.attribute(self, self.value(target.value), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self.value(target.slice)
            writes.member(self, self.value(target.value), value, target)
        else:
            self.gap("an assignment cannot be followed", target)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value) -> None:
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        whole = containers.iterated(self, value, target)
        for position, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):
                self.assign(part.value, new(shares=self.reads.holds(value), kind=list))
            elif starred or not containers.has_positions(value):
                self.assign(part, whole)
            else:
                self.assign(part, containers.member(self, value, position, target))


def _return(body: Body, node: Any) -> bool:
    body.returned.append(live(None) if node.value is None else body.value(node.value))
    return True


def _assign(body: Body, node: Any) -> None:
    if _is_pairwise(node):
        parts = [body.value(one) for one in node.value.elts]
        for target, part in zip(node.targets[0].elts, parts, strict=True):
            body.assign(target, part)
        return
    value = body.value(node.value)
    for target in node.targets:
        body.assign(target, value)


def _is_pairwise(node: Any) -> bool:
    """Return whether an assignment is of the form `a, b = x, y`."""
    sides = (node.value, node.targets[0])
    if len(node.targets) > 1 or not all(isinstance(one, (ast.Tuple, ast.List)) for one in sides):
        return False
    parts = [part for one in sides for part in one.elts]
    same = len(node.value.elts) == len(node.targets[0].elts)
    return same and not any(isinstance(part, ast.Starred) for part in parts)


def _annotated(body: Body, node: Any) -> None:
    if node.value is not None:
        body.assign(node.target, body.value(node.value))


def _expression(body: Body, node: Any) -> None:
    body.value(node.value)


def _if(body: Body, node: Any) -> bool:
    known = expressions.tested(body, node.test)
    if known is None:
        return body.branches(node.body, node.orelse)
    return body.block(node.body if known else node.orelse)


def _for(body: Body, node: Any) -> None:
    iterated = body.value(node.iter)

    def once() -> None:
        body.assign(node.target, containers.iterated(body, iterated, node.iter))
        body.broken(node.body)

    body.repeated(once)
    body.branches(node.orelse, ())


def _while(body: Body, node: Any) -> None:
    def once() -> None:
        expressions.tested(body, node.test)
        body.broken(node.body)

    body.repeated(once)
    body.branches(node.orelse, ())


def _with(body: Body, node: Any) -> bool:
    swallows = False
    for item in node.items:
        value = body.value(item.context_expr)
        swallows |= _may_swallow(item.context_expr, value)
        value = expressions.enter(body, value, item.context_expr)
        if item.optional_vars is not None:
            body.assign(item.optional_vars, value)
    if swallows:
        body.broken(node.body)
        return False
    return body.block(node.body)


def _may_swallow(node: ast.expr, value: Value) -> bool:
    """Return whether a context may end an exception, so that what follows runs."""
    if value.kind is not None and is_user_class(value.kind):
        return True
    name = getattr(node, "func", None)
    return getattr(name, "id", getattr(name, "attr", "")) not in ("open", "no_grad", "Pool")


def _try(body: Body, node: Any) -> None:
    def handled() -> None:
        body.broken(node.body)
        before, ends = dict(body.variables), []
        for handler in node.handlers:
            body.variables = dict(before)
            if handler.type is not None:
                body.value(handler.type)
            if handler.name:
                body.bind(handler.name, unknown())
            body.broken(handler.body)
            ends.append(body.variables)
        body.variables = dict(before)
        body.broken(node.orelse)
        body._join([*ends, body.variables])

    handled()
    body.block(node.finalbody)


def _define(body: Body, node: Any) -> None:
    defaults = (*node.args.defaults, *(one for one in node.args.kw_defaults if one))
    for default in defaults:
        body.value(default)
    value = Value(None, fresh=True, shares=False, made=(node, body))
    if node.decorator_list:
        value = body.gap("a decorated function is defined in it", node)
    body.bind(node.name, value)


def _raise(body: Body, node: Any) -> bool:
    if node.exc is not None:
        body.value(node.exc)
    return True


def _assert(body: Body, node: Any) -> None:
    expressions.tested(body, node.test)
    if node.msg is not None:
        body.value(node.msg)


def _delete(body: Body, node: Any) -> None:
    for target in node.targets:
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            body.assign(target, new(flat=True))


def _import(body: Body, node: Any) -> None:
    for name, found in expressions.imported(body, node):
        body.bind(name, found)


def _nothing(body: Body, node: Any) -> None:
    del body, node


_STATEMENTS: dict[type, Callable[[Body, Any], bool | None]] = {
    ast.Return: _return, ast.Assign: _assign, ast.AnnAssign: _annotated,
    ast.AugAssign: writes.augmented,
    ast.Expr: _expression, ast.If: _if, ast.For: _for,
    ast.While: _while, ast.With: _with, ast.Try: _try, ast.FunctionDef: _define,
    ast.Raise: _raise, ast.Assert: _assert, ast.Delete: _delete, ast.Import: _import,
    ast.ImportFrom: _import, ast.Pass: _nothing, ast.Break: _nothing, ast.Continue: _nothing,
    ast.Global: _nothing, ast.Nonlocal: _nothing,
}  # fmt: skip
