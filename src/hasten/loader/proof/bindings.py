"""What a piece of code calls, binds to variables and puts into objects."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.aliases import container_of
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_PUTTING_INTO_FIRST = words(
    "setattr heappush heappushpop heapreplace insort insort_left insort_right setitem iadd "
    "__setattr__"
)
_BEFORE_COLLATE = 6
"""How many parameters a `DataLoader` has before its collate function."""
_FOR = (ast.For, ast.AsyncFor)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp,
          ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip
_PUTTING = words("append add insert extend update put appendleft setdefault push put_nowait")


class Returned(ast.expr):
    """What a call that is running will return: nothing more is evaluated or called for it."""

    def __init__(self, call: ast.Call) -> None:
        super().__init__()
        self.call = call


class Part(ast.expr):
    """What stands at one place of a value that is taken apart."""

    def __init__(self, whole: ast.AST, place: int) -> None:
        super().__init__()
        self.whole = whole
        self.place = place


def called(node: ast.Call) -> str:
    """Return the last name of what is called; empty where it has none."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def callee(call: ast.Call) -> str:
    """Return the last name of what is called; `__class__` if a class obtained by `type()` is.

    For something taken from a container, it is the container's name.
    """
    inner = call.func
    if isinstance(inner, ast.Subscript):
        inner = container_of(inner)
        return str(getattr(inner, "attr", getattr(inner, "id", "")))
    is_type = isinstance(inner, ast.Call) and called(inner) == "type"
    return "__class__" if is_type else called(call)


def puts(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Return the targets that a call puts its arguments into, each with the argument."""
    if not isinstance(node, ast.Call):
        return []
    if called(node) in _PUTTING_INTO_FIRST and len(node.args) > 1:
        found: list[tuple[ast.AST, ast.AST]] = [(node.args[0], one) for one in node.args[1:]]
        named = node.args[1]
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            target = ast.Attribute(value=node.args[0], attr=named.value, ctx=ast.Store())
            found += [(target, one) for one in node.args[2:]]
        return found
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _PUTTING:
        return []
    return [(node.func.value, one) for one in (*node.args, *node.keywords)]


def parts(target: Any, source: ast.AST | None) -> list[tuple[ast.AST, ast.AST | None]]:
    """Return the targets that a value is taken apart into, each with its part of it if known."""
    targets = [target.value] if isinstance(target, ast.Starred) else target.elts
    given = source.elts if isinstance(source, ast.Tuple) else targets
    is_starred = any(isinstance(one, ast.Starred) for one in (target, *targets, *given))
    if source is None or is_starred or len(given) != len(targets):
        return [(one, None) for one in targets]
    if given is targets:
        return [(one, Part(source, place)) for place, one in enumerate(targets)]
    return list(zip(targets, given, strict=True))


def makes_batches(call: ast.Call, is_none: Callable[[ast.AST], bool]) -> bool:
    """Return whether a loader is made by this call as one that collates its items to batches.

    Args:
        call: the call.
        is_none: tells whether an expression may be None.
    """
    named = {one.arg: one.value for one in call.keywords}
    is_starred = None in named or any(isinstance(one, ast.Starred) for one in call.args)
    sizes = [*call.args[1:2], *(named[one] for one in ("batch_size",) if one in named)]
    return not (is_starred or any(map(is_none, sizes)) or len(call.args) > _BEFORE_COLLATE)


def bindings(node: ast.AST) -> list[tuple[ast.AST, ast.AST, bool]]:
    """Return which targets a node binds to which expressions, and whether to their members."""
    if isinstance(node, ast.Assign):
        passes = isinstance(node.value, ast.Call) and called(node.value) == "next"
        return [(target, node.value, passes) for target in node.targets]
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        return [(node.target, node.value, False)]
    if isinstance(node, (*_FOR, ast.comprehension)):
        return [(node.target, node.iter, True)]
    if isinstance(node, ast.Match):
        part_of = ast.Subscript(value=node.subject, slice=ast.Slice(), ctx=ast.Load())
        return [
            (ast.Name(name, ast.Store()), node.subject if part is one.pattern else part_of, False)
            for one in node.cases
            for part in ast.walk(one.pattern)
            for name in (getattr(part, "name", None), getattr(part, "rest", None))
            if name
        ]
    if isinstance(node, ast.ClassDef):
        inside = [found for one in node.body for found in bindings(one)]
        return [(ast.Attribute(ast.Name(node.name), target.id, ast.Store()), source, iterates)
                for target, source, iterates in inside if isinstance(target, ast.Name)]  # fmt: skip
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr, False)]
    return []


def imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the variables that imports bind, with the names imported."""
    return {
        (one.asname or one.name.partition(".")[0]): one.name.rpartition(".")[2]
        for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for one in node.names
    }  # fmt: skip


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that are stored into."""
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def is_own_list(use: ast.Name, nodes: Sequence[ast.AST], parents: Mapping[int, ast.AST]) -> bool:
    """Return whether a variable of a function is still a list that the function began empty.

    So it is if whatever else the variable is set to is set by a plain statement that stands behind
    the use, in no loop with it.

    Args:
        use: the variable where it is used.
        nodes: all of the function.
        parents: what each of them is in, by the node's id.
    """
    name, loops = use.id, _loops_around(use, parents)
    if loops is None or any(name in _named(node) for node in nodes):
        return False
    begun = False
    for node in nodes:
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Load):
            continue
        statement, around = parents.get(id(node)), _loops_around(node, parents)
        if around is None or not isinstance(statement, ast.Assign) or statement.targets != [node]:
            return False
        is_before = node.lineno < use.lineno
        is_empty = isinstance(statement.value, ast.List) and not statement.value.elts
        if not is_empty and (is_before or node.lineno == use.lineno or loops & around):
            return False
        begun |= is_empty and is_before
    return begun


def _named(node: ast.AST) -> set[str | None]:
    """Return what a node names in a string: an exception, a module, a pattern, a function."""
    return {getattr(node, kind, None) for kind in ("name", "asname", "rest", "arg")}


def _loops_around(node: ast.AST, parents: Mapping[int, ast.AST]) -> set[int] | None:
    """Return the loops around a node, by their ids; None within code that may run another time."""
    loops = set()
    above = parents.get(id(node))
    while above is not None:
        if isinstance(above, _INNER):
            return None
        if isinstance(above, (*_FOR, ast.While)):
            loops.add(id(above))
        above = parents.get(id(above))
    return loops
