"""The syntax tree of a function, checked against the code that runs."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import sysconfig
from functools import cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import WeakKeyDictionary

_STDLIB = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")})
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OURS = __file__.rpartition("loader")[0]
_HEAP = 1 << 9
_WITHOUT_CODE = {
    type(None), bool, int, float, str, tuple, list, dict, BuiltinFunctionType, GetSetDescriptorType,
    MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType,
}  # fmt: skip
_CLASSES: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Tree:
    """A source file, its syntax tree, and which of its functions belongs to which code object."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.module = ast.parse(text)
        self._codes: list[CodeType] = list(_inside(compile(text, path, "exec", dont_inherit=True)))
        self._nodes: dict[tuple[str, int], list[Function]] = {}
        self.nodes = list(ast.walk(self.module))
        for node in self.nodes:
            if isinstance(node, Function):
                self._nodes.setdefault((name_of(node), first_line(node)), []).append(node)

    def function(self, code: CodeType) -> Function | None:
        """Return the definition of a code object; None if the file does not match what runs."""
        key = (code.co_name, code.co_firstlineno)
        nodes = self._nodes.get(key, [])
        codes = [one for one in self._codes if (one.co_name, one.co_firstlineno) == key]
        if len(nodes) != len(codes) or not any(_same(one, code) for one in codes):
            return None
        if len(nodes) == 1:
            return nodes[0]
        holding = [node for node in nodes if _holds(_inner(node), code)]
        return max(holding, key=lambda node: _begin(_inner(node)), default=None)

    def is_module(self, code: CodeType) -> bool:
        """Return whether a code object is that of the whole file."""
        return _same(self._codes[0], code)


_TREES: dict[str, Tree | None] = {}


def tree_of_file(path: str) -> Tree | None:
    """Return the tree of a source file; None where it cannot be read."""
    if path not in _TREES:
        try:
            _TREES[path] = Tree(path, text) if (text := _text(path)) else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            _TREES[path] = None
    return _TREES[path]


def function_of(code: CodeType) -> Function | None:
    """Return the syntax tree of a function; None if its source does not match what runs."""
    tree = tree_of_file(code.co_filename)
    return None if tree is None else tree.function(code)


_OTHERS = ("/sitecustomize.py", "/usercustomize.py", "/_remote_module_non_scriptable.py")
"""Files of nobody's package: what Python starts with, and what older torch writes for itself.

torch 2.5 to 2.8, at least, writes a module into a temporary folder as torchvision is imported.
"""


@cache
def is_user_file(path: str) -> bool:
    """Return whether a file is the user's: neither a library's nor what Python starts with."""
    return not (
        _INSTALLED.search(path)
        or path.startswith(("<frozen", *_STDLIB, _OURS))
        or path.endswith(_OTHERS)
    )


@cache
def _is_user_path(path: str) -> bool:
    return not path.startswith("<") and is_user_file(path)


def is_generated(function: Any) -> bool:
    """Return whether a function was generated from a string, as those of dataclasses are."""
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and code.co_filename == "<string>" and not function_of(code)


def is_user_function(function: Any) -> bool:
    """Return whether a Python function's code is the user's, whatever its metadata says."""
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and is_user_file(code.co_filename)


def is_user_class(kind: type) -> bool:
    """Return whether a class was defined in the user's own files, or changed by them."""
    if not kind.__flags__ & _HEAP:
        return False
    known = _CLASSES.get(kind)
    if known is None:
        known = _CLASSES[kind] = _is_of_user(kind)
    return known


def _is_of_user(kind: type) -> bool:
    if kind.__module__ == "__main__":
        return True
    path = stored(sys.modules.get(kind.__module__), "__file__")
    if path and is_user_file(path):
        return True
    if path is None and kind.__module__ not in sys.modules:
        return True
    for one in vars(kind).values():  # some hundred thousands in all
        if type(one) is FunctionType:
            if _is_user_path(one.__code__.co_filename):
                return True
        elif type(one) not in _WITHOUT_CODE and _wraps_users_code(one):
            return True
    return False


def stored(one: Any, name: str) -> Any:
    """Return an attribute without asking the object's own code for it; None where there is none.

    That code may import a module, as that of `six.moves` does, whatever name is asked for.
    """
    try:
        return object.__getattribute__(one, name)
    except AttributeError:
        return None


def _wraps_users_code(one: Any) -> bool:
    parts = (one, stored(one, "fget"), stored(one, "__func__"))
    return any(_is_of_users_code(part) for part in parts)


def _is_of_users_code(function: Any) -> bool:
    """Return whether the code of a function stands in the user's files.

    Cython functions name the path of their source at build time: for them the module's own
    file decides.
    """
    code = stored(function, "__code__")
    if not isinstance(code, CodeType):
        return False
    path: str | None = code.co_filename
    if not isinstance(function, FunctionType):
        home = sys.modules.get(getattr(function, "__module__", None) or "")
        path = stored(home, "__file__")
    return path is None or _is_user_path(path)


def _text(path: str) -> str:
    if path == "<string>":
        given = sys.orig_argv
        return given[given.index("-c") + 1] if "-c" in given[:-1] else ""
    return "".join(linecache.getlines(path))


def _inside(code: CodeType) -> list[CodeType]:
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _inside(constant)
    return found


def name_of(node: Function) -> str:
    """Return the name of a function; a lambda has that of its code."""
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def first_line(node: Any) -> int:
    """Return the line of a statement or a lambda, or of the first decorator above it."""
    lines = [node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]
    return int(min(lines))


def text_of(node: ast.AST) -> str:
    """Return the text of a piece of code, cut to a line."""
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _inner(node: Function) -> ast.AST:
    """Return the part of a definition that its own code is compiled from."""
    return node.body if isinstance(node, ast.Lambda) else node


def _begin(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _holds(node: Any, code: CodeType) -> bool:
    """Return whether a code object came from a part of the source; an enclosing lambda's does too.

    Instructions without a position, such as the first one, tell nothing.
    """
    end = (node.end_lineno, node.end_col_offset)
    places = [place for place in code.co_positions() if None not in place and any(place[2:])]
    return bool(places) and all(
        _begin(node) <= (line, column) and (last_line, last_column) <= end
        for line, last_line, column, last_column in places
    )


def _same(left: CodeType, right: CodeType) -> bool:
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_firstlineno", "co_name")
    if any(getattr(left, name) != getattr(right, name) for name in names):
        return False
    return [_plain(one) for one in left.co_consts] == [_plain(one) for one in right.co_consts]


def _plain(constant: object) -> str:
    return "code" if isinstance(constant, CodeType) else repr(constant)
