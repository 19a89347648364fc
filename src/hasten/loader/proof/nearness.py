"""How near an expression of the script's code is to what the items read."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hasten.loader.proof import library
from hasten.loader.proof.bindings import Returned, called, callee
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.loader.proof.holders import ReachableNames

FAR, HOLDS, NEAR = 0, 1, 2
"""It cannot lead to what is read; it holds something that can; it may be what is read itself."""

FIGURES = {"shape", "dtype", "ndim", "size", "nbytes", "device", "columns", "itemsize"}
_COUNTS = words(
    "len print isinstance str repr bool int float unique bincount mean std id hash any all "
    "Counter range item tolist shape format callable hasattr round abs numel size dim average "
    "median var argmax argmin"
)
_MAKING = words(
    "zeros ones empty zeros_like ones_like empty_like rand randn randint randperm arange linspace "
    "eye"
)
"""Functions of torch and NumPy that make new numbers, whatever they are given."""
_OF_TEXTS = words(
    "join splitext basename dirname abspath realpath normpath listdir glob exists isfile isdir "
    "imread"
)
"""Functions of modules that make strings, or new images, from strings."""
_COLLECTING = words("list tuple set dict sorted frozenset zip enumerate reversed deque chain iter")
OF_CONTAINERS = words(
    "get pop popleft items values keys copy setdefault popitem append apply get_nowait recv result "
    "parameters buffers modules children named_parameters named_buffers named_modules "
    "named_children"
)


@dataclass
class Levels:
    """How near names are to what items read.

    Attributes:
        of: how near each of them is.
        others: those that may be something near other than a loader, whose members are batches.
    """

    of: dict[str, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def get(self, name: str) -> int:
        """Return how near a name is."""
        return self.of.get(name, FAR)

    def add(self, name: str, found: int, *, is_loader: bool = False) -> None:
        """Note how near a name is, too."""
        if found > self.get(name):
            self.of[name] = found
        if found and not is_loader:
            self.others.add(name)

    @property
    def size(self) -> int:
        """How much is known; it only grows."""
        return sum(self.of.values()) + len(self.others)


@dataclass
class Known:
    """What is known about all of the script's code together.

    Attributes:
        functions: names of its functions and classes.
        methods: names of the functions in its classes.
        stored: attributes that it sets.
        classes: names of its classes.
        aliases: variables by which its functions and classes are called, with the names of those.
        moves_path: whether it may change where modules are imported from.
        given: functions that return something near, or hold it, by their names.
        finding: special methods that return something near, whatever they are called on, and
            functions that do so, whatever they are given.
        reached: variables of modules that lead there since the code ran, and how near they are.
        attributes: the same for attributes.
        nothing: names of whatever may be None.
    """

    functions: set[str]
    methods: set[str]
    stored: set[str]
    classes: set[str]
    aliases: Mapping[str, set[str]]
    moves_path: bool = False
    given: Levels = field(default_factory=Levels)
    finding: set[str] = field(default_factory=set)
    reached: Levels = field(default_factory=Levels)
    attributes: Levels = field(default_factory=Levels)
    nothing: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """How much is known; it only grows."""
        return len(self.finding) + self.given.size + self.reached.size + self.attributes.size


class CodeScope(Protocol):
    """What has to be known of the code around an expression (`scopes.VariableScope`)."""

    names: ReachableNames
    known: Known
    parameters: list[str]

    def level_of(self, name: str) -> int:
        """Return how near a variable is."""

    def stays(self, parameter: str) -> bool:
        """Return whether a parameter is what it was given, and is not set to something else."""

    def hands_out(self, name: str) -> bool:
        """Return whether this is a function by which anybody who calls it gets something near."""

    def is_loader(self, node: ast.AST) -> bool:
        """Return whether an expression is a loader, or yields what a loader yields."""

    def is_module(self, node: ast.AST) -> bool:
        """Return whether an expression is a module, or what it is called for."""


def level(scope: CodeScope, node: ast.AST | None) -> int:
    """Return how near an expression is."""
    if isinstance(node, ast.Name):
        return max(scope.level_of(node.id), HOLDS * scope.hands_out(node.id))
    if scope.known.finding and scope.known.finding & _FINDING.get(type(node), set()):
        return NEAR
    follow = _FOLLOWED.get(type(node))
    if follow is not None:
        return follow(scope, node)
    if isinstance(node, _FIGURING) or node is None:
        return FAR
    if isinstance(node, ast.BinOp) and not isinstance(node.op, _KEEPING_PARTS):
        return FAR
    return HOLDS if any(level(scope, one) for one in _children(node)) else FAR


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.key, node.value]
    if isinstance(node, ast.Lambda):
        return [one for one in ast.walk(node.body) if isinstance(one, ast.Name)]
    return list(ast.iter_child_nodes(node))


def _of_attribute(scope: CodeScope, node: ast.Attribute) -> int:
    known, names = scope.known, scope.names
    given = known.given.get(node.attr)  # a property, say
    put = known.attributes.get(node.attr)  # since the code ran, into whatever object
    is_figure = node.attr in FIGURES - names.direct - names.leading
    if given or is_figure or not level(scope, node.value):
        return max(given, put)
    if node.attr in names.direct:
        return NEAR
    if put:
        return put
    if node.attr in names.leading:
        return HOLDS
    return FAR if node.attr in known.stored else NEAR


def _of_call(scope: CodeScope, node: ast.Call) -> int:
    if targets := scope.known.aliases.get(callee(node)):
        given = (level(scope, one) for one in (node.func, *node.args, *node.keywords))
        return NEAR * any((*given, *map(scope.known.given.get, targets)))
    if getattr(node.func, "id", "") == "type" and len(node.args) == 1:
        return level(scope, node.args[0])  # what is set on a class is seen in its objects
    return _of_named_call(scope, node)


def _of_named_call(scope: CodeScope, node: ast.Call) -> int:
    known, name = scope.known, called(node)
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    given = [*node.args, *node.keywords]
    is_module = owner is not None and scope.is_module(owner)
    if _is_made_of_texts(scope, node, is_module=is_module):
        return FAR
    copies = library.COPYING_METHODS - {"copy"} - known.methods
    if owner is not None and not is_module and name in copies:
        return FAR
    if name == "copy" and owner is not None and _is_plain_content(scope, owner):
        return FAR
    if name == "super" and owner is None:
        given = [*given, *(ast.Name(one) for one in scope.parameters[:1])]
    if name in known.functions and not (owner is not None and name in OF_CONTAINERS):
        own = scope.level_of(name) if owner is None else FAR
        builds = name[:1].isupper() or name in known.classes
        built = HOLDS if builds and any(level(scope, one) for one in given) else FAR
        return max(known.given.get(name), built, own and NEAR)
    if name in _COUNTS or (is_module and name in _MAKING):
        return FAR
    found = max((level(scope, one) for one in given), default=FAR)
    if not is_module:
        asked = node.func if owner is None or _is_kept(scope, node.func) else owner
        found = max(found, level(scope, asked))
    collects = name in _COLLECTING or (is_module and library.copies("torch", name))
    return min(found, HOLDS) if collects else NEAR * bool(found)


def _is_kept(scope: CodeScope, node: ast.expr) -> bool:
    """Return whether a method calls what its object keeps in an attribute, such as a network."""
    known = scope.known
    own, name = getattr(getattr(node, "value", None), "id", ""), getattr(node, "attr", "")
    is_own = own == "self" and scope.parameters[:1] == ["self"] and scope.stays("self")
    if "forward" in known.finding:  # a network may give something near, whatever it is given
        return False
    return is_own and name in known.stored - known.methods - known.functions - OF_CONTAINERS


def _is_made_of_texts(scope: CodeScope, node: ast.Call, *, is_module: bool) -> bool:
    """Return whether a call gives a loader's batch, or something made from strings alone."""
    name, owner = called(node), getattr(node.func, "value", None)
    if name == "next" and node.args and scope.is_loader(node):
        return True
    if owner is not None and not is_module:
        return _is_text(scope, owner)
    return name in _OF_TEXTS and name not in scope.known.functions


def _is_text(scope: CodeScope, node: ast.AST) -> bool:
    """Return whether an expression is a string, whose methods give nothing but strings."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("str", "repr") and node.func.id not in scope.known.functions
    return isinstance(node, (ast.Constant, ast.JoinedStr))


def _is_plain_content(scope: CodeScope, node: ast.AST) -> bool:
    """Return whether an expression is an array, or a container that holds nothing writable."""
    name, names = getattr(node, "attr", getattr(node, "id", "")), scope.names
    return name in (names.attributes | names.variables) - names.collecting


def _of_value(scope: CodeScope, node: Any) -> int:
    return level(scope, node.value)


_FINDING: dict[type, set[str]] = {
    ast.Attribute: {"__getattr__", "__getattribute__"}, ast.Subscript: {"__getitem__"},
    ast.Call: {"__call__", "__iter__", "__next__", "__enter__"},
}  # fmt: skip
_KEEPING_PARTS = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)
"""Operators of lists and sets, whose result has the members of the operands."""
_FIGURING = (ast.JoinedStr, ast.Compare, ast.Constant, ast.UnaryOp)
_FOLLOWED: dict[type, Callable[[CodeScope, Any], int]] = {
    ast.Attribute: _of_attribute, ast.Call: _of_call,
    Returned: lambda scope, node: _of_call(scope, node.call),
    ast.Subscript: lambda scope, node: NEAR if level(scope, node.value) else FAR,
    ast.IfExp: lambda scope, node: max(level(scope, node.body), level(scope, node.orelse)),
    ast.BoolOp: lambda scope, node: max(level(scope, one) for one in node.values),
    ast.NamedExpr: _of_value, ast.Starred: _of_value, ast.Await: _of_value,
    ast.YieldFrom: _of_value, ast.keyword: _of_value,
    ast.Yield: lambda scope, node: FAR,
}  # fmt: skip
