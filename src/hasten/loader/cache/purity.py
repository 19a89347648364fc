"""What a dataset's code names, and why that may forbid keeping its samples."""

from __future__ import annotations

import builtins
import io
import mmap
import re
import sys
import sysconfig
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from hasten.loader.cache import readers
from hasten.loader.fingerprint import globals_in, imports_in, names_in
from hasten.loader.proof.kinds import format_of, is_arrow_table, is_tokenizer
from hasten.loader.proof.source import is_user_file, stored

_DEEPEST = 5
_MOST_MEMBERS = 64
_CLOCKS = {
    "time": "the clock", "datetime": "the clock", "secrets": "a source of entropy",
    "uuid": "a source of entropy",
}  # fmt: skip
_TELLING = {
    "urandom": "a source of entropy", "SystemRandom": "a source of entropy",
    "getrandom": "a source of entropy", "getpid": "its process",
    "get_worker_info": "the worker that runs it", "environ": "the environment",
    "getenv": "the environment", "current_process": "its process", "get_ident": "its thread",
    "getmtime": "the times of files", "exists": "which files there are",
    "isfile": "which files there are", "is_file": "which files there are",
    "print": "the output", "input": "the terminal", "from_file": "files that no hook sees",
    "memmap": "files that no hook sees", "open_memmap": "files that no hook sees",
    "get_rank": "its rank", "is_available": "the devices",
    "read_video": "files that no hook sees", "read_video_timestamps": "files that no hook sees",
    "VideoReader": "files that no hook sees",
    "read_parquet": "files that no hook sees", "read_feather": "files that no hook sees",
    "read_orc": "files that no hook sees", "read_hdf": "files that no hook sees",
    "HDFStore": "files that no hook sees", "read_sql": "a database",
    "read_sql_query": "a database", "read_sql_table": "a database",
}  # fmt: skip
_TIMELY = {"now", "today", "utcnow"}
_UNSEEN_READERS = {
    "h5py", "lmdb", "sqlite3", "_sqlite3", "netCDF4", "rasterio", "tables", "zarr",
    "pyarrow", "decord", "av", "torchcodec", "turbojpeg",
    "simplejpeg", "jpeg4py", "SimpleITK", "nvidia", "ffcv", "tensorflow", "datasets", "polars",
    "duckdb", "lance", "spdl", "webdataset", "litdata", "streaming", "openslide", "gdal", "osgeo",
    "rocksdb", "leveldb", "plyvel", "redis", "boto3", "requests", "urllib3", "kornia_rs", "ffmpeg",
    "pyvips", "imageio_ffmpeg", "ray", "accimage", "fsspec", "s3fs", "gcsfs", "tensorstore",
}  # fmt: skip
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__"}
_PLAIN_BASES = {"builtins", "typing", "abc"}
_OF_CLASSES = {"__class__", "type", "copy", "deepcopy", "replace"}
_BY_ANY_NAME = {
    "getattr", "__getattribute__", "eval", "exec", "vars", "__dict__", "dir", "attrgetter",
    "methodcaller", "getmembers",
}  # fmt: skip
_SHARED_STATE = ("multiprocessing", "ctypes", "_ctypes", "threading", "_thread", "queue", "socket")
_STDLIB = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\](\w+)")
_KNOWN_LIBRARIES = {"torch", "torchvision", "numpy", "PIL", "pandas"}
# Frames and their parts, in pandas. They hold memory; what reads files are others.
_OF_FRAMES = {"PandasObject", "ExtensionArray", "ExtensionDtype"}


class PurityAnalysis:
    """The functions that make the samples of an object, as far as they can be followed.

    Follows the object's special methods, its attributes and other methods where the code followed
    so far names them (all of them where it inherits code that is not followed), the globals and
    closures that this names and what those hold, a few levels deep, but not the standard library or
    torch. What an object was made with has run before: it may look for files and print. What is
    called by a name built at run time is not seen.

    Attributes:
        why_not: why a sample may depend on more than its index; empty if nothing suggests
            it.
        globals: the namespaces and names of the values that the code reads from outside.
        classes: the classes of the objects met, whose attributes are read through them too.
    """

    def __init__(self, *roots: Any) -> None:
        self.why_not = ""
        self.globals: list[tuple[dict[str, Any], str]] = []
        self.classes: dict[type, None] = {}
        self._seen: set[int] = set()
        self._names: set[str] = set()
        self._unnamed: list[tuple[str, Any]] = []
        self._roots = set(map(id, roots))
        layer = list(roots)
        for _ in range(_DEEPEST):
            layer = [below for value in layer for below in self._follow(value)]
            while named := self._named():
                layer += [below for value in named for below in self._follow(value)]
        self._unnamed.clear()  # they may hold the dataset, which would never end

    @property
    def opens_pictures(self) -> bool:
        """Whether the code opens pictures with Pillow."""
        pillow: Any = sys.modules.get("PIL.Image")
        folder: Any = sys.modules.get("torchvision.datasets.folder")
        openers = [pillow and pillow.open]
        openers += [getattr(folder, name, None) for name in ("default_loader", "pil_loader")]
        if any(id(one) in self._seen for one in openers if one is not None):
            return True
        return pillow is not None and id(pillow) in self._seen and "open" in self._names

    def outside(self) -> list[Any]:
        """Return the values that the samples are made with, except the roots' own attributes."""
        values = [space.get(name) for space, name in self.globals]
        for kind in self.classes:
            fields = vars(kind).items()
            values += [value for name, value in fields if not name.startswith("__")]
        return values

    def _follow(self, value: Any) -> list[Any]:
        if id(value) in self._seen or isinstance(value, (str, bytes, int, float, type(None))):
            return []
        self._seen.add(id(value))
        # What opens files in a library whose readers are known is watched, or refused here.
        if isinstance(value, (ModuleType, BuiltinFunctionType)) or readers.library_of(value):
            self._judge_home(value)
            return []
        if isinstance(value, FunctionType):
            return self._follow_function(value)
        if isinstance(value, MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, dict):
            return list(value.values())[:_MOST_MEMBERS]
        if isinstance(value, (list, tuple, set, frozenset)):
            return list(value)[:_MOST_MEMBERS]
        return self._follow_object(value)

    def _follow_object(self, value: Any) -> list[Any]:
        if is_tokenizer(value):  # its files were read when it was made
            return []
        if is_arrow_table(value):
            return list(format_of(value).values())
        kind = value if isinstance(value, type) else type(value)
        self._judge_home(kind)
        if not isinstance(value, type):
            self._judge_object(value)
        if kind.__module__ == "builtins" or is_of_frames(kind):
            return []
        methods: list[tuple[str, FunctionType]] = []
        for parent in filter(is_followed, kind.__mro__):
            self.classes[parent] = None
            found = ((name, _function(member)) for name, member in vars(parent).items())
            methods += [(name, one) for name, one in found if one is not None]
        # A class that is called makes an object.
        of_making = set() if isinstance(value, type) else _MAKING
        held = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        members: list[tuple[str, Any]] = [*list(held.items())[:_MOST_MEMBERS], *methods]
        by_name = id(value) in self._roots and _has_plain_bases(kind)
        later = of_making | {name for name, _ in members if by_name and not name.startswith("__")}
        self._unnamed += [one for one in members if one[0] in later]
        return [one for name, one in members if name not in later]

    def _named(self) -> list[Any]:
        """Return the methods and attributes that are named by now, or all if any may be meant."""
        if self._names & _BY_ANY_NAME:
            named = {name for name, _ in self._unnamed}
        else:
            named = self._names | (_MAKING if self._names & _OF_CLASSES else set())
        found = [one for name, one in self._unnamed if name in named]
        self._unnamed = [one for one in self._unnamed if one[0] not in named]
        return found

    def _judge_object(self, value: Any) -> None:
        kept_open = isinstance(value, (io.IOBase, mmap.mmap))
        if kept_open or type(value).__name__ in ("memmap", "SoundFile"):
            self._suspect("it keeps a file open, whose changes nobody can see")
        elif _root(type(value)) in _SHARED_STATE:
            self._suspect(f"it shares state with other threads or processes ({type(value)})")
        elif type(value).__name__ == "Tensor" and value.is_shared():
            self._suspect("it holds a tensor in shared memory, which others may write")

    def _judge_home(self, value: Any) -> None:
        root = readers.library_of(value) or _root(value)
        if root in _UNSEEN_READERS or readers.reads_unseen(value):
            self._suspect(f"{root} may read files in a way that cannot be seen")

    def _suspect(self, why: str) -> None:
        self.why_not = self.why_not or why

    # ---- functions

    def _follow_function(self, function: FunctionType) -> list[Any]:
        self._judge_home(function)
        if not is_own_file(function.__code__.co_filename):
            return []
        space = function.__globals__
        below: list[Any] = [*(function.__defaults__ or ())]
        below += (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            try:
                below.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        names, own = names_in(function.__code__), globals_in(function.__code__)
        imported = imports_in(function.__code__)
        self._names |= names
        modules = [space[name] for name in own if isinstance(space.get(name), ModuleType)]
        modules = [module for module in modules if not readers.library_of(module)]
        for name in names:
            found = space.get(name, getattr(builtins, name, None)) if name in own else None
            self._judge_name(name, found, names, is_taken=name in own or name in imported)
            is_set = name in own and name in space
            if is_set and not isinstance(found, (ModuleType, FunctionType, type)):
                self.globals.append((space, name))
            library = readers.library_of(found)
            if not library:
                below.append(found)
            elif readers.takes_unseen(function.__code__, name, found):
                self._suspect(f"{library} may read files in a way that cannot be seen")
            below += [vars(module)[name] for module in modules if name in vars(module)]
        return below

    def _judge_name(self, name: str, found: Any, names: set[str], *, is_taken: bool) -> None:
        root = _library(name) if found is None else _root(found)
        if name in _TELLING:
            self._suspect(f"its code names {name}: a sample may depend on {_TELLING[name]}")
        elif root == "datetime" and not names & _TIMELY:
            return
        elif root in _CLOCKS:
            self._suspect(f"its code names {name}: a sample may depend on {_CLOCKS[root]}")
        elif found is None and not is_taken and name not in sys.modules:
            return  # an attribute that is no such module: a dataset may hold `datasets`
        elif root in _UNSEEN_READERS or (found is None and root in readers.LIBRARIES):
            self._suspect(f"{root} may read files in a way that cannot be seen")


def _has_plain_bases(kind: type) -> bool:
    """Return whether all code that a class inherits is followed, or reads nothing of an object."""
    return all(
        is_followed(parent) or parent.__module__ in _PLAIN_BASES or parent.__name__ == "Dataset"
        for parent in kind.__mro__
    )


def _function(member: Any) -> FunctionType | None:
    member = getattr(member, "__func__", getattr(member, "fget", member))
    return member if isinstance(member, FunctionType) else None


def _root(value: Any) -> str:
    return _library(readers.home_of(value))


def _library(name: str) -> str:
    """Return the library that a module is of; empty where it is a file of the user's.

    Scripts have files such as `datasets.py` and `tables.py`.
    """
    root = name.partition(".")[0]
    path = stored(sys.modules.get(root), "__file__")
    return "" if path and is_user_file(path) else root


def is_of_frames(kind: type) -> bool:
    """Return whether a class is that of a table of pandas or of its parts."""
    return _root(kind) == "pandas" and any(one.__name__ in _OF_FRAMES for one in kind.__mro__)


def is_own_file(path: str) -> bool:
    """Return whether to look into a file: not one of the standard library or a known one."""
    installed = _INSTALLED.search(path)
    if installed:
        return installed[1] not in _KNOWN_LIBRARIES
    return not path.startswith(("<frozen", *_STDLIB))


def is_followed(kind: type) -> bool:
    """Return whether the code of a class is looked into."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or bool(path and is_own_file(path))
