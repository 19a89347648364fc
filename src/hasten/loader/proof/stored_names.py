"""Which names a function stores into, and how often."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class StoredNames:
    """The names of one function.

    Attributes:
        stored: names that are its own variables.
        outside: names that it declares global or nonlocal.
        has_yield: whether it is a generator.
    """

    def __init__(self, arguments: set[str]) -> None:
        self.stored = set(arguments)
        self.outside: set[str] = set()
        self.has_yield = False
        self._count = Counter(arguments)

    def see(self, statements: Sequence[ast.stmt]) -> None:
        """Take note of the names in a function's statements."""
        for node in within(statements):
            for name in stored_by(node):
                self.stored.add(name)
                self._count[name] += 1
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                self.outside.update(node.names)
            self.has_yield |= isinstance(node, (ast.Yield, ast.YieldFrom))

    def stores_of(self, name: str) -> int:
        """Return how many places store into a variable."""
        return self._count[name]


def stored_by(node: ast.AST) -> list[str]:
    """Return the variables that a node itself stores into."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, (ast.Store, ast.Del)) else []
    if isinstance(node, (ast.FunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name] if node.name else []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name.partition(".")[0] for one in node.names]
    if isinstance(node, ast.MatchMapping) and node.rest:
        return [node.rest]
    return []


def within(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Walk through nodes, but not into functions that are defined there."""
    for node in nodes:
        yield node
        if isinstance(node, _INNER):
            continue
        if isinstance(node, _COMPREHENSIONS):
            yield from _walruses(node)
            continue
        yield from within(list(ast.iter_child_nodes(node)))


def _walruses(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the stores in a comprehension that belong to the function around it."""
    for one in ast.walk(node):
        if isinstance(one, ast.NamedExpr):
            yield one.target
