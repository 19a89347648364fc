"""Every place of a source at which one small change may change what it decides."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"),
    ast.Eq: ("!=",), ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",),
    ast.In: ("not in",), ast.NotIn: ("in",),
}  # fmt: skip
_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "ceil": "int",
    "baseline": "candidate", "candidate": "baseline", "baseline_s": "candidate_s",
    "candidate_s": "baseline_s", "low_ratio": "high_ratio", "high_ratio": "low_ratio",
    "own": "other", "other": "own",
}  # fmt: skip


def places(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the change in words, and the changed source, for each place in order.

    >>> [change for _, change, _ in places("x = a < 1")]
    ['a < 1 -> a <= 1', 'a < 1 -> a >= 1', '1 -> 2', '1 -> 0']
    """
    tree = ast.parse(source)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole, skipped = source.encode(), _skipped(tree)
    for node in _in_order(tree):
        if id(node) in skipped or not hasattr(node, "end_col_offset"):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = whole[begin:end].decode()
        for new in dict.fromkeys(_changes(node)):
            mutant = (whole[:begin] + new.encode() + whole[end:]).decode()
            brief = " -> ".join(" ".join(text.split())[:60] for text in (old, new))
            yield node.lineno, brief, mutant


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def _skipped(tree: ast.AST) -> set[int]:
    """Return the nodes that decide nothing: annotations, imports for types, messages."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for part in _idle(node):
            found.update(id(inner) for inner in ast.walk(part))
    for node in ast.walk(tree):  # a raise may go as a whole
        if isinstance(node, ast.Raise):
            found.discard(id(node))
    return found


def _idle(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that decide nothing."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.arg | ast.AnnAssign):
        parts = [node.annotation]
    elif isinstance(node, ast.FunctionDef):
        parts = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        parts = [*node.decorator_list, *node.bases]
    elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or (
        isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ):
        parts = [node]
    return [part for part in parts if part is not None]


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what could stand in the place of a node."""
    for kinds, change in _CHANGES:
        if isinstance(node, kinds):
            yield from change(node)
            return
    yield from _statements(node)


def _compared(node: ast.Compare) -> Iterator[str]:
    if len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        for sign in _COMPARISONS[type(node.ops[0])]:
            yield f"{left} {sign} {right}"


def _calculated(node: ast.BinOp) -> Iterator[str]:
    if type(node.op) in _OPERATORS:
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        yield f"(({left}) {_OPERATORS[type(node.op)]} ({right}))"


def _joined(node: ast.BoolOp) -> Iterator[str]:
    parts = [f"({ast.unparse(value)})" for value in node.values]
    yield f"({(' or ' if isinstance(node.op, ast.And) else ' and ').join(parts)})"
    yield from parts


def _signed(node: ast.UnaryOp) -> Iterator[str]:
    yield f"({ast.unparse(node.operand)})"


def _chosen(node: ast.IfExp) -> Iterator[str]:
    yield f"({ast.unparse(node.body)})"
    yield f"({ast.unparse(node.orelse)})"


def _constants(node: ast.Constant) -> Iterator[str]:
    value = node.value
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield from (str(value + 1), str(value - 1) if value != 0 else "1")
    elif isinstance(value, float):
        yield from (repr(value * 2) if value else "1.0", repr(value / 2) if value else "-1.0")


def _renamed(node: ast.Name | ast.Attribute) -> Iterator[str]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    if name in _NAMES and isinstance(node.ctx, ast.Load):
        lead = "" if isinstance(node, ast.Name) else f"{ast.unparse(node.value)}."
        yield lead + _NAMES[name]


def _statements(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise | ast.Break | ast.Continue | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield "return None"
    elif isinstance(node, ast.keyword) and node.arg in ("least", "least_s", "apart", "wall_s"):
        yield ""


_CHANGES = (
    (ast.Compare, _compared), (ast.BinOp, _calculated), (ast.BoolOp, _joined),
    (ast.UnaryOp, _signed), (ast.IfExp, _chosen), (ast.Constant, _constants),
    (ast.Name | ast.Attribute, _renamed),
)  # fmt: skip
