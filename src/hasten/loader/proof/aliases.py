"""Variables that refer to functions and classes of the script, and are only called."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from hasten.loader.proof.source import Function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set


class Aliases(NamedTuple):
    """What a script calls by the names of variables.

    Attributes:
        targets: for each variable the names of the functions and classes it may refer to,
            as `Net` after `Net = {"small": Small, "large": Large}[size]`.
        sources: the ids of the nodes by which it got them.
    """

    targets: dict[str, set[str]]
    sources: set[int]


_Assigned = tuple[str, list[tuple[ast.expr, str]]]
"""A variable, and what one assignment takes for it, each with its name."""


def aliases_in(files: Sequence[Sequence[ast.AST]], functions: Set[str]) -> Aliases:
    """Return the variables that hold functions or classes and are only ever called.

    Args:
        files: all nodes of each file.
        functions: names of the script's functions and classes; not of methods, because a bound
            one carries its object.
    """
    assigned = [one for nodes in files for one in _assigned(nodes)]
    targets: dict[str, set[str]] = {}
    grown = True
    while grown:
        before = sum(map(len, targets.values()))
        for variable, sources in assigned:
            found = {name for _, name in sources if name in functions}
            found |= set[str]().union(*(targets.get(name, set()) for _, name in sources))
            if found and variable not in functions:
                targets.setdefault(variable, set()).update(found)
        grown = before != sum(map(len, targets.values()))
    kept = set(targets) - _used_otherwise(files, assigned, targets)
    called = kept.union(*(targets[one] for one in kept))
    of_kept, of_others = set[int](), set[int]()
    for variable, sources in assigned:
        ids = of_kept if variable in kept else of_others
        ids |= {id(node) for node, name in sources if name in called}
    return Aliases({name: targets[name] for name in kept}, of_kept - of_others)


def container_of(node: ast.expr) -> ast.expr:
    """Return an expression without its subscripts: `a` of `a[0][1]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _used_otherwise(
    files: Sequence[Sequence[ast.AST]],
    assigned: Sequence[_Assigned],
    targets: dict[str, set[str]],
) -> set[str]:
    """Return the variables that are passed on, kept or read by name, and what they are set from."""
    passed_on = {id(node) for name, sources in assigned if name in targets for node, _ in sources}
    found: set[str] = set()
    for nodes in files:
        looked_at = set(_looked_at(nodes)) | passed_on
        found |= {name for node in nodes for name in _other_names(node)}
        found |= {name for node in nodes if id(node) not in looked_at for name in _loaded(node)}
    grown = True
    while grown:
        before = len(found)
        for variable, sources in assigned:
            if variable in found:
                found |= {name for _, name in sources}
        grown = before != len(found)
    return found


def _assigned(nodes: Sequence[ast.AST]) -> Iterator[_Assigned]:
    """Yield the assignments to variables of modules and functions; a class's are attributes."""
    in_classes = {id(node) for node in class_statements(nodes)}
    for node in nodes:
        if not isinstance(node, ast.Assign) or id(node) in in_classes:
            continue
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if len(names) == len(node.targets) and not any(name.startswith("__") for name in names):
            sources = list(_sources(node.value))
            yield from ((name, sources) for name in names)


def class_statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield what runs as a class is made: all of it but its methods' bodies and annotations."""
    waiting: list[ast.AST] = [
        one for node in nodes if isinstance(node, ast.ClassDef) for one in node.body
    ]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function):
            waiting += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            waiting += getattr(node, "decorator_list", [])
        else:
            waiting += ast.iter_child_nodes(node)


def _sources(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield what an expression takes a function from: a name, or one of several."""
    if isinstance(node, ast.Name):
        yield node, node.id
    elif isinstance(node, ast.Attribute):
        yield node, node.attr
    elif isinstance(node, (ast.Dict, ast.List, ast.Tuple)):
        for one in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from _sources(one)
    elif isinstance(node, ast.IfExp):
        yield from _sources(node.body)
        yield from _sources(node.orelse)
    elif isinstance(node, ast.Subscript):
        yield from _sources(node.value)


def _looked_at(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the ids of expressions that are only called or compared."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield id(container_of(node.func))
        elif isinstance(node, ast.Compare):
            yield from map(id, (node.left, *node.comparators))


def _loaded(node: ast.AST) -> Iterator[str]:
    if isinstance(getattr(node, "ctx", None), ast.Load):
        yield from (str(getattr(node, name)) for name in ("id", "attr") if hasattr(node, name))


def _other_names(node: ast.AST) -> Iterator[str]:
    """Yield names that are imported under another name, and strings that may name something."""
    if isinstance(node, ast.alias) and node.asname:
        yield node.name.rpartition(".")[2]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
