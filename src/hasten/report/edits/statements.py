"""Whole statements put into a file: after its imports, or before another statement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import libcst as cst

from hasten.report.edits.survey import dotted, mentions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.report.edits.project import SourceFile

_IMPORTS = (cst.Import, cst.ImportFrom)
_ENVIRONMENT = ("environ", "os.environ")


def parsed(lines: str) -> list[cst.BaseStatement]:
    """Return the statements of some lines of code."""
    return list(cst.parse_module(lines).body)


def before(node: cst.CSTNode, lines: str) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return a statement with others before it; blank lines and comments above stay on top."""
    statement: Any = node
    first, *more = parsed(lines)
    first = first.with_changes(leading_lines=statement.leading_lines)
    return cst.FlattenSentinel([first, *more, statement.with_changes(leading_lines=())])


def insert_after_imports(source: SourceFile, lines: str) -> None:
    """Put lines after the import of torch and any imports that directly follow it.

    If the file does not import torch at the top, they come after its first imports.
    """
    body = list(source.tree.body)
    index = _after_imports(body)
    after_own = index
    while after_own < len(body) and text(body[after_own]) in source.added:
        after_own += 1
    first, *more = parsed(lines)
    if after_own == index:
        first = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        if index < len(body) and not _leading(body[index]):
            spaced = [cst.EmptyLine(indent=False)]
            body[index] = body[index].with_changes(leading_lines=spaced)
    new = [first, *more]
    source.added.update(map(text, new))
    _put(source, [*body[:after_own], *new, *body[after_own:]])


def text(node: object) -> str:
    """Return the bare text of a statement, without comments; "" for a compound one."""
    if not isinstance(node, cst.SimpleStatementLine):
        return ""
    module = cst.Module(body=())
    return "; ".join(module.code_for_node(small).strip() for small in node.body)


def ensure_import(source: SourceFile, module: str) -> bool:
    """Import a module at the top of a file, among the first imports.

    Environment variables that a script sets before importing torch stay before the import.

    Returns:
        Whether it was not imported there before.
    """
    body = list(source.tree.body)
    if any(_imports(statement, module) for statement in body):
        return False
    start, index = _place(body, module)
    (new,) = parsed(f"import {module}\n")
    if index == start and index < len(body):
        follower = body[index]
        new = new.with_changes(leading_lines=_leading(follower))
        grouped = _plain_import(follower) or _brings(follower, module.partition(".")[0])
        spaced = () if grouped else [cst.EmptyLine(indent=False)]
        body[index] = follower.with_changes(leading_lines=spaced)
    _put(source, [*body[:index], new, *body[index:]])
    return True


def _place(body: Sequence[cst.CSTNode], module: str) -> tuple[int, int]:
    """Return where the group of imports that a module joins begins, and its own index.

    It goes next to the first import of its package. A standard module takes its alphabetical
    place among the first imports; any other follows these and the environment they set up.
    """
    root = module.partition(".")[0]
    brought = [place for place, node in enumerate(body) if _brings(node, root)]
    start = brought[0] if brought else _first_import(body)
    if not brought and root not in sys.stdlib_module_names:
        return start, _end_of_head(body, start)
    index = start
    while (
        index < len(body)
        and (name := _plain_import(body[index]))
        and name < module
        and (index == start or not _leading(body[index]))
    ):
        index += 1
    return start, index


def _end_of_head(body: Sequence[cst.CSTNode], start: int) -> int:
    """Return where the first imports end, including environment settings between them."""
    end = start
    for place, node in enumerate(body[start:], start):
        if _is_import(node):
            end = place + 1
        elif not any(mentions(node, name) for name in _ENVIRONMENT):
            break
    return end


def has_statement(source: SourceFile, wanted: str) -> bool:
    """Return whether a file already has a line of code at its top level."""
    return any(text(statement) == wanted for statement in source.tree.body)


def _put(source: SourceFile, body: Sequence[object]) -> None:
    changed = source.tree.with_changes(body=body)
    source.tree = cst.parse_module(changed.bytes)


def _leading(node: object) -> Sequence[cst.EmptyLine]:
    return getattr(node, "leading_lines", ())


def _small(node: object) -> cst.BaseSmallStatement | None:
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else None


def _plain_import(node: object) -> str:
    small = _small(node)
    return dotted(small.names[0].name) if isinstance(small, cst.Import) else ""


def _imports(node: object, module: str, *, renamed: bool = False) -> bool:
    """Return whether a statement makes a module known, under its own name or `renamed`."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    aliases = [a for small in node.body if isinstance(small, cst.Import) for a in small.names]
    return any(
        (alias.asname is None and _is_of(dotted(alias.name), module))
        or (renamed and dotted(alias.name) == module)
        for alias in aliases
    )


def _is_of(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"{module}.")


def _brings(node: object, module: str) -> bool:
    """Return whether a statement imports a module or something from it."""
    small = _small(node)
    if isinstance(small, cst.Import):
        return any(_is_of(dotted(alias.name), module) for alias in small.names)
    return isinstance(small, cst.ImportFrom) and _is_of(dotted(small.module), module)


def _is_import(node: object) -> bool:
    return isinstance(_small(node), _IMPORTS)


def _first_import(body: Sequence[object]) -> int:
    """Return the index of the first import but `__future__`, or else after the docstring."""
    index = 0
    while index < len(body) and (_is_docstring(body[index]) or _brings(body[index], "__future__")):
        index += 1
    found = (place for place, node in enumerate(body) if place >= index and _is_import(node))
    return next(found, index)


def _is_docstring(node: object) -> bool:
    small = _small(node)
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)


def _after_imports(body: Sequence[object]) -> int:
    named = [place for place, node in enumerate(body) if _imports(node, "torch", renamed=True)]
    brought = named or [place for place, node in enumerate(body) if _brings(node, "torch")]
    index = brought[0] if brought else _first_import(body)
    while index < len(body) and _is_import(body[index]):
        index += 1
    return index
