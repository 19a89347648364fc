"""Which variables of the script's code may lead to what the items read."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hasten.loader.proof.bindings import (
    Part,
    bindings,
    called,
    callee,
    imported,
    is_own_list,
    makes_batches,
    parts,
    puts,
    stored,
)
from hasten.loader.proof.nearness import FAR, HOLDS, NEAR, OF_CONTAINERS, Known, Levels, level
from hasten.loader.proof.script import Unreadable, ancestors_of, applied, heirs_of, names_of
from hasten.loader.proof.sizes import given_by, given_to, may_be_none, none_names
from hasten.loader.proof.source import first_line
from hasten.loader.proof.stored_names import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hasten.loader.proof.holders import ReachableNames
    from hasten.loader.proof.script import ScriptCode, Unit
    from hasten.loader.proof.sizes import Given


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
        known: what is known about all the code together.

    Attributes:
        unit: the code.
        nodes: all its syntax nodes.
        calls: the calls among them.
        parameters: the function's parameters, in order.
        first: the first one, where the function is a method.
        near: its own variables that may lead to what the items read, and how near they are.
        filled: parameters into which something near is put.
        found: its own variables that it sets from what is near outside of it.
        finds: whether others get from it what it finds outside: it is a function, or a special
            method that code other than the items calls.
        hands: whether they get something near; from any other method, those that hold it.
    """

    def __init__(self, unit: Unit, names: ReachableNames, known: Known) -> None:
        self.unit = unit
        self.names = names
        self.known = known
        self.nodes = [node for top in unit.nodes for node in ast.walk(top)]
        self.parameters = _parameters(unit)
        decorators = getattr(unit.function, "decorator_list", [])
        is_static = any(getattr(one, "id", "") == "staticmethod" for one in decorators)
        self.first = self.parameters[0] if self.parameters and unit.owner and not is_static else ""
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._imported = imported(self.nodes)
        outside = {name for node in self.nodes if isinstance(node, (ast.Global, ast.Nonlocal))
                   for name in node.names}  # fmt: skip
        mine = list(within(unit.nodes))
        own = {*self.parameters, *stored(mine), *imported(mine)} - outside
        inner = {*own, *stored(self.nodes), *self._imported} - outside
        # A name that only code inside binds, a comprehension say, may be another variable here.
        self._own, self._inner = (own, inner) if unit.function is not None else (set(), set())
        self._bindings = [pair for node in self.nodes for pair in bindings(node)]
        self._defined = {one.name for one in self.nodes if isinstance(one, ast.FunctionDef)}
        self._puts = [pair for node in self.nodes for pair in puts(node)]
        self._puts += [(node.target, node.value) for node in self.nodes
                       if isinstance(node, ast.AugAssign)]  # fmt: skip
        running = unit.frame is not None
        self.near = Levels()
        for name in self._own & names.near if running else ():
            self.near.add(name, self._of_names(name), is_loader=name in names.loaders)
        self.filled: set[str] = set()
        self.found: set[str] = set()
        self.finds = unit.function is not None and not unit.owner
        self.hands = False
        self._begin()

    def _begin(self) -> None:
        for name, default in _defaults(self.unit):
            walked = (one.id for one in ast.walk(default) if isinstance(one, ast.Name))
            if any(map(self._of_names, walked)):
                is_loader = self.unit.frame is not None and name in self.names.loaders
                self.near.add(name, NEAR, is_loader=is_loader)
        for node in self.nodes:
            if isinstance(node, ast.ExceptHandler) and node.name:
                self._inner.add(node.name)
                self.near.add(node.name, NEAR)
        if self.unit.function is not None:
            for name, original in self._imported.items():
                self.near.add(name, max(self._of_names(original), self._of_names(name)))

    def lead(self, names: Iterable[str], found: int) -> None:
        """Note that some of its variables may be near, whatever they are."""
        for name in names:
            self.known.nothing.add(name)
            self.near.add(name, found)

    def sets(self) -> Iterator[Given]:
        """Yield what its code sets, and to what."""
        yield from ((ast.Name(name), value) for name, value in _defaults(self.unit))
        yield from self._puts
        for target, source, iterates in self._bindings:
            yield from given_to(target, source, iterates=iterates)
        for node in self.nodes:
            yield from given_by(node)

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
            before = self._size
            for target, source, iterates in self._bindings:
                if found := self._given_by(source, iterates=iterates):
                    self._bind(target, found, None if iterates else source)
                    if self._is_from_outside(source):
                        self.found |= {one.id for one in ast.walk(target)
                                       if isinstance(one, ast.Name)} & self._inner  # fmt: skip
            for target, source in self._puts:
                if level(self, source):
                    self._put(target)
            self._gives()
            grown = before != self._size

    @property
    def _size(self) -> int:
        return self.near.size + len(self.found) + self.known.size

    def _given_by(self, source: ast.AST, *, iterates: bool) -> int:
        """Return how near a value is that an expression gives to a variable, or its members."""
        is_loader = self.is_loader(source)
        methods = {"__iter__", "__next__"} if iterates else {"__enter__"}
        if self.known.finding & methods and not (is_loader and self.is_near(source)):
            return NEAR
        if iterates:
            return FAR if is_loader else NEAR * self.is_near(source)
        return level(self, source)

    def _bind(self, target: ast.AST, found: int, source: ast.AST | None) -> None:
        is_loader = source is not None and self.is_loader(source)
        if isinstance(target, ast.Attribute):
            self.known.attributes.add(target.attr, found, is_loader=is_loader)
            self._put(target.value)
        elif isinstance(target, ast.Subscript):
            self._put(target.value)
        elif isinstance(target, (ast.Tuple, ast.List, ast.Starred)):
            for one, part in parts(target, source):
                is_seen = part is not None and not isinstance(part, Part)
                if found := level(self, part) if is_seen else NEAR:
                    self._bind(one, found, part)
        elif isinstance(target, ast.Name):
            self._reach(target.id, found, is_loader=is_loader)

    def _put(self, target: ast.AST) -> None:
        """Follow that something near was put into an object."""
        while isinstance(target, (ast.Attribute, ast.Subscript, ast.Call)):
            if isinstance(target, ast.Attribute):
                self.known.attributes.add(target.attr, HOLDS)
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name) and target.id not in self.known.functions:
            self._reach(target.id, HOLDS)
            if target.id not in self._own:  # it may be one of the code around
                self._reach_outside(target.id, HOLDS)
            if target.id in self.parameters:
                self.filled.add(target.id)

    def _reach(self, name: str, found: int, *, is_loader: bool = False) -> None:
        if name in self._inner:
            self.near.add(name, found, is_loader=is_loader)
        else:
            self._reach_outside(name, found, is_loader=is_loader)

    def _reach_outside(self, name: str, found: int, *, is_loader: bool = False) -> None:
        if name not in self.names.modules:
            self.known.reached.add(name, found, is_loader=is_loader)

    def _gives(self) -> None:
        is_lambda = isinstance(self.unit.function, ast.Lambda)
        nodes: Any = self.unit.nodes
        given = [ast.Return(one) for one in nodes] if is_lambda else self.nodes
        for node in given:
            if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) and node.value is not None:
                found = level(self, node.value)
                self._give(node.value, found, returns=isinstance(node, ast.Return))
                if found and self._is_from_outside(node.value):
                    self.hands = self.finds or bool(self.unit.owner)
                    if self.finds:
                        self.known.finding.add(self.unit.name)

    def _give(self, value: ast.AST, found: int, *, returns: bool) -> None:
        """Note what the function gives; of several values that it returns, each by its place."""
        given, name = self.known.given, self.unit.name
        if found:
            given.add(name, found if returns else NEAR, is_loader=returns and self.is_loader(value))
        members = value.elts if returns and isinstance(value, ast.Tuple) else []
        for place, one in enumerate(members):
            given.add(f"{name}[{place}]", level(self, one), is_loader=self.is_loader(one))
        if not members or any(isinstance(one, ast.Starred) for one in members):
            given.add(f"{name}[]", found)

    def reach_holders(self, running: Iterable[VariableScope]) -> None:
        """Follow what already held this function, by another name, when the pass began."""
        function: Any = self.unit.function
        place = f"{self.unit.path}:{first_line(function)}"
        own_name = self.unit.name if self.unit.owner else ""
        variables, attributes = self.names.leading_to(place, own_name)
        for scope in (self, *running):
            for name in variables - {self.unit.name}:
                scope._reach(name, HOLDS)
        for name in attributes:
            self.known.attributes.add(name, HOLDS)

    def _is_from_outside(self, node: ast.AST) -> bool:
        """Return whether an expression takes something near that no parameter leads to."""
        return any(isinstance(one, ast.Name) and one.id not in self.names.shared
                   and (one.id in self.found or self.hands_out(one.id)
                        or (one.id not in self._own and self._outside(one.id) > FAR))
                   for one in ast.walk(node))  # fmt: skip

    def hands_out(self, name: str) -> bool:
        """Return whether this is a function by which anybody who calls it gets something near."""
        return name in self.known.finding and (name not in self._own or name in self._defined)

    def level_of(self, name: str) -> int:
        """Return how near a variable is."""
        found = self.near.get(name)
        return found if name in self._own else max(found, self._outside(name))

    def _outside(self, name: str) -> int:
        return max(self._of_names(name), self.known.reached.get(name))

    def stays(self, parameter: str) -> bool:
        """Return whether a parameter is what it was given, and is not set to something else."""
        return parameter in self.parameters and parameter not in stored(self.nodes)

    def is_near(self, node: ast.AST) -> bool:
        """Return whether an expression may be, or lead to, what items read."""
        return level(self, node) > FAR

    def is_read(self, node: ast.AST) -> bool:
        """Return whether an expression may be what items read, or a part of it.

        A list of results is not, though the same variable is an array of them later.
        """
        if level(self, node) != NEAR or self.is_loader(node):
            return False
        if self.unit.frame is not None or not isinstance(node, ast.Name):
            return True
        return node.id not in self._own or not is_own_list(node, self.nodes, self.parents)

    def is_loader(self, node: ast.AST) -> bool:
        """Return whether an expression is a loader, or gives what a loader gives."""
        if isinstance(node, ast.Name):
            return self._names_loader(node.id)
        if isinstance(node, ast.Attribute):
            is_other = any(
                node.attr in one.others for one in (self.known.attributes, self.known.given)
            )
            return node.attr in self.names.iterated and not is_other
        call = node.whole if isinstance(node, Part) else node
        if not isinstance(call, ast.Call):
            return False
        if called(call) in self.known.functions:
            return self._gives_loader(call, node.place if isinstance(node, Part) else None)
        if called(call) in _PASSING_ON and node is call:
            given = [*call.args, *(one.value for one in call.keywords)]
            near = [one for one in given if self.is_near(one)]
            return any(one in call.args for one in near) and all(map(self.is_loader, near))
        return node is call and self._makes_loader(call)

    def _names_loader(self, name: str) -> bool:
        if name in self._own:
            return name not in self.near.others
        is_other = self._of_names(name) and name not in self.names.loaders
        return not (is_other or name in self.near.others or name in self.known.reached.others)

    def _makes_loader(self, call: ast.Call) -> bool:
        """Return whether a call makes a loader of torch's whose batches are copies."""
        maker = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        is_known = ast.unparse(maker) == "torch.utils.data" or (
            isinstance(maker, ast.Name) and maker.id in self.names.making - self._inner
        )
        if called(call) != "DataLoader" or not is_known or not self._makes_batches(call):
            return False
        collates = (one.value for one in call.keywords if one.arg == "collate_fn")
        known = self.names.collates - self._inner
        return all(isinstance(one, ast.Name) and one.id in known for one in collates)

    def _makes_batches(self, call: ast.Call) -> bool:
        return makes_batches(call, lambda size: may_be_none(size, self.known.nothing))

    def _gives_loader(self, call: ast.Call, place: int | None) -> bool:
        """Return whether a function of the script gives only loaders, or has one at a place."""
        name = called(call)
        is_method = isinstance(call.func, ast.Attribute)
        known = self.known
        is_other = is_method and name in OF_CONTAINERS | known.stored | known.attributes.others
        if is_other or name in known.classes:
            return False
        if not is_method and self.level_of(name):  # what is called may be anything
            return False
        wanted = {name} if place is None else {f"{name}[{place}]", f"{name}[]"}
        return known.given.others.isdisjoint(wanted)

    def is_module(self, node: ast.AST) -> bool:
        """Return whether an expression is a module, or an attribute reached through one.

        A table of a module that items read is none.
        """
        while isinstance(node, ast.Attribute):
            if node.attr in self.names.attributes:
                return False
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
        return name not in self._own or self.near.get(name) > FAR


def scopes_of(
    code: ScriptCode, names: ReachableNames, is_of_items: Callable[[Unit], bool]
) -> list[VariableScope]:
    """Return the scopes of code that can still run, with what is passed from one to another."""
    classes = {unit.owner for unit in code.units} - {""}
    known = Known(code.functions, code.methods, code.stored, classes, code.aliases)
    scopes = [VariableScope(unit, names, known) for unit in code.units]
    known.moves_path = any(map(_is_path, (node for scope in scopes for node in scope.nodes)))
    for scope in scopes:
        if scope.unit.owner and (scope.unit.name.startswith("__") or scope.unit.name == "forward"):
            scope.finds = not is_of_items(scope.unit)
    by_name = _by_name(scopes, code)
    given: list[Given] = [(ast.Name(name), value) for _, _, passed in _passed(scopes, by_name)
                          for name, value in passed]  # fmt: skip
    given += [pair for scope in scopes for pair in scope.sets()]
    known.nothing = none_names(given, known.nothing | names.nothing | code.functions)
    running = [scope for scope in scopes if scope.unit.frame is not None]
    for _ in range(_MOST_ROUNDS):
        before = known.size
        for scope in scopes:
            scope.spread()
            if scope.hands:
                scope.reach_holders(running)
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
    """Return the functions by the names they are called by; constructors by their class names."""
    by_name: dict[str, list[VariableScope]] = {}
    for scope in scopes:
        unit = scope.unit
        if unit.frame is not None or unit.function is None:
            continue
        is_building = unit.name in BUILDING
        heirs = heirs_of(unit.owner, code.parents) if is_building else set[str]()
        called_by = heirs | (_ANY_CLASS if is_building else set()) | names_of(unit)
        called_by |= {one for one, targets in code.aliases.items() if targets & called_by}
        for name in called_by:
            by_name.setdefault(name, []).append(scope)
        if heirs & code.handed:
            scope.lead(scope.parameters[1:], NEAR)
        elif not is_building:
            _hand_over(scope, code)
    return by_name


def _hand_over(scope: VariableScope, code: ScriptCode) -> None:
    """Treat a function's parameters as near if unseen code may call it."""
    unit, names = scope.unit, scope.names
    called_by = names_of(unit)
    is_handed = unit.name == "<lambda>" or not code.handed.isdisjoint(called_by)
    if is_handed or (unit.name.startswith("__") and len(called_by) == 1):
        scope.lead(scope.parameters, NEAR)
    elif (unit.owner, unit.name) in code.overriding:
        scope.lead(_leading_parameters(scope), HOLDS)
    is_special = scope.near.get(scope.first) and not is_handed
    if is_special and unit.owner not in names.kinds:
        # Python calls it on objects of its class. Those are not read, and may hold nothing that is.
        heirs = heirs_of(unit.owner, code.parents)
        family = heirs | ancestors_of(heirs, code.parents)
        leads = bool(family & (names.leaders | names.kinds | names.near))
        scope.near.of[scope.first] = HOLDS if leads or not heirs <= code.plain else FAR


def _leading_parameters(scope: VariableScope) -> set[str]:
    """Return what may lead to what items read, of the parameters that a library fills in.

    A callback gets to the dataset by way of its trainer; what a network is called with is a batch.
    """
    names = scope.names
    found = set(scope.parameters[:1] if scope.unit.owner in names.leaders else ())
    if scope.unit.name == "forward":
        return found
    attributes = (node for node in scope.nodes if isinstance(node, ast.Attribute))
    leading = [node for node in attributes if node.attr in names.leading | names.direct]
    return found | set(scope.parameters[1:]) & {_root_of(node) for node in leading}


def _root_of(node: ast.AST) -> str:
    """Return the variable that an expression of attributes and indices begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _pass_on(scopes: Sequence[VariableScope], by_name: Mapping[str, list[VariableScope]]) -> bool:
    """Propagate what is near through calls; return whether anything changed."""
    changed = False
    for scope, target, given in _passed(scopes, by_name):
        changed |= _take(scope, target, given)
    return changed


def _passed(
    scopes: Sequence[VariableScope], by_name: Mapping[str, list[VariableScope]]
) -> Iterator[tuple[VariableScope, VariableScope, list[tuple[str, ast.AST]]]]:
    """Yield each call's code, what it may call, and what is given to the parameters of that."""
    for scope in scopes:
        for node in scope.calls:
            for call in (node, *_call_of_applied(node)):
                for target in by_name.get(callee(call), ()):
                    yield scope, target, _given_to(scope, call, target)


def _call_of_applied(node: ast.Call) -> list[ast.Call]:
    """Return the call that `one.apply(function, *more)` makes: `function(one, *more)`."""
    function = applied(node)
    if function is None or not isinstance(node.func, ast.Attribute):
        return []
    given: list[ast.expr] = [ast.Starred(value=one, ctx=ast.Load()) for one in node.args[1:]]
    return [ast.Call(func=function, args=args, keywords=node.keywords)
            for args in ([node.func.value, *node.args[1:]], given)]  # fmt: skip


def _given_to(
    scope: VariableScope, node: ast.Call, target: VariableScope
) -> list[tuple[str, ast.AST]]:
    """Return what a call passes to the parameters of a function of that name."""
    names, args = _positional(target.unit), node.args
    spreads = any(isinstance(one, ast.Starred) for one in args)
    spreads = spreads or any(one.arg is None for one in node.keywords)
    given: list[tuple[str, ast.AST]] = []
    if target.first:
        names = names[1:]
        if isinstance(node.func, ast.Attribute):
            given.append((target.first, node.func.value))
            value = node.func.value
            if getattr(value, "attr", getattr(value, "id", "")) in scope.known.functions:
                given += list(zip([target.first, *names], args, strict=False))
    elif names and isinstance(node.func, ast.Attribute) and not target.unit.owner:
        given.append((names[0], node.func.value))  # it may have become a method
        given += list(zip(names[1:], args, strict=False))
        least_count = len(names) - len(_arguments(target.unit).defaults)
        if not spreads and len(args) + len(node.keywords) < least_count:
            args = []  # or else it is no call of this function, which needs more
    if spreads:
        given += [(name, node) for name in target.parameters]
        given += [(name, one) for name in target.parameters
                  for one in (*args, *(more.value for more in node.keywords))]  # fmt: skip
    rest = [name for name in target.parameters if name not in names and name != target.first]
    given += list(zip(names, args, strict=False))
    given += [(name, one) for name in rest for one in args[len(names) :]]
    given += [(one.arg, one.value) for one in node.keywords if one.arg in target.parameters]
    given += [(name, one.value) for one in node.keywords if one.arg not in target.parameters
              for name in rest]  # fmt: skip
    return given


def _take(
    scope: VariableScope, target: VariableScope, given: Iterable[tuple[str, ast.AST]]
) -> bool:
    grown = False
    for name, value in given:
        found, is_loader = level(scope, value), scope.is_loader(value)
        if name in target.filled and (not found or is_loader):
            scope._put(value)
            grown |= (level(scope, value), scope.is_loader(value)) != (found, is_loader)
        before = target.near.size
        target.near.add(name, found, is_loader=is_loader)
        grown |= before != target.near.size
    return grown


def _arguments(unit: Unit) -> ast.arguments:
    """Return the parameters of a function; the top of a module has none."""
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return none if unit.function is None else unit.function.args


def _positional(unit: Unit) -> list[str]:
    arguments = _arguments(unit)
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)]


def _defaults(unit: Unit) -> list[tuple[str, ast.AST]]:
    """Return the parameters of a function that have defaults, with their defaults."""
    arguments = _arguments(unit)
    names = _positional(unit)[-len(arguments.defaults) :] if arguments.defaults else []
    found: list[tuple[str, ast.AST]] = list(zip(names, arguments.defaults, strict=True))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found + [(one.arg, default) for one, default in named if default is not None]


def _parameters(unit: Unit) -> list[str]:
    arguments = _arguments(unit)
    rest = (*arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return [*_positional(unit), *(one.arg for one in rest if one)]
