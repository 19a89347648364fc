"""Our imports in the user's process, where the user has modules named like Python's own.

A `statistics.py` beside the script is what the script's `import statistics` means, and must not be
what ours means. Where there is such a module, Python's own are imported before the script's folder
is on `sys.path`; the shadowed ones leave `sys.modules` again, so that the script finds its own, and
our modules go on with those that were imported here. Without such a module nothing is done.
"""

import builtins
import os
import sys

# By the names that they have before `importlib` is imported, which imports `warnings`.
from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import PathFinder, SourceFileLoader

TYPE_CHECKING = False  # that of `typing` would have to be imported
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

AHEAD_KEY = "HASTEN_AHEAD"
"""Tells the processes that multiprocessing spawns where the script's folder is."""

NEEDED = (
    "__future__", "_frozen_importlib", "_frozen_importlib_external", "argparse", "array", "ast",
    "atexit", "base64", "bisect", "builtins", "collections", "collections.abc",
    "concurrent.futures", "contextlib", "copy", "ctypes", "dataclasses", "datetime", "decimal",
    "difflib", "dis", "enum", "errno", "faulthandler", "fcntl", "fractions", "functools", "gc",
    "getpass", "glob", "hashlib", "heapq", "importlib", "importlib.abc", "importlib.machinery",
    "importlib.util", "inspect", "io", "itertools", "json", "linecache", "marshal", "math", "mmap",
    "multiprocessing", "multiprocessing.connection", "multiprocessing.shared_memory",
    "multiprocessing.util", "operator", "os", "pathlib", "pickle", "pkgutil", "platform", "queue",
    "random", "re", "resource", "select", "selectors", "shlex", "shutil", "signal", "site",
    "socket", "stat", "statistics", "string", "struct", "subprocess", "sys", "sysconfig",
    "tempfile", "termios", "textwrap", "threading", "time", "traceback", "types", "typing", "uuid",
    "warnings", "weakref", "zlib",
)  # fmt: skip
"""Every standard-library module that our code in the user's process ever imports."""


def keep_apart(root: str) -> None:
    """Keep our imports apart from the user's modules; called once, before the script.

    Args:
        root: the folder that holds the package hasten.
    """
    ahead = _ahead()
    shadowed = _shadowed(ahead)
    if not shadowed:
        return
    os.environ[AHEAD_KEY] = os.pathsep.join(ahead)
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry not in ahead]
    theirs = _take_out(
        {n for n, m in list(sys.modules.items()) if _lies_in(m, ahead) and _top(n) in shadowed}
    )
    before = set(sys.modules)
    try:
        for name in NEEDED:
            _import_if_there(name)
    finally:
        sys.path[:] = path
        own = _take_out({n for n in set(sys.modules) - before if _top(n) in shadowed})
        sys.modules.update(theirs)
    sys.meta_path.insert(0, _Finder(root, own))


def _take_out(names: "set[str]") -> "dict[str, ModuleType]":
    return {name: sys.modules.pop(name) for name in names}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _lies_in(module: "Any", folders: "list[str]") -> bool:
    file = getattr(module, "__file__", None) or ""
    return any(file.startswith(folder + os.sep) for folder in folders)


def _import_if_there(name: str) -> None:
    try:
        __import__(name)
    except ImportError:
        return


def _ahead() -> "list[str]":
    """Return the folders that Python searches before its standard library."""
    own = os.path.dirname(os.__file__)
    before = sys.path[: sys.path.index(own)] if own in sys.path else []
    found = [_script_folder(), *before]
    if "multiprocessing.spawn" in " ".join(sys.orig_argv):  # it gets the path of its parent later
        found += os.environ.get(AHEAD_KEY, "").split(os.pathsep)
    return [os.path.abspath(entry) for entry in found if entry]


def _script_folder() -> str:
    """Return what Python will put first on `sys.path`; empty if nothing."""
    if sys.flags.safe_path:
        return ""
    first = sys.argv[0] if sys.argv else ""
    try:
        path = os.getcwd() if first in ("", "-c", "-m") else os.path.realpath(first)
    except OSError:  # the working folder is gone
        return ""
    return path if os.path.isdir(path) else os.path.dirname(path)


def _shadowed(ahead: "list[str]") -> "frozenset[str]":
    """Return the names of standard-library modules that modules in these folders shadow."""
    found = set()
    for folder in ahead:
        try:
            names = {entry.partition(".")[0] for entry in os.listdir(folder)}
        except OSError:  # a zip file, or nothing
            continue
        for name in names & sys.stdlib_module_names:
            spec = PathFinder.find_spec(name, [folder])
            # Not a mere folder, as of data, nor a built-in module, which Python takes first.
            if spec is not None and spec.has_location and not _is_built_in(name):
                found.add(name)
    return frozenset(found)


def _is_built_in(name: str) -> bool:
    return any(finder.find_spec(name) for finder in (BuiltinImporter, FrozenImporter))


class _Finder:
    """Find our package, and let its modules import what is ours."""

    def __init__(self, root: str, own: "dict[str, ModuleType]") -> None:
        self._root = root
        self._own = own
        self._builtins = {**vars(builtins), "__import__": _importing(own)}

    def find_spec(
        self, name: str, path: "Any" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if _top(name) != "hasten":
            return None
        spec = PathFinder.find_spec(name, path or [self._root])
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._builtins, self._own)
        return spec


class _Loader(SourceFileLoader):
    """Run one of our modules with our own `import`."""

    def __init__(
        self, name: str, path: str, builtins: "dict[str, Any]", own: "dict[str, ModuleType]"
    ) -> None:
        super().__init__(name, path)
        self._builtins = builtins
        self._own = own

    def exec_module(self, module: "ModuleType") -> None:
        module.__dict__["__builtins__"] = self._builtins
        theirs = {name: sys.modules.get(name) for name in self._own}
        sys.modules.update(self._own)  # `dataclasses` looks itself up while it makes a class
        try:
            super().exec_module(module)
        finally:
            for name, found in theirs.items():
                if found is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = found


def _importing(own: "dict[str, ModuleType]") -> "Any":
    """Return the `__import__` of our modules, which takes what is in `own` from there."""

    def importing(
        name: str, globals: "Any" = None, locals: "Any" = None,  # noqa: A002
        fromlist: "Any" = (), level: int = 0,
    ) -> "Any":  # fmt: skip
        if level == 0 and name in own:
            return own[name if fromlist else _top(name)]
        return builtins.__import__(name, globals, locals, fromlist, level)

    return importing
