"""Names that are put together when the code runs, as in `getattr(self, f"layer{i}")`."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from hasten.loader.proof.bindings import called
from hasten.loader.proof.source import is_user_class, is_user_file, stored, tree_of_file
from hasten.loader.proof.stored_names import stored_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hasten.loader.proof.source import Tree

ANY_NAME = "*"
"""Stands for a name of which nothing is known."""
_SETTING = {
    "setattr", "__setattr__", "__dict__", "vars", "__setstate__", "add_module", "register_module",
}  # fmt: skip


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
    if isinstance(node, ast.Call) and called(node) == "format":
        return pattern_of(getattr(node.func, "value", node)).partition("{")[0] + ANY_NAME
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
    """Knows which objects are a library's: a name asked of them is none of the script's functions.

    Whatever function of the script such an object has was given to it by name.

    Args:
        instances: of the script's classes.

    Attributes:
        relied_on: the attributes whose present values were looked at.
    """

    def __init__(self, instances: Iterable[object]) -> None:
        self._instances = instances
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
        is_own = isinstance(asked, ast.Attribute) and getattr(asked.value, "id", None) == first
        if isinstance(asked, ast.Attribute) and is_own and owner:
            if is_librarys := self._holds_none_of_users(owner, asked.attr):
                self.relied_on.add(asked.attr)
            return is_librarys
        while isinstance(asked, ast.Attribute):
            asked = asked.value
        tree = tree_of_file(path)
        name = getattr(asked, "id", None)
        return tree is not None and name is not None and name in _libraries(tree)

    def may_change(self, nodes: Iterable[ast.AST]) -> bool:
        """Return whether code may set what was looked at."""
        for node in nodes if self.relied_on else ():
            name = getattr(node, "attr", getattr(node, "id", ""))
            is_load = isinstance(getattr(node, "ctx", None), ast.Load)
            if name in _SETTING or (name in self.relied_on and not is_load):
                return True
        return False

    def _holds_none_of_users(self, owner: str, name: str) -> bool:
        holding = [
            one for one in self._instances
            if any(kind.__name__ == owner for kind in type(one).__mro__)
        ]  # fmt: skip
        return bool(holding) and not any(_may_be_users(one, name) for one in holding)


def _may_be_users(owner: object, name: str) -> bool:
    """Return whether an attribute may be the user's: a class, an object of one, or a module."""
    held = stored(owner, "__dict__")
    if not held or name not in held or any(name in vars(kind) for kind in type(owner).__mro__):
        return True
    one = held[name]
    if isinstance(one, type):
        return is_user_class(one)
    path = stored(one, "__file__")
    return is_user_class(type(one)) or (isinstance(path, str) and is_user_file(path))


def _libraries(tree: Tree) -> set[str]:
    """Return the variables of a file that are nowhere anything but modules of libraries."""
    imported = defaultdict(set)
    others = set()
    for node in tree.nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                imported[one.asname or top].add(one.name if one.asname else top)
        elif isinstance(node, ast.ImportFrom):
            home = f"{node.module}." if node.module and not node.level else ""
            for one in node.names:
                imported[one.asname or one.name].add(home + one.name if home else "")
        else:
            others |= {*stored_by(node), getattr(node, "arg", None)}
    known = {} if "*" in imported else imported
    return {
        name
        for name, modules in known.items()
        if name not in others and all(map(_is_library, modules))
    }


def _is_library(name: str) -> bool:
    path = stored(sys.modules.get(name), "__file__")
    return isinstance(path, str) and not is_user_file(path)
