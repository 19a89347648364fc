"""Whether code of the script may write what the items read."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hasten.loader.proof import ambient, library
from hasten.loader.proof.bindings import called, callee
from hasten.loader.proof.nearness import FIGURES
from hasten.loader.proof.scopes import BUILDING, scopes_of
from hasten.loader.proof.script import heirs_of, is_special
from hasten.loader.proof.source import first_line, is_user_class, is_user_file, text_of
from hasten.loader.proof.stored_names import stored_by
from hasten.loader.proof.verdict import MissingReason, ProofReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hasten.loader.proof.holders import ReachableNames
    from hasten.loader.proof.reads import Reads
    from hasten.loader.proof.scopes import VariableScope
    from hasten.loader.proof.script import ScriptCode, Unit

_MOST_GAPS = 8
_ALWAYS = {"dataset", "collate_fn", "worker_init_fn"}
_INNARDS = {
    "__class__", "__dict__", "__code__", "__defaults__", "__kwdefaults__", "__globals__",
    "__bases__", "__wrapped__", "cell_contents",
}  # fmt: skip
_HIDDEN = {
    "exec", "eval", "get_objects", "get_referrers", "get_referents", "_getframe",
    "_current_frames", "currentframe", "reload", "ctypes", "settrace", "setprofile",
}  # fmt: skip
_RUNS_TEXT = {"exec", "eval"}  # given to them: `model.eval()` is another matter
_NAMESPACES = {"globals", "vars", "locals"}
_SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__", "__setstate__"}
_BOUND = {"__setattr__": 2, "__delattr__": 1, "__setstate__": 1}
"""How many arguments they have as methods of an object; with one more, that is the object."""
_READERS = {
    "len", "print", "isinstance", "type", "str", "repr", "bool", "sum", "min", "max", "int",
    "float", "unique", "bincount", "mean", "std", "id", "hash", "any", "all", "Counter", "range",
    "shape",
}  # fmt: skip
_VIEWS = {"items", "keys", "values"}
_WRITING_OUT = {
    ("torch", "save"), ("torch", "tensor"), ("json", "dump"), ("json", "dumps"), ("np", "save"),
    ("numpy", "save"), ("pickle", "dump"), ("pickle", "dumps"), ("yaml", "dump"),
    ("joblib", "dump"),
}  # fmt: skip
_PLAIN_HOMES = ("torch.utils.data.", "torchvision.datasets.", "typing", "abc")
_FLAT_READERS = {"list", "set", "tuple", "sorted", "dict", "enumerate", "zip", "frozenset"}


class Writes:
    """Looks through code that can still run for stores into what the items read."""

    def __init__(self, reads: Reads, names: ReachableNames, code: ScriptCode) -> None:
        self._reads = reads
        self._names = names
        self._has_content = bool(reads.content) or not all(map(_is_plain, reads.classes))
        self.gaps: list[MissingReason] = []
        self._read = (
            set(reads.attributes)
            | _ALWAYS
            | {code.co_name for code in reads.codes if code.co_name != "<lambda>"}
        )
        self._variables: set[str] = set()
        self._shared: set[str] = set()
        for space, named in reads.variables.values():
            self._shared |= named
            if space.get("__name__") == "__main__" or is_user_file(
                space.get("__file__") or "<frozen"
            ):
                self._variables |= named
        self._items = {(code.co_filename, code.co_firstlineno) for code in reads.codes}
        self._scopes = scopes_of(code, names, self._is_item_code)
        makers = {unit.owner for unit in code.units if unit.name == "__new__"}
        heirs = {heir for maker in makers for heir in heirs_of(maker, code.parents)}
        self._remade = {
            unit.owner for unit in code.units if heirs_of(unit.owner, code.parents) & heirs
        }
        self._handed, self._handed_at = code.handed, code.handed_at
        self._overriding = {name for _, name in code.overriding}
        self._building = dict.fromkeys(BUILDING, True)
        self._methods = {(unit.path, unit.owner, unit.name) for unit in code.units if unit.owner}
        self._functions = {(unit.path, unit.name) for unit in code.units if not unit.owner}

    def find(self) -> list[MissingReason]:
        """Return what rules out the two reasons that are about the script."""
        if handed := (_SETTERS | ambient.SETTINGS | ambient.LATE | _RUNS_TEXT) & self._handed:
            name = min(handed)
            what = f"the script hands {name} over, for anybody to call"
            where = self._handed_at.get(name, "")
            self.gaps.append(MissingReason(ProofReason.UNWRITTEN, what, where))
        own = [scope for scope in self._scopes if not self._is_item_code(scope.unit)]
        given = {name for scope in own for name in _called_with_near(scope)}
        for scope in self._scopes:
            if len(self.gaps) >= _MOST_GAPS:
                break
            if scope in own:
                self._look(scope)
            elif scope.unit.name in given:
                self._look_for_stores(scope)
        return self.gaps

    def _is_item_code(self, unit: Unit) -> bool:
        """Return whether a function was followed as part of the items."""
        if unit.function is None:
            return False
        return (unit.path, first_line(unit.function)) in self._items

    def _gap(self, reason: ProofReason, what: str, node: ast.AST, scope: VariableScope) -> None:
        where = f"{scope.unit.path}:{getattr(node, 'lineno', '?')}"
        found = MissingReason(reason, what, where)
        if found not in self.gaps:
            self.gaps.append(found)

    # ---- one unit

    def _look(self, scope: VariableScope) -> None:
        for node in scope.nodes:
            self._bound(node, scope)
            if isinstance(node, ast.Attribute):
                self._attribute(node, scope)
            elif isinstance(node, ast.Name):
                self._name(node, scope)
            elif isinstance(node, ast.Call):
                self._call(node, scope)
            elif isinstance(node, (ast.Subscript, ast.AugAssign)):
                self._written_into(node, scope)
            if what := ambient.against(node, scope, self._reads):
                self._gap(ProofReason.UNWRITTEN, what, node, scope)

    def _look_for_stores(self, scope: VariableScope) -> None:
        """Look at a function of the items that the script also calls on what items read."""
        for node in scope.nodes:
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self._attribute(node, scope)
            elif isinstance(node, (ast.Subscript, ast.AugAssign)):
                self._written_into(node, scope)
            elif isinstance(node, ast.Call):
                self._worked_on(node, scope)

    def _bound(self, node: ast.AST, scope: VariableScope) -> None:
        """Look at what binds a variable that items find in a module, or in a running function."""
        unit = scope.unit
        bound = set(stored_by(node))
        if isinstance(node, ast.ClassDef):
            bound.add(node.name)
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            bound = set(node.names)
            read = self._variables if isinstance(node, ast.Global) else self._reads.enclosed
        elif unit.function is None:
            read = self._variables
        elif unit.function is not None and unit.frame is not None:
            read = self._reads.enclosed & set(unit.frame.f_code.co_cellvars)
        else:
            return
        if named := bound & (read | {"*"}):
            what = f"the script sets {min(named)}, which items read"
            self._gap(ProofReason.UNWRITTEN, what, node, scope)

    def _written_into(self, node: ast.Subscript | ast.AugAssign, scope: VariableScope) -> None:
        """Look at a store into what may be what items read."""
        target = node.value if isinstance(node, ast.Subscript) else node.target
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            return
        if isinstance(node, ast.AugAssign) and not isinstance(target, ast.Name):
            return
        if self._has_content and scope.is_read(target):
            what = f"the script writes into {text_of(target)}, which items may read"
            self._gap(ProofReason.OWNED, what, node, scope)

    def _attribute(self, node: ast.Attribute, scope: VariableScope) -> None:
        stored = not isinstance(node.ctx, ast.Load)
        owner = node.value
        shared = scope.is_shared(owner) or scope.is_near(owner)
        inner = node.attr in _INNARDS or (node.attr in self._shared and shared)
        if stored and (inner or (node.attr in self._read and self._may_be_read(node, scope))):
            what = f"the script sets .{node.attr}, which items read"
            self._gap(ProofReason.UNWRITTEN, what, node, scope)
        if node.attr == "modules" and isinstance(node.value, ast.Name) and node.value.id == "sys":
            self._gap(ProofReason.UNWRITTEN, "the script uses sys.modules", node, scope)
        if stored or node.attr not in self._names.attributes | {"__dict__"}:
            return
        if scope.is_near(node.value) and not self._only_read(node, scope):
            what = f"the script takes .{node.attr}, which items read, and may write it"
            self._gap(ProofReason.OWNED, what, node, scope)

    def _may_be_read(self, node: ast.Attribute, scope: VariableScope) -> bool:
        """Return whether the object of a store may be one that items read."""
        is_self = isinstance(node.value, ast.Name) and node.value.id == scope.first
        if is_self and self._is_being_made(scope.unit):
            return False
        if is_self and scope.unit.owner:
            return any(kind.__name__ == scope.unit.owner for kind in self._reads.classes)
        return scope.is_near(node.value) or scope.is_shared(node.value)

    def _is_being_made(self, unit: Unit) -> bool:
        """Return whether a method runs only before anybody has its object."""
        return self._builds(unit.name) and unit.owner not in self._remade

    def _builds(self, name: str) -> bool:
        """Return whether a method runs only while its object is made: nobody else calls it."""
        if name not in self._building:
            self._building[name] = False  # until it is known; it may call itself
            calls = [
                isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == scope.first
                and scope.stays(scope.first)
                and self._builds(scope.unit.name)
                for scope in self._scopes
                for node in scope.calls
                if _may_name(called(node), name)
            ]
            self._building[name] = bool(calls) and all(calls) and self._is_called_plainly(name)
        return self._building[name]

    def _is_called_plainly(self, name: str) -> bool:
        """Return whether only calls that are seen can reach a method, and run it at once."""
        by_others = any(_may_name(one, name) for one in self._handed | self._overriding)
        by_others |= is_special(name)
        scopes = [scope for scope in self._scopes if scope.unit.name == name]
        return name.startswith("_") and not by_others and all(map(_runs_at_once, scopes))

    def _name(self, node: ast.Name, scope: VariableScope) -> None:
        stored = not isinstance(node.ctx, ast.Load)
        if node.id in _HIDDEN and (scope.unit.path, node.id) not in self._functions:
            self._gap(ProofReason.UNWRITTEN, f"the script uses {node.id}", node, scope)
        elif not scope.is_content(node.id):
            return
        elif isinstance(scope.parents.get(id(node)), ast.AugAssign) or (
            not stored and not self._only_read(node, scope)
        ):
            what = f"the script holds {node.id}, which items read, and may write it"
            self._gap(ProofReason.OWNED, what, node, scope)

    def _taken_by_name(self, node: ast.Call, scope: VariableScope) -> None:
        if len(node.args) < 2 or not scope.is_near(node.args[0]):
            return
        named = node.args[1]
        if isinstance(named, ast.Constant) and named.value not in self._names.attributes:
            return
        parent = scope.parents.get(id(node))
        is_called = isinstance(parent, ast.Call) and parent.func is node
        if not is_called and not _is_looked_at(node, scope.parents, flat=False, whole=False):
            self._gap(ProofReason.OWNED, "the script takes an attribute by name", node, scope)

    def _gotten_by_name(self, node: ast.Call, scope: VariableScope) -> None:
        """Look at what `attrgetter` will take, of whatever object."""
        texts = [str(getattr(one, "value", "*")) for one in node.args]
        if {part for text in texts for part in text.split(".")} & (self._names.attributes | {"*"}):
            self._gap(ProofReason.OWNED, "the script takes an attribute by name", node, scope)

    def _worked_on(self, node: ast.Call, scope: VariableScope) -> None:
        """Look at a method that writes into what it is called on."""
        name = called(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        writes = library.writes_itself(name) and not self._is_own_method(node, scope)
        may_write = writes and self._has_content
        if may_write and owner is not None and scope.is_read(owner) and not scope.is_module(owner):
            what = f"the script calls .{name}() of what items may read"
            self._gap(ProofReason.OWNED, what, node, scope)
        if any(one.arg == "inplace" for one in node.keywords) and scope.is_near(node.func):
            what = "the script works in place on what items may read"
            self._gap(ProofReason.OWNED, what, node, scope)
        if name in ("send", "asend") and any(map(scope.is_near, node.args)):
            what = "the script sends what items may read to a generator"
            self._gap(ProofReason.OWNED, what, node, scope)
        again = name in BUILDING and owner is not None and scope.unit.name not in BUILDING
        if again and any(map(scope.is_near, [node.func, *node.args])):
            self._gap(ProofReason.UNWRITTEN, "the script makes an object anew", node, scope)

    def _is_own_method(self, node: ast.Call, scope: VariableScope) -> bool:
        """Return whether a method calls another one of its own class, which is looked at itself."""
        owner = getattr(node.func, "value", None)
        is_self = isinstance(owner, ast.Name) and owner.id == scope.first
        return is_self and (scope.unit.path, scope.unit.owner, called(node)) in self._methods

    def _call(self, node: ast.Call, scope: VariableScope) -> None:
        name = called(node)
        self._worked_on(node, scope)
        if name in _HIDDEN and isinstance(node.func, ast.Attribute):
            if name not in _RUNS_TEXT or node.args or node.keywords:
                self._gap(ProofReason.UNWRITTEN, f"the script uses {name}", node, scope)
        elif name in _NAMESPACES and isinstance(node.func, ast.Name):
            if not node.args or scope.is_near(node.args[0]):
                self._gap(ProofReason.UNWRITTEN, f"the script uses {name}()", node, scope)
        elif name == "getattr" and isinstance(node.func, ast.Name):
            self._taken_by_name(node, scope)
        elif name == "attrgetter":
            self._gotten_by_name(node, scope)
        elif name in _SETTERS:
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            is_bound = len(node.args) <= _BOUND.get(name, 0)
            self._set_by_name(node, [*(owner if is_bound else ()), *node.args], scope)

    def _set_by_name(self, node: ast.Call, given: Sequence[ast.expr], scope: VariableScope) -> None:
        if not given or not (scope.is_near(given[0]) or scope.is_shared(given[0])):
            return
        named = given[1] if len(given) > 1 else None
        if isinstance(named, ast.Constant) and named.value not in self._read:
            return
        if getattr(given[0], "id", None) == scope.first and self._is_being_made(scope.unit):
            return
        self._gap(ProofReason.UNWRITTEN, "the script sets an attribute by name", node, scope)

    # ---- what is done with what was taken

    def _only_read(self, node: ast.expr, scope: VariableScope) -> bool:
        """Return whether an expression that holds what items read is only looked at."""
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        parents = scope.parents
        parent = parents.get(id(node))
        if isinstance(parent, ast.Attribute) and not _is_called(parent, parents):
            if name in self._names.options and isinstance(parent.ctx, ast.Load):
                return True  # the attribute is checked under its own name
            if parent.attr == "index":  # of a table: it cannot be written
                return _is_looked_at(parent, parents, flat=True, whole=True)
        is_flat = name not in self._names.nested
        return _is_looked_at(node, parents, flat=is_flat, whole=name not in self._names.collecting)


def _is_plain(kind: type) -> bool:
    """Return whether a class has no methods that write in place, but what the script wrote."""
    return is_user_class(kind) or kind.__module__.startswith(_PLAIN_HOMES)


def _may_name(said: str, name: str) -> bool:
    """Return whether code that says this may mean a method: a private one has another name too."""
    return said == name or (name.startswith("__") and said.endswith(name))


def _runs_at_once(scope: VariableScope) -> bool:
    """Return whether calling a method runs its body: it is neither a generator nor decorated."""
    function = scope.unit.function
    has_yield = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in scope.nodes)
    return isinstance(function, ast.FunctionDef) and not (has_yield or function.decorator_list)


def _called_with_near(scope: VariableScope) -> Iterator[str]:
    """Yield the names of what is called on, or with, anything that may lead to what items read."""
    for node in scope.nodes:
        if isinstance(node, ast.Call):
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            if any(map(scope.is_near, [*owner, *node.args, *node.keywords])):
                yield callee(node)
                yield from scope.known.aliases.get(callee(node), ())


def _is_called(node: ast.Attribute, parents: Mapping[int, ast.AST]) -> bool:
    call = parents.get(id(node))
    return isinstance(call, ast.Call) and call.func is node


def _is_looked_at(
    node: ast.AST, parents: Mapping[int, ast.AST], *, flat: bool, whole: bool
) -> bool:
    """Return whether the use of an expression leaves it unchanged and keeps nothing of it.

    Args:
        node: the expression.
        parents: what each node is in, by the node's id.
        flat: nothing in it can be written.
        whole: it is not a container of what can be written.
    """
    parent = parents.get(id(node))
    if isinstance(parent, ast.Attribute):
        return _is_only_asked(parent, parents, flat=flat, whole=whole)
    if isinstance(parent, ast.Call) and parent.func is not node:
        name = called(parent)
        is_copied = (flat or whole) and _is_written_out(parent)
        return name in _READERS or is_copied or (flat and name in _FLAT_READERS)
    call = parents.get(id(parent))
    if (flat or whole) and isinstance(parent, (ast.Dict, ast.List, ast.Tuple)):
        return isinstance(call, ast.Call) and _is_written_out(call)
    if isinstance(parent, ast.keyword) and parent.arg is None:  # "{name}".format(**vars)
        return isinstance(call, ast.Call) and called(call) == "format"
    if isinstance(parent, ast.Subscript) and parent.value is node:
        if not isinstance(parent.ctx, ast.Load):
            return False
        return flat or _is_looked_at(parent, parents, flat=flat, whole=whole)
    if isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node:
        return flat
    return _is_test(node, parent) or (whole and isinstance(parent, ast.BinOp))


def _is_only_asked(
    node: ast.Attribute, parents: Mapping[int, ast.AST], *, flat: bool, whole: bool
) -> bool:
    """Return whether an attribute of what items read only tells something about it."""
    if node.attr in FIGURES:
        return isinstance(node.ctx, ast.Load)
    if not _is_called(node, parents):
        return False
    if flat and node.attr in _VIEWS:
        return _is_looked_at(parents[id(node)], parents, flat=True, whole=whole)
    return (flat and node.attr == "get") or (whole and node.attr in library.COPYING_METHODS)


def _is_written_out(call: ast.Call) -> bool:
    """Return whether a call writes what it is given to a file, or copies it."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and (owner.id, called(call)) in _WRITING_OUT


def _is_test(node: ast.AST, parent: ast.AST | None) -> bool:
    if isinstance(parent, ast.IfExp):
        return parent.test is node
    looking = (
        ast.Compare, ast.UnaryOp, ast.FormattedValue, ast.Expr, ast.If, ast.Assert, ast.While,
    )  # fmt: skip
    return isinstance(parent, looking)
