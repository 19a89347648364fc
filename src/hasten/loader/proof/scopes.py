"""Which variables of the script's code may lead to what the items read."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hasten.loader.proof import library
from hasten.loader.proof.aliases import container_of
from hasten.loader.proof.script import Unreadable, applied
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hasten.loader.proof.holders import ReachableNames
    from hasten.loader.proof.script import ScriptCode, Unit


BUILDING = {"__init__", "__new__", "__post_init__"}
_ANY_CLASS = {"cls", "__class__"}
"""What a class may be called in its own methods."""
_PASSING_ON = {"enumerate", "iter", "next", "tqdm", "zip", "islice", "cycle", "chain", "track"}
_MOST_ROUNDS = 16


class VariableScope:
    """The variables of one piece of code.

    Args:
        unit: the code.
        names: by which names the script can get at what the items read.
        known: what is known of all code together.

    Attributes:
        unit: the code.
        nodes: everything in it.
        calls: those in it.
        parameters: of the function, in order.
        first: the first one, where the function is a method.
        near: its own variables that may lead to what the items read, and how near they are.
        loaders: those that are loaders and nothing else: what they give is a batch.
        filled: parameters into which something near is put.
        finds: it is a method that others than items call.
    """

    def __init__(self, unit: Unit, names: ReachableNames, known: Known) -> None:
        self.unit = unit
        self.names = names
        self.known = known
        self.nodes = [node for top in unit.nodes for node in ast.walk(top)]
        self.parameters = _parameters(unit)
        is_method = unit.owner and not _is_static(unit)
        self.first = self.parameters[0] if self.parameters and is_method else ""
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._imported = imported(self.nodes)
        outside = {name for node in self.nodes if isinstance(node, (ast.Global, ast.Nonlocal))
                   for name in node.names}  # fmt: skip
        bound = set(self.parameters) | stored(self.nodes) | set(self._imported)
        self._own = set() if unit.function is None else bound - outside
        self._bindings = [pair for node in self.nodes for pair in bindings(node)]
        self._puts = [pair for node in self.nodes for pair in puts(node)]
        self._puts += [(node.target, node.value) for node in self.nodes
                       if isinstance(node, ast.AugAssign)]  # fmt: skip
        running = unit.frame is not None
        self.near = {name: self._of_names(name) for name in self._own & names.near if running}
        self.loaders = self._own & names.loaders if running else set()
        self.filled: set[str] = set()
        self.finds = False
        self._begin()

    def _begin(self) -> None:
        for name, default in _defaults(self.unit):
            walked = (one.id for one in ast.walk(default) if isinstance(one, ast.Name))
            if any(map(self._of_names, walked)):
                self.near[name] = NEAR
        for node in self.nodes:
            if isinstance(node, ast.ExceptHandler) and node.name:
                self._own |= {node.name}
                self.near[node.name] = NEAR
        if self.unit.function is not None:
            for name, original in self._imported.items():
                self.near[name] = max(self._of_names(original), self._of_names(name))

    def _of_names(self, name: str) -> int:
        if name in self.names.direct:
            return NEAR
        return HOLDS if name in self.names.near else FAR

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """What each node stands in, by the node's id."""
        inside = ((child, node) for node in self.nodes for child in ast.iter_child_nodes(node))
        return {id(child): node for child, node in inside}

    def spread(self) -> None:
        """Add the variables that are set from what is near, until there are no more."""
        grown = True
        while grown:
            before = sum(self.near.values()) + len(self.loaders) + self.known.size
            for target, source, iterates in self._bindings:
                is_loader = self.is_loader(source)
                if found := self._given_by(source, iterates=iterates):
                    self._bind(target, NEAR if iterates else found)
                    if is_loader and isinstance(target, ast.Name) and target.id in self._own:
                        self.loaders.add(target.id)
            for target, source in self._puts:
                if level(self, source):
                    self._put(target)
            self._gives()
            grown = before != sum(self.near.values()) + len(self.loaders) + self.known.size

    def _given_by(self, source: ast.AST, *, iterates: bool) -> int:
        """Return how near what an expression gives to a variable is, or its members."""
        is_loader = self.is_loader(source)
        methods = {"__iter__", "__next__"} if iterates else {"__enter__"}
        if self.known.finding & methods and not is_loader:
            return NEAR
        return FAR if iterates and is_loader else level(self, source)

    def _bind(self, target: ast.AST, found: int) -> None:
        if isinstance(target, ast.Attribute):
            self._raise(self.known.attributes, target.attr, found)
            self._put(target.value)
        elif isinstance(target, ast.Subscript):
            self._put(target.value)
        elif isinstance(target, (ast.Tuple, ast.List, ast.Starred)):
            for one in ast.iter_child_nodes(target):
                self._bind(one, NEAR)
        elif isinstance(target, ast.Name):
            self._reach(target.id, found)

    def _put(self, target: ast.AST) -> None:
        """Follow that something near was put into an object."""
        while isinstance(target, (ast.Attribute, ast.Subscript, ast.Call)):
            if isinstance(target, ast.Attribute):
                self._raise(self.known.attributes, target.attr, HOLDS)
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Yield):
            self._raise(self.known.reached, SENT, NEAR)
        if isinstance(target, ast.Name) and target.id not in self.known.functions:
            self._reach(target.id, HOLDS)
            if target.id in self.parameters:
                self.filled.add(target.id)

    def _reach(self, name: str, found: int) -> None:
        if name in self._own:
            self._raise(self.near, name, found)
        elif name not in self.names.modules:
            self._raise(self.known.reached, name, found)

    @staticmethod
    def _raise(levels: dict[str, int], name: str, found: int) -> None:
        if levels.get(name, FAR) < found:
            levels[name] = found

    def _gives(self) -> None:
        for node in self.nodes:
            if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) and node.value is not None:
                found = level(self, node.value)
                if found:
                    self._raise(self.known.given, self.unit.name, NEAR
                                if not isinstance(node, ast.Return) else found)  # fmt: skip
                if found and self._is_from_outside(node.value):
                    self.known.finding.add(self.unit.name)

    def _is_from_outside(self, node: ast.AST) -> bool:
        """Return whether a special method finds something near in variables of its module."""
        if not (self.finds and self.unit.name.startswith("__")):
            return False
        return any(isinstance(one, ast.Name) and one.id not in self._own
                   and one.id not in self.names.shared and self.level_of(one.id)
                   for one in ast.walk(node))  # fmt: skip

    def level_of(self, name: str) -> int:
        """Return how near a variable is."""
        if name in self._own:
            return self.near.get(name, FAR)
        return max(self._of_names(name), self.known.reached.get(name, FAR))

    def stays(self, parameter: str) -> bool:
        """Return whether a parameter is what it was given, and is not set to something else."""
        return parameter in self.parameters and parameter not in stored(self.nodes)

    def is_near(self, node: ast.AST) -> bool:
        """Return whether an expression may be, or lead to, what items read."""
        return level(self, node) > FAR

    def is_read(self, node: ast.AST) -> bool:
        """Return whether an expression may be what items read, or a part of it."""
        return level(self, node) == NEAR and not self.is_loader(node)

    def is_loader(self, node: ast.AST) -> bool:
        """Return whether an expression is a loader, or gives what a loader gives."""
        if isinstance(node, ast.Name):
            known = self.loaders if node.id in self._own else self.names.loaders
            return node.id in known
        if isinstance(node, ast.Attribute):
            return node.attr in self.names.iterated
        if isinstance(node, ast.Call) and called(node) in _PASSING_ON and node.args:
            return all(self.is_loader(one) or not self.is_near(one) for one in node.args)
        return False

    def is_module(self, node: ast.AST) -> bool:
        """Return whether an expression is a module, or what it is called for."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.names.modules - self._own

    def is_shared(self, node: ast.expr) -> bool:
        """Return whether an expression is, or lies in, a module or class, which all code shares."""
        root: ast.AST = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            if isinstance(root, ast.Attribute) and root.attr == "__class__":
                return True
            root = root.value
        if isinstance(root, ast.Call) and called(root) == "type" and len(root.args) == 1:
            return True
        if not isinstance(root, ast.Name):
            return False
        if self.unit.function is not None and root.id in self._imported:
            return True
        return root.id in self.names.shared - self._own

    def is_content(self, name: str) -> bool:
        """Return whether a variable holds what can be written in place."""
        if name not in self.names.variables:
            return False
        return name not in self._own or name in self.near


def scopes_of(
    code: ScriptCode, names: ReachableNames, is_of_items: Callable[[Unit], bool]
) -> list[VariableScope]:
    """Return the scopes of code that can still run, with what is passed from one to another.

    Args:
        code: what can still run.
        names: by which names the script can get at what the items read.
        is_of_items: tells of code whether items run it.
    """
    classes = {unit.owner for unit in code.units} - {""}
    known = Known(code.functions, code.methods, code.stored, classes, code.aliases)
    scopes = [VariableScope(unit, names, known) for unit in code.units]
    known.moves_path = any(map(_is_path, (node for scope in scopes for node in scope.nodes)))
    for scope in scopes:
        scope.finds = bool(scope.unit.owner) and not is_of_items(scope.unit)
    by_name = _by_name(scopes, code)
    for _ in range(_MOST_ROUNDS):
        before = known.size
        for scope in scopes:
            scope.spread()
        if not _pass_on(scopes, by_name) and known.size == before:
            return scopes
    raise Unreadable("the script's code is too large to be followed")


def _is_path(node: ast.AST) -> bool:
    """Return whether this is `sys.path`."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(one.name in ("path", "*") for one in node.names)
    is_path = isinstance(node, ast.Attribute) and node.attr == "path"
    return is_path and getattr(node.value, "id", "sys") == "sys"  # type: ignore[attr-defined]


def _by_name(scopes: Iterable[VariableScope], code: ScriptCode) -> dict[str, list[VariableScope]]:
    """Return the functions by the names that they are called by, those of classes by these."""
    by_name: dict[str, list[VariableScope]] = {}
    for scope in scopes:
        unit = scope.unit
        if unit.frame is not None or unit.function is None:
            continue
        is_building = unit.name in BUILDING
        heirs = heirs_of(unit.owner, code.parents) if is_building else set[str]()
        called_by = heirs | (_ANY_CLASS if is_building else set()) | {unit.name}
        called_by |= {one for one, targets in code.aliases.items() if targets & called_by}
        for name in called_by:
            by_name.setdefault(name, []).append(scope)
        if heirs & code.handed:
            scope.near |= dict.fromkeys(scope.parameters[1:], NEAR)
        elif not is_building:
            _hand_over(scope, code)
    return by_name


def _hand_over(scope: VariableScope, code: ScriptCode) -> None:
    """Let what nobody's code passes be near, where anybody may call a function."""
    unit, names = scope.unit, scope.names
    is_handed = unit.name == "<lambda>" or unit.name in code.handed
    if is_handed or unit.name.startswith("__"):
        scope.near |= dict.fromkeys(scope.parameters, NEAR)
    elif (unit.owner, unit.name) in code.overriding and unit.owner in names.leaders:
        scope.near |= dict.fromkeys(scope.parameters[:1], HOLDS)
    is_special = scope.first in scope.near and not is_handed
    if is_special and unit.owner not in names.kinds:
        # Python calls it of its own objects. These are not read, and may hold nothing that is.
        heirs = heirs_of(unit.owner, code.parents)
        family = heirs.union(*(_ancestors(heir, code.parents) for heir in heirs))
        leads = bool(family & (names.leaders | names.kinds | names.near))
        scope.near[scope.first] = HOLDS if leads or not heirs <= code.plain else FAR


def heirs_of(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return a class and those that are derived from it."""
    found: set[str] = set()
    fresh = {name}
    while fresh:
        found |= fresh
        fresh = {heir for heir, given in parents.items() if given & fresh} - found
    return found


def _ancestors(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return the classes of the script that a class is derived from."""
    found: set[str] = set()
    fresh = {name}
    while fresh:
        fresh = set[str]().union(*(parents[one] for one in fresh)) & parents.keys() - found
        found |= fresh
    return found


def _pass_on(scopes: Sequence[VariableScope], by_name: Mapping[str, list[VariableScope]]) -> bool:
    """Let what is near be passed in calls; return whether anything was."""
    changed = False
    for scope in scopes:
        for node in scope.calls:
            for call in (node, *_call_of_applied(node)):
                for target in by_name.get(callee(call), ()):
                    changed |= _pass_to(scope, call, target)
    return changed


def callee(call: ast.Call) -> str:
    """Return the last name of what is called, that of a class where the call asks for a class.

    Of what is taken from a container it is the name of that.
    """
    inner = call.func
    if isinstance(inner, ast.Subscript):
        inner = container_of(inner)
        return str(getattr(inner, "attr", getattr(inner, "id", "")))
    is_type = isinstance(inner, ast.Call) and called(inner) == "type"
    return "__class__" if is_type else called(call)


def _call_of_applied(node: ast.Call) -> list[ast.Call]:
    """Return the call that `one.apply(function, *more)` makes: `function(one, *more)`."""
    function = applied(node)
    if function is None or not isinstance(node.func, ast.Attribute):
        return []
    given: list[ast.expr] = [ast.Starred(value=one, ctx=ast.Load()) for one in node.args[1:]]
    return [ast.Call(func=function, args=args, keywords=node.keywords)
            for args in ([node.func.value, *node.args[1:]], given)]  # fmt: skip


def _pass_to(scope: VariableScope, node: ast.Call, target: VariableScope) -> bool:
    """Give what a call passes to the parameters of a function of that name."""
    names = _positional(target.unit)
    given: list[tuple[str, ast.AST]] = []
    if target.first:
        names = names[1:]
        if isinstance(node.func, ast.Attribute):
            given.append((target.first, node.func.value))
            value = node.func.value
            if getattr(value, "attr", getattr(value, "id", "")) in scope.known.functions:
                given += list(zip([target.first, *names], node.args, strict=False))
    elif names and isinstance(node.func, ast.Attribute) and not target.unit.owner:
        given.append((names[0], node.func.value))  # it may have become a method
        given += list(zip(names[1:], node.args, strict=False))
    spreads = any(isinstance(one, ast.Starred) for one in node.args)
    if spreads or any(one.arg is None for one in node.keywords):
        given += [(name, node) for name in target.parameters]
        given += [(name, one) for name in target.parameters
                  for one in (*node.args, *(more.value for more in node.keywords))]  # fmt: skip
    rest = [name for name in target.parameters if name not in names and name != target.first]
    given += list(zip(names, node.args, strict=False))
    given += [(name, one) for name in rest for one in node.args[len(names) :]]
    given += [(one.arg, one.value) for one in node.keywords if one.arg in target.parameters]
    given += [(name, one.value) for one in node.keywords if one.arg not in target.parameters
              for name in rest]  # fmt: skip
    return _take(scope, target, given)


def _take(
    scope: VariableScope, target: VariableScope, given: Iterable[tuple[str, ast.AST]]
) -> bool:
    grown = False
    for name, value in given:
        found, is_loader = level(scope, value), scope.is_loader(value)
        if name in target.filled and not found:
            scope._put(value)
            grown |= level(scope, value) > FAR
        if found > target.near.get(name, FAR):
            if is_loader and name not in target.near:
                target.loaders.add(name)
            target.near[name] = found
            grown = True
        if found and name in target.loaders and not is_loader:
            target.loaders.discard(name)
            grown = True
    return grown


def _positional(unit: Unit) -> list[str]:
    arguments = getattr(unit.function, "args", None)
    if arguments is None:
        return []
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)]


def _is_static(unit: Unit) -> bool:
    decorators = getattr(unit.function, "decorator_list", [])
    return any(getattr(one, "id", "") == "staticmethod" for one in decorators)


def _defaults(unit: Unit) -> list[tuple[str, ast.AST]]:
    """Return the parameters of a function that have defaults, with these."""
    arguments = getattr(unit.function, "args", None)
    if arguments is None:
        return []
    names = _positional(unit)[-len(arguments.defaults) :] if arguments.defaults else []
    found: list[tuple[str, ast.AST]] = list(zip(names, arguments.defaults, strict=True))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found + [(one.arg, default) for one, default in named if default is not None]


def _parameters(unit: Unit) -> list[str]:
    arguments = getattr(unit.function, "args", None)
    if arguments is None:
        return []
    listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    many = (one for one in (arguments.vararg, arguments.kwarg) if one)
    return [one.arg for one in (*listed, *many)]


# ---- what a piece of code binds to variables, and puts into objects

_PUTTING_INTO_FIRST = {
    "setattr",
    "heappush",
    "heappushpop",
    "heapreplace",
    "insort",
    "insort_left",
    "insort_right",
    "setitem",
    "iadd",
    "__setattr__",
}


def puts(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Return into what a call puts its arguments."""
    if not isinstance(node, ast.Call):
        return []
    if called(node) in _PUTTING_INTO_FIRST and len(node.args) > 1:
        found: list[tuple[ast.AST, ast.AST]] = [(node.args[0], one) for one in node.args[1:]]
        named = node.args[1]
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            target = ast.Attribute(value=node.args[0], attr=named.value, ctx=ast.Store())
            found += [(target, one) for one in node.args[2:]]
        return found
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in PUTTING:
        return []
    targets = [node.func.value, *([ast.Yield()] if "send" in node.func.attr else [])]
    return [(target, one) for target in targets for one in (*node.args, *node.keywords)]


def bindings(node: ast.AST) -> list[tuple[ast.AST, ast.AST, bool]]:
    """Return which targets a node binds to which expressions, and whether to their members."""
    if isinstance(node, ast.Assign):
        passes = isinstance(node.value, ast.Call) and called(node.value) == "next"
        return [(target, node.value, passes) for target in node.targets]
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        return [(node.target, node.value, False)]
    if isinstance(node, (ast.For, ast.comprehension)):
        return [(node.target, node.iter, True)]
    if isinstance(node, ast.Match):
        names = [
            name
            for one in node.cases
            for part in ast.walk(one.pattern)
            for name in (getattr(part, "name", None), getattr(part, "rest", None))
            if name
        ]
        return [(ast.Name(id=name, ctx=ast.Store()), node.subject, False) for name in names]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr, False)]
    return []


def imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the variables that are bound by imports, with the names that these have there."""
    return {
        (one.asname or one.name.partition(".")[0]): one.name.rpartition(".")[2]
        for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for one in node.names
    }  # fmt: skip


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that are stored into."""
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


# ---- how near an expression of the script's code is to what the items read

FAR, HOLDS, NEAR = 0, 1, 2
"""It cannot lead there; it holds something that can; it may be what is read, or a part of it."""

SENT = "yield"
"""Stands for what generators are sent."""

FIGURES = {"shape", "dtype", "ndim", "size", "nbytes", "device", "columns", "itemsize"}
_COUNTS = words(
    "len print isinstance type str repr bool int float unique bincount mean std id hash any all "
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
"""Functions of modules that make texts, or new pictures, of texts."""
_COLLECTING = words("list tuple set dict sorted frozenset zip enumerate reversed deque chain iter")
_OF_CONTAINERS = words(
    "get pop popleft items values keys copy setdefault popitem append apply parameters buffers "
    "modules children named_parameters named_buffers named_modules named_children"
)
PUTTING = words(
    "append add insert extend update put appendleft setdefault push put_nowait send asend"
)


@dataclass
class Known:
    """What is known of all code of the script together.

    Attributes:
        functions: names of its functions and classes.
        methods: of those in classes.
        stored: attributes that it sets.
        classes: names of its classes.
        aliases: variables by which its functions and classes are called, with the names of these.
        moves_path: it may add places from which modules are imported.
        given: functions that return something near, or hold it, by their names.
        finding: special methods that return something near, whatever they are called of.
        reached: variables of modules that lead there since the code ran, and how near they are.
        attributes: the same of attributes.
    """

    functions: set[str]
    methods: set[str]
    stored: set[str]
    classes: set[str]
    aliases: Mapping[str, set[str]]
    moves_path: bool = False
    given: dict[str, int] = field(default_factory=dict)
    finding: set[str] = field(default_factory=set)
    reached: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much is known; it only grows."""
        levels = (self.given, self.reached, self.attributes)
        return len(self.finding) + sum(sum(one.values()) for one in levels)


def level(scope: VariableScope, node: ast.AST | None) -> int:
    """Return how near an expression is."""
    if isinstance(node, ast.Name):
        return scope.level_of(node.id)
    if scope.known.finding and scope.known.finding & _FINDING.get(type(node), set()):
        return NEAR
    follow = _FOLLOWED.get(type(node))
    if follow is not None:
        return follow(scope, node)
    if isinstance(node, _FIGURING) or node is None:
        return FAR
    if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Mult, ast.BitOr)):
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


def _of_attribute(scope: VariableScope, node: ast.Attribute) -> int:
    known, names = scope.known, scope.names
    given = known.given.get(node.attr, FAR)  # a property, say
    put = known.attributes.get(node.attr, FAR)  # since the code ran, into whatever object
    if given or node.attr in FIGURES or not level(scope, node.value):
        return max(given, put)
    if node.attr in names.direct:
        return NEAR
    if node.attr in known.attributes:
        return known.attributes[node.attr]
    if node.attr in names.leading:
        return HOLDS
    return FAR if node.attr in known.stored else NEAR


def _of_call(scope: VariableScope, node: ast.Call) -> int:
    if targets := scope.known.aliases.get(callee(node)):
        given = (level(scope, one) for one in (node.func, *node.args, *node.keywords))
        return NEAR * any((*given, *(scope.known.given.get(target, FAR) for target in targets)))
    return _of_named_call(scope, node)


def _of_named_call(scope: VariableScope, node: ast.Call) -> int:
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
    if name in known.functions and not (owner is not None and name in _OF_CONTAINERS):
        own = scope.level_of(name) if owner is None else FAR
        builds = name[:1].isupper() or name in known.classes
        built = HOLDS if builds and any(level(scope, one) for one in given) else FAR
        return max(known.given.get(name, FAR), built, own and NEAR)
    if name in _COUNTS or (is_module and name in _MAKING):
        return FAR
    found = max((level(scope, one) for one in given), default=FAR)
    if not is_module:
        found = max(found, level(scope, node.func if owner is None else owner))
    collects = name in _COLLECTING or (is_module and library.copies("torch", name))
    return min(found, HOLDS) if collects else NEAR * bool(found)


def _is_made_of_texts(scope: VariableScope, node: ast.Call, *, is_module: bool) -> bool:
    """Return whether a call gives a batch of a loader, or what is made of texts alone."""
    name, owner = called(node), getattr(node.func, "value", None)
    if name == "next" and node.args and scope.is_loader(node.args[0]):
        return True
    if owner is not None and not is_module:
        return _is_text(scope, owner)
    return name in _OF_TEXTS and name not in scope.known.functions


def _is_text(scope: VariableScope, node: ast.AST) -> bool:
    """Return whether an expression is a text, whose methods make nothing but texts of it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("str", "repr") and node.func.id not in scope.known.functions
    return isinstance(node, (ast.Constant, ast.JoinedStr))


def _is_plain_content(scope: VariableScope, node: ast.AST) -> bool:
    """Return whether an expression is an array, or a container of nothing that can be written."""
    name, names = getattr(node, "attr", getattr(node, "id", "")), scope.names
    return name in (names.attributes | names.variables) - names.collecting


def called(node: ast.Call) -> str:
    """Return the last name of what is called; empty where it has none."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _of_value(scope: VariableScope, node: Any) -> int:
    return level(scope, node.value)


def _sent(scope: VariableScope, node: ast.Yield) -> int:
    del node
    return scope.known.reached.get(SENT, FAR)


_FINDING: dict[type, set[str]] = {
    ast.Attribute: {"__getattr__", "__getattribute__"}, ast.Subscript: {"__getitem__"},
    ast.Call: {"__call__", "__iter__", "__next__", "__enter__"},
}  # fmt: skip
_FIGURING = (ast.JoinedStr, ast.Compare, ast.Constant, ast.UnaryOp)
_FOLLOWED: dict[type, Callable[[VariableScope, Any], int]] = {
    ast.Attribute: _of_attribute, ast.Call: _of_call,
    ast.Subscript: lambda scope, node: NEAR if level(scope, node.value) else FAR,
    ast.IfExp: lambda scope, node: max(level(scope, node.body), level(scope, node.orelse)),
    ast.BoolOp: lambda scope, node: max(level(scope, one) for one in node.values),
    ast.NamedExpr: _of_value, ast.Starred: _of_value, ast.Await: _of_value,
    ast.YieldFrom: _of_value, ast.keyword: _of_value,
    ast.Yield: _sent,
}  # fmt: skip
