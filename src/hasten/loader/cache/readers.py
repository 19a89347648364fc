"""Libraries that open files in C, where no audit event says so, and how far they can be seen."""

from __future__ import annotations

import re
import sys
from dis import get_instructions
from functools import wraps
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
# Of torchaudio, what opens no file, or is watched.
_TORCHAUDIO = {"load", "functional", "transforms", "compliance"}
_WITHOUT_FILES = tuple(f"torchaudio.{name}" for name in ("functional", "transforms", "compliance"))
# Functions of OpenCV that open files, talk to the user, tell the time, or draw random numbers.
_OPENCV_EFFECTS = re.compile(
    r"im(read.+|write.*|count|show)|(read|write|load|save|have|rand|select|destroy|getTick|getCPU)"
    r".*|setRNGSeed|waitKey.*|pollKey|namedWindow|kmeans|grabCut"
)
_FUNCTIONS = (BuiltinFunctionType, FunctionType)
_OPENCV_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*|bitwise_[a-z]+")
LIBRARIES = {"cv2", "torchaudio", "soundfile", "librosa"}
"""Libraries that are known to open files in nothing but the functions that are watched.

librosa reads by means of soundfile, or opens files in Python.
"""


class Reader(NamedTuple):
    """A function that opens the file at a path in C.

    Attributes:
        module: where it is, once that is loaded.
        owner: what holds it, from the outermost module on.
        name: the attribute of the owner.
        place: of the path among the arguments.
        keywords: names of the path.
    """

    module: str
    owner: str
    name: str
    place: int
    keywords: tuple[str, ...]

    def holder(self) -> Any:
        """Return what holds the function; None where it is not loaded."""
        if self.module not in sys.modules:
            return None
        root, *parts = self.owner.split(".")
        found: Any = sys.modules.get(root)
        for part in parts:
            found = getattr(found, part, None)
        return found

    def path_of(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the path that the function is called with; None where it is not found."""
        if len(args) > self.place:
            return args[self.place]
        return next((named[name] for name in self.keywords if name in named), None)

    def mode_of(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return how the file is opened."""
        if self.name != "__init__":
            return "r"
        return args[self.place + 1] if len(args) > self.place + 1 else named.get("mode", "r")


_READERS = (
    Reader("cv2", "cv2", "imread", 0, ("filename",)),
    Reader("torchaudio", "torchaudio", "load", 0, ("uri", "filepath")),
    Reader("soundfile", "soundfile.SoundFile", "__init__", 1, ("file",)),
    Reader("torchvision.io.image", "torch.ops.image", "read_file", 0, ("path",)),
)


class ReaderWatch:
    """Tells of each file that a known reader opens, from `begin` to `end`.

    Outside of that, each reader is the library's own.

    Args:
        tell: is given an audit event and its arguments, as if the reader were written in Python.
    """

    def __init__(self, tell: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._tell = tell
        self._known: dict[Reader, tuple[Any, Any]] = {}
        self._placed: list[tuple[Any, str, Any, Any]] = []

    def begin(self) -> None:
        """Watch the readers of all libraries that are loaded by now."""
        for reader in _READERS:
            holder = reader.holder()
            if holder is None:
                continue
            original = vars(holder).get(reader.name)
            if original is None and reader not in self._known:  # torch looks for it when asked
                original = getattr(holder, reader.name, None)
            known = self._known.setdefault(reader, (None, None))
            if original is None or original is known[1]:
                continue
            if original is not known[0]:
                known = self._known[reader] = original, self._watched(reader, original)
            setattr(holder, reader.name, known[1])
            self._placed.append((holder, reader.name, *known))

    def end(self) -> None:
        """Put the libraries' own readers back."""
        while self._placed:
            holder, name, original, watched = self._placed.pop()
            if vars(holder).get(name) is watched:  # else the script has set another one
                setattr(holder, name, original)

    def _watched(self, reader: Reader, original: Any) -> Any:
        @wraps(original)
        def read(*args: Any, **named: Any) -> Any:
            path = reader.path_of(args, named)
            if not hasattr(path, "read"):  # else it is a file that was opened in Python
                self._tell("open", (path, reader.mode_of(args, named), 0))
            return original(*args, **named)

        return read


def library_of(value: Any) -> str:
    """Return the library of a function, class or module, if its readers are known; else empty."""
    if not isinstance(value, (ModuleType, type, *_FUNCTIONS)):
        return ""
    library = home_of(value).partition(".")[0]
    if library in LIBRARIES:
        return library
    # OpenCV's functions do not say where they are from.
    opencv = sys.modules.get("cv2")
    names = {} if opencv is None else vars(opencv)
    return "cv2" if isinstance(value, _FUNCTIONS) and names.get(value.__name__) is value else ""


def reads_unseen(value: Any) -> bool:
    """Return whether a function, class or module may open files that nobody is told of.

    A reader that is held somewhere is the library's own, and not watched. What code takes from
    a module by `module.name`, just when it runs, is another question: see `takes_unseen`.
    """
    library = library_of(value)
    if library == "cv2":
        name = getattr(value, "__name__", "")
        is_harmless = isinstance(value, _FUNCTIONS) and _is_harmless(name, value)
        return name == "imread" or not is_harmless
    return library == "torchaudio" and not home_of(value).startswith(_WITHOUT_FILES)


def takes_unseen(code: CodeType, name: str, value: Any) -> bool:
    """Return whether code may take from a global what opens files that nobody is told of.

    Args:
        code: a function's.
        name: of the global.
        value: what it is now.
    """
    if not (isinstance(value, ModuleType) and value.__name__ in ("cv2", "torchaudio")):
        return reads_unseen(value)
    taken = _attributes_of(code, name)
    if taken is None:
        return True
    if value.__name__ == "torchaudio":
        return not taken <= _TORCHAUDIO
    return not all(_is_harmless(one, vars(value).get(one)) for one in taken)


def home_of(value: Any) -> str:
    """Return the name of the module of a function or class, or of a module itself."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(home or "")


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether OpenCV's `name` computes only, or tells which files it opens."""
    if isinstance(value, (int, float, str, tuple)) or name == "error":
        return True
    known = _OPENCV_NAME.fullmatch(name) and not _OPENCV_EFFECTS.fullmatch(name)
    return isinstance(value, _FUNCTIONS) and bool(known)


def _attributes_of(code: CodeType, name: str) -> set[str] | None:
    """Return what code takes from a global by `global.attribute`; None if it does more with it."""
    steps = [step for step in get_instructions(code) if step.opname != "EXTENDED_ARG"]
    taken: set[str] = set()
    for step, following in pairwise([*steps, steps[-1]]):
        if step.opname in _ATTRIBUTE and step.argval in LIBRARIES:
            return None  # it may be the same module by another way
        if step.opname in _GLOBAL and step.argval == name:
            if following.opname not in _ATTRIBUTE:
                return None
            taken.add(following.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _attributes_of(constant, name)
            if inner is None:
                return None
            taken |= inner
    return taken
