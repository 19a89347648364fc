"""Whether the user has modules named like Python's own that our code in the user's process imports.

A `statistics.py` beside the script is what the script's `import statistics` means, and must not be
what ours means; nor may ours be what the script gets. So where there is such a module we stay out.
"""

import os
import sys

# By the name that it has before `importlib` is imported, which imports `warnings`.
from _frozen_importlib_external import PathFinder

NEEDED = (
    "__future__", "_frozen_importlib", "_frozen_importlib_external", "argparse", "array", "ast",
    "atexit", "base64", "bisect", "builtins", "collections", "collections.abc",
    "concurrent.futures", "contextlib", "copy", "ctypes", "dataclasses", "datetime", "decimal",
    "difflib", "dis", "enum", "errno", "faulthandler", "fcntl", "fractions", "functools", "gc",
    "getpass", "glob", "hashlib", "heapq", "importlib", "importlib.abc", "importlib.machinery",
    "importlib.util", "inspect", "io", "itertools", "json", "linecache", "marshal", "math", "mmap",
    "multiprocessing", "multiprocessing.connection", "multiprocessing.shared_memory", "operator",
    "os", "pathlib", "pickle", "pkgutil", "platform", "queue", "random", "re", "resource", "select",
    "selectors", "shlex", "shutil", "signal", "site", "socket", "stat", "statistics", "string",
    "struct", "subprocess", "sys", "sysconfig", "tempfile", "termios", "textwrap", "threading",
    "time", "traceback", "types", "typing", "uuid", "warnings", "weakref", "zlib",
)  # fmt: skip
"""Every standard-library module that our code in the user's process ever imports."""


HIDES = "hides a module of Python's own, which hasten needs"


def hiding() -> str:
    """Return the first file of the user's that hides a module which we need; empty for none."""
    needed = {name.partition(".")[0] for name in NEEDED}
    needed -= {*sys.builtin_module_names, *sys.modules}  # nothing hides what is found or built in
    for folder in _ahead():
        try:
            names = {entry.partition(".")[0] for entry in os.listdir(folder)}
        except OSError:  # a zip file, or nothing
            continue
        for name in sorted(names & needed):
            spec = PathFinder.find_spec(name, [folder])
            if spec is not None and spec.has_location:  # not a mere folder, as of data
                return str(spec.origin)
    return ""


def stay_out(file: str) -> None:
    """Say why; a real run goes on as plain Python, a trial ends: nobody would follow it."""
    os.write(2, f"hasten: {file} {HIDES}: rename it\n".encode(errors="surrogateescape"))
    if '"mode": "run"' not in os.environ.pop("HASTEN_CHILD"):
        os._exit(1)


def _ahead() -> "list[str]":
    """Return the folders that Python searches before its standard library."""
    own = os.path.dirname(os.__file__)
    before = sys.path[: sys.path.index(own)] if own in sys.path else []
    return [os.path.abspath(entry) for entry in [_script_folder(), *before] if entry]


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
