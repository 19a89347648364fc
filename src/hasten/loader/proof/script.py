"""The code of the script that can still run, and what it writes to."""

from __future__ import annotations

import ast
import builtins
from itertools import islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader.proof.aliases import aliases_in, class_statements, container_of
from hasten.loader.proof.bindings import Returned, called, imported
from hasten.loader.proof.computed_names import ANY_NAME, LibraryObjects, matching, pattern_of
from hasten.loader.proof.source import (
    Function,
    Tree,
    first_line,
    is_user_class,
    name_of,
    tree_of_file,
)
from hasten.loader.proof.stored_names import stored_by, within
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
    from types import FrameType


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN_DECORATORS = words(
    "property setter getter deleter staticmethod classmethod cached_property no_grad "
    "inference_mode enable_grad lru_cache cache wraps dataclass total_ordering contextmanager "
    "abstractmethod override overload final unique script_if_tracing"
)
_KEPT_BY_NAME = {"methodcaller", "attrgetter"}
_BY_NAME = {"getattr", *_KEPT_BY_NAME}
_LISTING = {"getmembers", "getmembers_static", "__subclasses__"}
_BUILDING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__"}
_OF_CLASSES = {"__subclasses__", "__mro__", "__bases__", "__base__", "mro", "metaclass",
               "__init_subclass__"}  # fmt: skip
"""What reaches a class by way of another, or may keep one."""
_EMPTY = {"object", "Dataset", "IterableDataset", "Module", "ABC", "Generic"}
"""Base classes of libraries whose constructors store none of their arguments."""
_NUMBERS = {"int", "float", "bool", "str"}
_NAMESPACES = {"SimpleNamespace", "Namespace", "EasyDict", "edict", "Munch", "AttrDict", "DotDict"}
_OF_ITS_CLASS = ("__init_subclass__", "__class_getitem__", "__get__")
"""Methods that are given a class."""
_CALLABLE = {"fget", "fset", "fdel", "func", "apply"}
"""Attributes by which a function or a class may be called."""
_MAKING_CLASSES = {"namedtuple", "make_dataclass"}
_OWN_CLASS = "type()"
"""Stands for a call of a class through an object of it, or through `cls` in its own code."""
_PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "Unpickler", "weights_only"}


class Unit(NamedTuple):
    """Code that can still run.

    Attributes:
        path: its file.
        nodes: what is left of it.
        function: the function it belongs to; None at the top of a module.
        name: the function's name; empty at the top of a module.
        owner: the class it is a method of; empty where it is none.
        frame: the frame in which it is already running; None if it is not.
        inside: the function around it; None where there is none.
    """

    path: str
    nodes: Sequence[ast.AST]
    function: Function | None
    name: str
    owner: str
    frame: FrameType | None
    inside: Function | None = None


class Unreadable(Exception):
    """Some code of the script has no source."""


class ScriptCode(NamedTuple):
    """The part of a script that can still run.

    Attributes:
        units: its parts.
        handed: names that appear anywhere other than as the callee of a call: a function of
            such a name may be called by anybody, with anything.
        handed_at: where each of them first does so, as `file:line`, as far as there is a line.
        functions: names of all functions and classes of the script.
        methods: names of the functions in its classes.
        stored: names of all attributes that it sets, or that its classes have.
        parents: for each class, by name, the names of its base classes.
        overriding: its methods that a library may call by the library's own name, each after the
            name of its class.
        aliases: for variables by which functions and classes are called, the names of those.
        plain: classes whose objects get their attributes only from code of the script.
    """

    units: list[Unit]
    handed: set[str]
    functions: set[str]
    methods: set[str]
    stored: set[str]
    parents: dict[str, set[str]]
    overriding: set[tuple[str, str]]
    aliases: dict[str, set[str]]
    plain: set[str]
    handed_at: dict[str, str]


def code_of(
    frames: Sequence[FrameType],
    modules: Sequence[ModuleType],
    alive: Set[str],
    instances: Sequence[object],
) -> ScriptCode:
    """Return the code that can still run: the rest of each frame, and what that rest names.

    A function can run where code that can run names it, or where anything names it without
    calling it, for then it may have been handed to somebody who will. A method can run where there
    are also objects of its class, or where code names the class; nothing names special methods.

    Args:
        frames: of the script, on all threads.
        modules: of the script.
        alive: names of the classes that have instances, and `path:line` of the functions
            that exist.
        instances: the objects of the script's classes.

    Raises:
        Unreadable: some of it has no source.
    """
    paths = _paths(frames, modules, alive)
    trees = {path: tree for path in paths if (tree := tree_of_file(path)) is not None}
    plain = _plain_classes(trees.values())
    parents = _parents(trees.values())
    libraries = LibraryObjects(instances, {one for one in plain if heirs_of(one, parents) <= plain})
    running = [_rest_of(frame) for frame in frames]
    known = [unit for tree in trees.values() for unit in _functions(tree)]
    overriding = overriding_methods()
    functions = {name for unit in known for name in (unit.name, unit.owner)} - {"", "<lambda>"}
    methods = _methods_among(known)
    aliases = aliases_in([tree.nodes for tree in trees.values()], functions - methods)
    found = list(running)
    handed_at = _handed_over(trees.values(), aliases.sources, known, plain, parents)
    handed = set(handed_at)
    mentioned = handed.union(_asked_for_attributes(trees.values()), *aliases.targets.values())
    mentioned |= {name for unit in running for name in _named_in(unit, libraries)}
    if any(_keeps_classes(tree) for tree in trees.values()):
        alive = {*alive, *parents, *map(_place, known)}
    stored = _stored_in(trees.values(), plain)
    while True:
        handed |= _named_by_patterns(mentioned, functions | methods, aliases.targets)
        mentioned |= handed
        mentioned |= ancestors_of(mentioned, parents)
        if mentioned & _PICKLES:  # of any class that there is
            alive = {*alive, *parents}
        makers = {id(unit.function) if unit.function else unit.path for unit in found}
        fresh = [unit for unit in known
                 if _can_run(unit, mentioned, alive, makers, overriding)]  # fmt: skip
        if not fresh:
            if libraries.may_change(map(_nodes_of, found), unpickles=bool(mentioned & _PICKLES)):
                return code_of(frames, modules, alive, ())
            return ScriptCode(
                found, handed, functions, methods, stored, parents, overriding, aliases.targets,
                plain, handed_at,
            )  # fmt: skip
        found += fresh
        known = [unit for unit in known if unit not in fresh]
        mentioned |= {name for unit in fresh for name in _named_in(unit, libraries)}


def _paths(frames: Iterable[FrameType], modules: Iterable[ModuleType], alive: Set[str]) -> set[str]:
    """Return the files of the script, also of modules that no table has."""
    paths = {frame.f_code.co_filename for frame in frames}
    paths |= {path for module in modules if (path := getattr(module, "__file__", None))}
    places = {place.rpartition(":")[0] for place in alive}
    return paths | {path for path in places if path and not path.startswith("<")}


def _place(unit: Unit) -> str:
    return f"{unit.path}:{getattr(unit.function, 'lineno', 0)}"


def _can_run(
    unit: Unit,
    mentioned: Set[str],
    alive: Set[str],
    makers: Set[str | int],
    overriding: Set[tuple[str, str]],
) -> bool:
    if unit.name == "<lambda>":  # it exists, or the code around it will make it
        around = id(unit.inside) if unit.inside else unit.path
        return around in makers or _place(unit) in alive
    if unit.name in _BUILDING and (
        unit.owner in mentioned or (unit.owner in alive and _OWN_CLASS in mentioned)
    ):
        return True
    if unit.owner and unit.owner not in mentioned and unit.owner not in alive:
        return False
    is_mentioned = not mentioned.isdisjoint(names_of(unit))
    is_mentioned |= (unit.owner, unit.name) in overriding
    return is_mentioned or (is_special(unit.name) and unit.name not in _BUILDING)


def _methods_among(units: Iterable[Unit]) -> set[str]:
    return {name for unit in units if unit.owner for name in names_of(unit)}


def names_of(unit: Unit) -> set[str]:
    """Return by which names a function is called: a private method has another outside its class.

    https://docs.python.org/3/reference/expressions.html#private-name-mangling
    """
    is_private = unit.owner and unit.name.startswith("__") and not unit.name.endswith("__")
    return {unit.name} | ({f"_{unit.owner.lstrip('_')}{unit.name}"} if is_private else set())


def heirs_of(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return a class and all classes derived from it."""
    found: set[str] = set()
    fresh = {name}
    while fresh:
        found |= fresh
        fresh = {heir for heir, given in parents.items() if given & fresh} - found
    return found


def ancestors_of(names: Set[str], parents: Mapping[str, set[str]]) -> set[str]:
    """Return the classes of the script that some classes are derived from."""
    found: set[str] = set()
    fresh = names & parents.keys()
    while fresh:
        fresh = set[str]().union(*(parents[one] for one in fresh)) & parents.keys() - found
        found |= fresh
    return found


def _named_in(unit: Unit, libraries: LibraryObjects) -> set[str]:
    names = set(_names(unit, libraries))
    return names | {_OWN_CLASS} if "cls()" in names and (unit.owner or unit.inside) else names


def _names(unit: Unit, libraries: LibraryObjects) -> Iterator[str]:
    for node in _nodes_of(unit):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Call):
            asks = called(node) == "getattr"
            if not (asks and libraries.is_asked(node, unit.path, unit.owner, _own_object(unit))):
                yield from _named_by_text(node, _BY_NAME)
            if called(node) in _LISTING:
                yield ANY_NAME


def _own_object(unit: Unit) -> str:
    """Return the parameter that is a method's object; empty where there is none, or it varies."""
    first = _first_of(unit)
    if not unit.owner or _decorators_of(unit):
        return ""
    return "" if any(first in stored_by(node) for node in _nodes_of(unit)) else first


def _nodes_of(unit: Unit) -> list[ast.AST]:
    return [node for top in unit.nodes for node in ast.walk(top)]


def _named_by_patterns(
    mentioned: Set[str], functions: Set[str], aliases: Mapping[str, set[str]]
) -> set[str]:
    """Return the functions that a computed name may mean, also by a variable that holds them."""
    patterns = [name for name in mentioned if ANY_NAME in name]
    named = matching(patterns, functions | aliases.keys())
    return named.union(*(aliases.get(name, ()) for name in named))


def _named_by_text(node: ast.Call, functions: set[str]) -> Iterator[str]:
    """Yield the names that `getattr` and the like are given as strings, or a pickle's."""
    name = called(node)
    if any(one.arg == "weights_only" and getattr(one.value, "value", None) is not True
           for one in node.keywords):  # fmt: skip
        yield "weights_only"
    if name == "cls":
        yield "cls()"
    if name == "__class__" or (not name and _last_name(node.func) == "type"):
        yield _OWN_CLASS
    if name not in functions:
        return
    given = node.args[1:2] if name == "getattr" else node.args
    for one in given:
        if not isinstance(one, ast.Constant):
            pattern = pattern_of(one) if name == "getattr" else ANY_NAME
            yield pattern if ANY_NAME in pattern else pattern + ANY_NAME
        elif isinstance(one.value, str):
            yield from one.value.split(".")


def _stored_in(trees: Collection[Tree], plain: Set[str]) -> set[str]:
    """Return the attributes that only code of the script sets, as far as it names them."""
    found = {name for tree in trees for name in _attributes_of(tree)}
    return found - _fields(trees, plain) - set(_named_fields(trees))


def _attributes_of(tree: Tree) -> Iterator[str]:
    """Yield the attributes that a file sets, and those defined in its classes."""
    for node in tree.nodes:
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                targets = one.targets if isinstance(one, ast.Assign) else [
                    one.target if isinstance(one, ast.AnnAssign) else None]  # fmt: skip
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _handed_over(
    trees: Collection[Tree],
    aliased: Set[int],
    units: Sequence[Unit],
    plain: Set[str],
    parents: Mapping[str, set[str]],
) -> dict[str, str]:
    """Return where names first appear other than as the callee of a call, as `file:line`.

    Imports under another name are called by that name. What is passed to `apply` is called at
    once and not kept; `scopes.py` follows its arguments. What `super` is given is looked into. A
    class's bases are called when the class is. What `isinstance` is given is only compared. No
    variable is a method, except in a class body. Whoever takes an attribute of a function
    or a class does not call it, unless a method of the class hands its class over.
    """
    found: dict[str, str] = {}
    methods = _methods_among(units)
    classes = {unit.owner for unit in units} - {""}
    others = {name for unit in units if not unit.owner for name in names_of(unit)}
    bound = methods - others - classes - set(dir(builtins))
    is_reached = any(map(_keeps_classes, trees))
    is_reached |= any(_hands_class_over(unit, methods, plain) for unit in units)
    calling = {unit.name for unit in units if unit.owner and _is_decorated(unit)}
    calling |= classes if is_reached else set[str]()
    foreign = _own_methods(classes - plain, units, parents)
    answers = any(_answers_tests(tree) for tree in trees)
    for tree in trees:
        harmless = _called_at_once(tree.nodes) | aliased | _variables(tree.nodes, bound)
        harmless |= set() if answers else _compared(tree.nodes)
        harmless |= {id(node.value) for node in tree.nodes if isinstance(node, ast.Attribute)
                     and not _may_call(node, calling, foreign)}  # fmt: skip
        for node in tree.nodes:
            names = [*_handed_by(node, methods)]
            if id(node) not in harmless and isinstance(getattr(node, "ctx", None), ast.Load):
                names += [str(getattr(node, "id", getattr(node, "attr", "")))]
            for name in filter(None, names):
                found.setdefault(name, f"{tree.path}:{getattr(node, 'lineno', '?')}")
    return found


def _own_methods(
    classes: Iterable[str], units: Iterable[Unit], parents: Mapping[str, set[str]]
) -> dict[str, set[str]]:
    """Return the methods of some classes and of their parents that the script wrote."""
    by_class: dict[str, set[str]] = {}
    for unit in units:
        by_class.setdefault(unit.owner, set()).add(unit.name)
    families = {name: {name} | ancestors_of({name}, parents) for name in classes}
    return {
        name: set[str]().union(*(by_class.get(one, ()) for one in family))
        for name, family in families.items()
    }


def _called_at_once(nodes: Sequence[ast.AST]) -> set[int]:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    if not any(isinstance(node, _DEFINITIONS) and node.name == "apply" for node in nodes):
        called |= {id(function) for node in calls if (function := applied(node)) is not None}
    called |= {id(one) for node in nodes if isinstance(node, ast.ClassDef) for one in node.bases}
    return called | {
        id(one) for node in calls if getattr(node.func, "id", "") == "super" for one in node.args
    }


def _variables(nodes: Sequence[ast.AST], methods: Set[str]) -> set[int]:
    """Return the variables that are named like some methods but cannot be them, by their ids."""
    names = methods - imported(nodes).keys()
    found = {id(node) for node in nodes if isinstance(node, ast.Name) and node.id in names}
    return found - set(map(id, class_statements(nodes)))


def _asked_for_attributes(trees: Iterable[Tree]) -> set[str]:
    """Return the names of what attributes are taken of: a class whose method may be kept, say."""
    nodes = (node for tree in trees for node in tree.nodes if isinstance(node, ast.Attribute))
    return {
        _last_name(node.value)
        for node in nodes
        if isinstance(node.value, (ast.Name, ast.Attribute))
    }


def _may_call(node: ast.Attribute, calling: Set[str], foreign: Mapping[str, Set[str]]) -> bool:
    """Return whether taking an attribute of something may call that, or make one of it.

    Args:
        node: the attribute.
        calling: names of what may be called whatever attribute is taken.
        foreign: classes that may have methods of a library's, which may make them, each with those
            that the script wrote.
    """
    name = _last_name(node.value)
    if node.attr in _CALLABLE or node.attr.startswith("__") or name in calling:
        return True
    return name in foreign and node.attr not in foreign[name]


def _is_decorated(unit: Unit) -> bool:
    """Return whether a method may run as soon as it is read, as a property does."""
    return bool(_decorators_of(unit) - {"staticmethod", "classmethod"})


def _hands_class_over(unit: Unit, methods: Set[str], plain: Set[str]) -> bool:
    """Return whether a method may pass on the class that it was called on."""
    first, names = _first_of(unit), _decorators_of(unit)
    if not unit.owner or not (
        "classmethod" in names or first == "cls" or unit.name in _OF_ITS_CLASS
    ):
        return False
    if first != "cls":  # by which `scopes.py` knows that its class is made
        return True
    nodes = _nodes_of(unit)
    used = {id(node.func) for node in nodes if isinstance(node, ast.Call) and called(node) == "cls"}
    used |= {
        id(node.value) for node in nodes
        if isinstance(node, ast.Attribute)
        and (node.attr in methods or node.attr in ("__name__", "__qualname__")
             or (unit.owner in plain and not node.attr.startswith("__")))
    }  # fmt: skip
    # A base class of a library may have methods that make the class.
    handing = {"cls"} if unit.owner in plain else {"cls", "super"}
    return any(getattr(node, "id", "") in handing and id(node) not in used for node in nodes)


def _decorators_of(unit: Unit) -> set[str]:
    return {_last_name(one) for one in getattr(unit.function, "decorator_list", [])}


def _first_of(unit: Unit) -> str:
    """Return a function's first parameter; empty where it has none."""
    given = unit.function.args if unit.function else None
    named = [*given.posonlyargs, *given.args] if given else []
    return named[0].arg if named else ""


def _answers_tests(tree: Tree) -> bool:
    """Return whether code of a file answers `isinstance`, and may keep the class it is given."""
    names = {"isinstance", "issubclass", "__instancecheck__", "__subclasscheck__"}
    return any(not names.isdisjoint(stored_by(node)) for node in tree.nodes)


def _compared(nodes: Sequence[ast.AST]) -> set[int]:
    """Return the classes that `isinstance` and `issubclass` are given by name."""
    return {
        id(kind)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1
        and node.func.id in ("isinstance", "issubclass")
        for kind in getattr(node.args[1], "elts", node.args[1:2])
    }  # fmt: skip


def _parents(trees: Iterable[Tree]) -> dict[str, set[str]]:
    """Return what each class is derived from, by last names."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.nodes:
            if isinstance(node, ast.ClassDef):
                names = {_last_name(one) for one in node.bases} - {""}
                found[node.name] = found.get(node.name, set()) | names
    return found


def _plain_classes(trees: Iterable[Tree]) -> set[str]:
    """Return the undecorated classes whose bases are all plain too, or store no arguments."""
    kinds = [node for tree in trees for node in tree.nodes if isinstance(node, ast.ClassDef)]
    bases: dict[str, set[str]] = {}
    for node in kinds:
        found = bases.setdefault(node.name, set())
        found |= {_last_name(container_of(one)) for one in node.bases}
        if node.decorator_list or node.keywords or _reads_vars(node):
            found.add("")  # no name of a class
    plain = set(bases)
    while mixed := {name for name in plain if not bases[name] <= plain | (_EMPTY - bases.keys())}:
        plain -= mixed
    return plain


def _reads_vars(kind: ast.ClassDef) -> bool:
    """Return whether a class uses `vars`, which exposes the attributes of an object."""
    return any(isinstance(node, ast.Name) and node.id == "vars" for node in ast.walk(kind))


def _fields(trees: Iterable[Tree], plain: Set[str]) -> set[str]:
    """Return the fields that unseen code sets, as in a dataclass, except those of numbers."""
    kinds = [node for tree in trees for node in tree.nodes if isinstance(node, ast.ClassDef)]
    return {
        one.target.id
        for node in kinds if node.name not in plain
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        and getattr(one.annotation, "id", "") not in _NUMBERS
    }  # fmt: skip


def _named_fields(trees: Iterable[Tree]) -> Iterator[str]:
    """Yield the attributes of namespaces and of tuples with names, which unseen code sets."""
    for node in (node for tree in trees for node in tree.nodes if isinstance(node, ast.Call)):
        if called(node) in _NAMESPACES:
            yield from (one.arg for one in node.keywords if one.arg)
        elif called(node) in _MAKING_CLASSES:
            texts = (getattr(one, "value", None) for one in ast.walk(node))
            for text in (one for one in texts if isinstance(one, str)):
                yield from text.replace(",", " ").split()


def _keeps_classes(tree: Tree) -> bool:
    """Return whether a file reaches classes that nothing names, through their base classes."""
    return any(
        str(getattr(node, "attr", getattr(node, "arg", getattr(node, "name", "")))) in _OF_CLASSES
        or (getattr(node, "attr", "") == "freeze" and getattr(node.value, "id", "") == "gc")  # type: ignore[attr-defined]
        for node in tree.nodes
    )


def _handed_by(node: ast.AST, methods: Set[str]) -> Iterator[str]:
    """Yield names of functions that get another name, or that a decorator may keep."""
    if isinstance(node, ast.alias) and node.asname:
        yield node.name.rpartition(".")[2]
    elif isinstance(node, ast.Call):
        yield from _named_by_text(node, _KEPT_BY_NAME)
        yield from methods & set(_named_by_text(node, _BY_NAME))
    elif isinstance(node, (*_DEFINITIONS, ast.ClassDef)) and _is_registered(node):
        yield node.name


def _is_registered(node: Any) -> bool:
    """Return whether a decorator may keep what it decorates, and call it later."""
    return any(_last_name(one) not in _PLAIN_DECORATORS for one in node.decorator_list)


def _last_name(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return str(getattr(node, "attr", getattr(node, "id", "")))


def applied(call: ast.Call) -> ast.Name | ast.Attribute | None:
    """Return the function whose name is passed to a method `apply`."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "apply" and call.args:
        given = call.args[0]
        return given if isinstance(given, (ast.Name, ast.Attribute)) else None
    return None


def _functions(tree: Tree) -> Iterator[Unit]:
    """Yield the functions of a file; a function includes everything nested in it."""
    waiting: list[tuple[ast.AST, str, Function | None]] = [(tree.module, "", None)]
    while waiting:
        node, owner, function = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                body = [child.body] if isinstance(child, ast.Lambda) else child.body
                yield Unit(tree.path, body, child, name_of(child), owner, None, function)
                waiting.append((child, "", child))
            else:
                inside = child.name if isinstance(child, ast.ClassDef) else owner
                waiting.append((child, inside, function))


def _rest_of(frame: FrameType) -> Unit:
    """Return what is left to run in a frame: the whole loops it is in, and what follows."""
    code = frame.f_code
    tree = tree_of_file(code.co_filename)
    function = tree.function(code) if tree else None
    if tree is None or (function is None and not tree.is_module(code)):
        raise Unreadable(f"the source of {code.co_name} in {code.co_filename} is not what runs")
    if isinstance(function, ast.Lambda):
        rest: list[ast.AST] = [] if _is_called(function.body, frame) else [function.body]
        return Unit(tree.path, rest, function, "<lambda>", "", frame)
    statements = function.body if function is not None else tree.module.body
    following = _following(statements, frame.f_lineno or 0, frame)
    # A generator that has not started is before all of its statements.
    rest = (list(statements) if function is not None else []) if following is None else following
    rest = [*_declared_before(function, rest), *rest]
    name = function.name if function is not None else ""
    return Unit(tree.path, rest, function, name, "", frame)


def _declared_before(function: Any, rest: Sequence[ast.AST]) -> list[ast.AST]:
    """Return the function's declarations of variables that what is left of it still sets."""
    set_later = {name for node in within(rest) for name in stored_by(node)}
    return [
        ast.copy_location(type(node)(names), node)
        for node in within([] if function is None else function.body)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        and (names := sorted(set_later & set(node.names)))
    ]


def _following(statements: Sequence[ast.stmt], line: int, frame: FrameType) -> list[ast.AST] | None:
    """Return the statements from the line of a frame on, None where it is elsewhere.

    A loop around the line is included from its start.
    """
    for place, statement in enumerate(statements):
        if not first_line(statement) <= line <= (statement.end_lineno or 0):
            continue
        after: list[ast.AST] = list(statements[place + 1 :])
        if isinstance(statement, (ast.For, ast.While, ast.AsyncFor)):
            return [statement, *after]
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")] + [
            handler.body for handler in getattr(statement, "handlers", [])
        ]
        rests = (_following(block, line, frame) for block in blocks)
        inner = next((rest for rest in rests if rest is not None), None)
        if isinstance(statement, ast.Try):
            inner = [*([statement] if inner is None else inner), *statement.handlers,
                     *statement.finalbody, *statement.orelse]  # fmt: skip
        if (
            inner is None
            and isinstance(statement, (ast.Expr, ast.Assign, ast.Return))
            and (_is_called(statement.value, frame))
        ):
            return [*_once_returned(statement), *after]
        return [*(inner if inner is not None else [statement]), *after]
    return None


def _once_returned(statement: ast.stmt) -> list[ast.AST]:
    """Return what is left of a statement whose call is running."""
    call: Any = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign):
        return [ast.copy_location(ast.Assign(statement.targets, Returned(call)), statement)]
    if isinstance(statement, ast.Return):
        return [ast.copy_location(ast.Return(Returned(call)), statement)]
    return []


def _is_called(node: ast.AST | None, frame: FrameType) -> bool:
    """Return whether a frame is in exactly this call, so that its arguments are evaluated."""
    if not isinstance(node, ast.Call):
        return False
    now = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return now == (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


# ---- methods that are called without being named: by Python, or by a library

_PRINTING = ("write", "flush")
_METHODS = (FunctionType, staticmethod, classmethod, property)
_SPECIAL = words(
    "__init_subclass__ __set_name__ __class_getitem__ __mro_entries__ __length_hint__ "
    "__getnewargs_ex__ __reduce_ex__ __release_buffer__ __post_init__ __match_args__ "
    "__suppress_context__ __text_signature__ __type_params__ __static_attributes__"
)
"""Of the methods that Python calls without being told, those of several words."""


def overriding_methods() -> set[tuple[str, str]]:
    """Return the methods that override a library's, and those of what prints."""
    found = set()
    for kind in filter(is_user_class, _classes()):
        theirs = [one for one in kind.__mro__ if one is not object and not is_user_class(one)]
        found |= {
            (kind.__name__, name) for name, one in list(vars(kind).items())
            if isinstance(one, _METHODS) and not hasattr(object, name)
            and (name in _PRINTING or any(hasattr(base, name) for base in theirs))
        }  # fmt: skip
    return found


def _classes() -> Iterator[type]:
    """Yield every class that there is."""
    seen: set[type] = {object}
    waiting: list[type] = [object]
    while waiting:
        kind = waiting.pop()
        yield kind
        below: set[type] = set(type.__subclasses__(kind)) - seen
        seen |= below
        waiting += below


def is_special(name: str) -> bool:
    """Return whether a method may be called without being named: by Python or by some library."""
    if not (name.startswith("__") and name.endswith("__")):
        return False
    return (
        name in _SPECIAL
        or "_" not in name.strip("_")
        or name.startswith(("__array", "__torch", "__cuda", "__dlpack"))
    )
