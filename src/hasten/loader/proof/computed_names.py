"""Names that are put together when the code runs, as in `getattr(self, f"layer{i}")`."""

from __future__ import annotations

import ast
import re
import sys
import weakref
from collections import defaultdict
from itertools import chain
from types import FunctionType, GenericAlias, ModuleType
from typing import TYPE_CHECKING

from hasten.loader.proof.bindings import called
from hasten.loader.proof.source import is_user_class, is_user_file, stored, tree_of_file
from hasten.loader.proof.stored_names import stored_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from hasten.loader.proof.source import Tree

ANY_NAME = "*"
"""Stands for a name of which nothing is known."""
_SETTING = {
    "setattr", "__setattr__", "__dict__", "vars", "__setstate__", "add_module", "register_module",
}  # fmt: skip
_PASSING_ON = (*weakref.ProxyTypes, super, GenericAlias)
_PLAIN_ASKING = "torch.nn.modules.module"
"""Its `__getattr__` gives parameters, buffers and submodules, no method of another object."""


def pattern_of(node: ast.AST) -> str:
    """Return the known parts of a computed name, with `*` for those between."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(pattern_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return pattern_of(node.left) + pattern_of(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return pattern_of(node.left).partition("%")[0] + ANY_NAME
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        known = pattern_of(node.func.value) if called(node) == "format" else ""
        return known.partition("{")[0] + ANY_NAME
    return ANY_NAME


def matching(patterns: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the names that may be meant by any of some patterns.

    >>> sorted(matching(["layer*", "norm"], ["layer1", "layers", "norm", "norm2"]))
    ['layer1', 'layers', 'norm']
    """
    parts = [".*".join(map(re.escape, one.split(ANY_NAME))) for one in patterns]
    known = re.compile("|".join(parts) or "(?!)", re.DOTALL)
    return set(filter(known.fullmatch, names))


class LibraryObjects:
    """Tells which objects belong to a library: a name asked of them is no function of the script's.

    Whatever function of the script such an object has was given to it by name.

    Args:
        instances: of the script's classes.
        plain: classes whose objects, heirs included, get their attributes only from code of the
            script.

    Attributes:
        relied_on: the attributes whose present values were looked at.
    """

    def __init__(self, instances: Sequence[object], plain: Set[str]) -> None:
        self._instances, self._plain = instances, plain
        self._held: dict[tuple[str, str], bool] = {}
        self._imports: dict[str, dict[str, set[str]]] = {}
        self.relied_on: set[str] = set()

    def is_asked(self, call: ast.Call, path: str, owner: str, first: str) -> bool:
        """Return whether `getattr` is called of a library's module or object.

        Args:
            call: a call.
            path: the file that it stands in.
            owner: the class of the method that it stands in; empty where it is none.
            first: the method's first parameter.
        """
        if getattr(call.func, "id", "") != "getattr" or not call.args:
            return False
        asked = call.args[0]
        if isinstance(asked, ast.Attribute) and getattr(asked.value, "id", None) == first:
            return self._holds_librarys(owner, asked.attr)
        return self._is_module(asked, path)

    def may_change(self, code: Iterable[Sequence[ast.AST]], *, unpickles: bool) -> bool:
        """Return whether code may set what was looked at, or make such objects from a file."""
        if self.relied_on and unpickles:
            return True
        for node in chain.from_iterable(code) if self.relied_on else ():
            name = getattr(node, "attr", getattr(node, "id", ""))
            is_load = isinstance(getattr(node, "ctx", None), ast.Load)
            if name in _SETTING or (name in self.relied_on and not is_load):
                return True
        return False

    def _holds_librarys(self, owner: str, name: str) -> bool:
        """Return whether all objects of a class hold something of a library's by this name."""
        if (owner, name) not in self._held:
            kinds = {
                kind for kind in set(map(type, self._instances))
                if owner in self._plain and any(one.__name__ == owner for one in kind.__mro__)
            }  # fmt: skip
            holding = [one for one in self._instances if type(one) in kinds]
            self._held[owner, name] = bool(holding) and all(
                _is_librarys(one, name) for one in holding
            )
        if self._held[owner, name]:
            self.relied_on.add(name)
        return self._held[owner, name]

    def _is_module(self, node: ast.expr, path: str) -> bool:
        """Return whether an expression is a module of a library."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        tree = tree_of_file(path)
        if not isinstance(node, ast.Name) or tree is None:
            return False
        if path not in self._imports:
            self._imports[path] = _imports_of(tree)
        homes = self._imports[path].get(node.id, ())
        return bool(homes) and all(_is_library(_found(home, names)) for home in homes)


def _is_librarys(owner: object, name: str) -> bool:
    """Return whether an attribute is, itself, an object of a library that asks no other object."""
    held = stored(owner, "__dict__")
    if type(owner).__getattribute__ is not object.__getattribute__:
        return False
    if not held or name not in held or any(name in vars(kind) for kind in type(owner).__mro__):
        return False
    kind = type(held[name])
    if kind in _PASSING_ON or is_user_class(kind):
        return False
    if issubclass(kind, type):
        return not is_user_class(held[name])
    if issubclass(kind, ModuleType):
        return _is_library(held[name])
    return not any(_asks_others(one) for one in kind.__mro__)


def _asks_others(kind: type) -> bool:
    """Return whether objects of a class pass questions on to another object."""
    asking = (vars(kind).get(name) for name in ("__getattr__", "__getattribute__"))
    if "__wrapped__" in vars(kind):
        return True
    return any(isinstance(one, FunctionType) and one.__module__ != _PLAIN_ASKING for one in asking)


def _imports_of(tree: Tree) -> dict[str, set[str]]:
    """Return the variables of a file that nothing but imports set, with what they import."""
    found = defaultdict(set)
    others: set[str | None] = set()
    for node in tree.nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                found[one.asname or top].add(one.name if one.asname else top)
        elif isinstance(node, ast.ImportFrom):
            home = "" if node.level else node.module or ""
            for one in node.names:
                found[one.asname or one.name].add(f"{home}.{one.name}")
        elif not isinstance(node, ast.alias):
            others |= {*stored_by(node), getattr(node, "name", None)}
            others |= {node.arg} if isinstance(node, ast.arg) else set()
    known = {} if "*" in found else found
    return {name: homes for name, homes in known.items() if name not in others}


def _found(home: str, names: Iterable[str]) -> object:
    """Return what a path of attributes leads to from a module; None where there is none."""
    one: object = sys.modules.get(home)
    for name in names:
        one = stored(one, name)
    return one


def _is_library(one: object) -> bool:
    path = stored(one, "__file__")
    return isinstance(one, ModuleType) and isinstance(path, str) and not is_user_file(path)
