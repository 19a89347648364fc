"""Follow functions that are written in Python, without running them."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import body as bodies
from hasten.loader.proof import calls
from hasten.loader.proof.objects import attribute_of
from hasten.loader.proof.source import function_of
from hasten.loader.proof.values import MANY, Value, either, new, sign, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.loader.proof.frame import Frame, Given
    from hasten.loader.proof.reads import Reads

_DEEPEST = 24
_MOST_GUESSES = 4
_MOST_CALLS = 2000


class Follower:
    """Follows functions that the items call.

    Attributes:
        in_worker: what is followed runs once in a worker process.
    """

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.in_worker = False
        self.following: list[Any] = []
        self._known: dict[Any, Value] = {}
        self._open: set[Any] = set()  # calls that are being followed,
        self._recursive: set[Any] = set()  # and those that were met again meanwhile
        self._kept: list[Any] = []
        self._depth = self._count = 0

    def method(self, body: Frame, owner: Value, name: str, given: Given) -> Value:
        """Follow a method of an object of the script's, by its live objects or its class."""
        if owner.objects is None:
            function = attribute_of(owner.kind, name) if owner.kind else None
            if not isinstance(function, FunctionType) or name in self.reads.facts.stored:
                return body.gap(f"{name} cannot be followed", given.node)
            return self.call(body, function, given.after(owner))
        found: list[Value] = []
        for one in owner.objects:
            target = attribute_of(one, name)
            if target is None:
                return body.gap(f"{type(one).__name__} has no {name}", given.node)
            found.append(calls.call_object(body, target, given))
        return either(*found)

    def call(self, body: Frame, function: Any, given: Given) -> Value:
        """Follow a function that is written in Python; return what it may return."""
        key = self._key(function, given)
        known: Value | None = self._known.get(key)
        if known is not None:
            if key in self._open:
                self._recursive.add(key)
            return known
        tree = function_of(function.__code__)
        if tree is None:
            return body.gap(f"the source of {function.__qualname__} is not known", given.node)
        if isinstance(tree, ast.AsyncFunctionDef):
            return body.gap(f"{function.__qualname__} cannot be followed", given.node)
        if self._is_too_large():
            return body.gap("its code is too large to be followed", given.node)
        self.reads.codes.add(function.__code__)

        def follow() -> Value:
            return self._run(bodies.Body(
                self, function.__code__.co_filename, function.__globals__, self._enclosed(function),
                _owner(function), self._bind(function, given),
            ), tree)  # fmt: skip

        if key is None:
            return follow()
        self._kept += [function, given]
        return self._settled(key, follow)

    def _settled(self, key: Any, follow: Callable[[], Value]) -> Value:
        """Follow a function that may call itself; return what it may return.

        What its own calls return is guessed until it is what comes out: then that holds for calls
        of any depth.
        """
        self._known[key] = new()
        count = len(self._known)
        self._open.add(key)
        for left in reversed(range(_MOST_GUESSES)):
            guess, found = self._known[key], follow()
            if key not in self._recursive or sign(found) == sign(guess):
                break
            for later in list(self._known)[count:]:  # they rest on the guess
                del self._known[later]
            self._known[key] = found if left > 1 else unknown()
        self._open.discard(key)
        self._known[key] = found
        return found

    def inner(self, callee: Value, given: Given) -> Value:
        """Follow a function or lambda that is defined in the code itself."""
        node: Any = callee.made[0]
        around: Frame = callee.made[1]
        if self._is_too_large():
            return around.gap("its code is too large to be followed", node)
        positions = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        variables = dict(zip(positions, given.args, strict=False))
        for rest in (*positions, *(one.arg for one in node.args.kwonlyargs)):
            variables.setdefault(rest, given.named.get(rest, unknown()))
        for many in (node.args.vararg, node.args.kwarg):
            if many is not None:
                variables[many.arg] = new(shares=True)
        return self._run(bodies.Body(
            self, around.path, around.space, around.enclosing(), around.owner, variables
        ), node)  # fmt: skip

    def live(self, body: Frame, one: Any, given: Given) -> Value:
        """Follow a call of a live object."""
        return calls.call_object(body, one, given)

    def value(self, body: Frame, callee: Value, given: Given) -> Value:
        """Follow a call of whatever a value may be."""
        return calls.call_value(body, callee, given)

    def _run(self, body: Frame, tree: Any) -> Value:
        self._depth += 1
        try:
            return body.run(_statements(tree))
        finally:
            self._depth -= 1

    def _is_too_large(self) -> bool:
        self._count += 1
        return self._depth >= _DEEPEST or self._count > _MOST_CALLS

    @staticmethod
    def _key(function: Any, given: Given) -> Any:
        """Return a key that distinguishes one call from another; None if there is none."""
        if any(value.made is not None for value in given.values):
            return None
        return (id(function), *map(sign, given.args), *sorted(
            (name, *map(repr, sign(value))) for name, value in given.named.items()
        ))  # fmt: skip

    def _enclosed(self, function: Any) -> dict[str, Value]:
        found: dict[str, Value] = {}
        self.reads.enclosed.update(function.__code__.co_freevars)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                found[name] = self.reads.load(cell.cell_contents)
            except ValueError:
                found[name] = unknown()
        return found

    def _bind(self, function: Any, given: Given) -> dict[str, Value]:
        code, args, named = function.__code__, given.args, given.named
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        found = dict(zip(names[:count], args, strict=False))
        found = {name: value for name, value in found.items() if value is not MANY}
        found |= {name: value for name, value in named.items() if name in names}
        last = function.__defaults__ or ()
        defaults = dict(zip(names[count - len(last) : count], last, strict=True))
        defaults |= function.__kwdefaults__ or {}
        open_ended = "**" in named or any(one is MANY for one in args)
        for name in names:
            if name not in found:
                known = name in defaults and not open_ended
                found[name] = self.reads.load(defaults[name]) if known else unknown()
        rest = [*args[count:], *(value for name, value in named.items() if name not in names)]
        shares = self.reads.keeps(rest) or open_ended
        flags = bool(code.co_flags & 4) + bool(code.co_flags & 8)
        ordered = {name: found[name] for name in names}
        for name in code.co_varnames[len(names) : len(names) + flags]:
            ordered[name] = new(shares=shares)
        return ordered


def _statements(tree: Any) -> list[ast.stmt]:
    if isinstance(tree, ast.Lambda):
        return [ast.copy_location(ast.Return(value=tree.body), tree.body)]
    found: list[ast.stmt] = tree.body
    return found


def _owner(function: Any) -> type | None:
    """Return the class whose method this is, if it uses `super()`."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__":
            found: type = cell.cell_contents
            return found
    return None
