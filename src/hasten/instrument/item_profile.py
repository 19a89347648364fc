"""What a dataset is busy with, by the stack of the thread that makes an item."""

from __future__ import annotations

import dis
import linecache
import os
import re
import sys
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hasten.instrument.source_lines import is_own_file, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_HERE = os.path.dirname(os.path.abspath(__file__))
_CALL = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*\(")
_DEEPEST, _MOST_FRAMES = 4, 80

# By the module of a frame: whole names, or packages with all that is inside them.
_DECODERS = frozenset(
    {"PIL.ImageFile", "torchvision.io", "torchaudio.io", "skimage.io", "imageio", "tifffile"}
    | {"simplejpeg", "turbojpeg", "soundfile", "decord", "av", "rawpy", "nibabel", "pydicom"}
    | {"gzip", "bz2", "lzma", "zipfile", "json", "csv", "pickle", "torch.serialization"}
    | {"numpy.lib.npyio", "numpy.lib._npyio_impl", "numpy.lib.format", "numpy.lib._format_impl"}
    | {"cv2.imread", "cv2.imdecode", "zlib", "lz4", "blosc", "zstandard", "_pickle", "orjson"}
)
_STORES = frozenset(
    {"h5py", "pandas", "pyarrow", "datasets", "zarr", "xarray", "netCDF4", "tables", "polars"}
    | {"sqlalchemy", "sqlite3", "dask"}
)
_TRANSFORMS = frozenset(
    {"torchvision.transforms", "torchaudio.transforms", "torchaudio.functional", "albumentations"}
    | {"kornia", "monai", "imgaug", "torchio", "PIL", "skimage", "scipy", "cv2"}
)


def _within(name: str, known: frozenset[str]) -> bool:
    """Return whether a dotted name, or something around it, is in `known`."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in known for count in range(1, len(parts) + 1))


@lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> str:
    path = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    if path and is_own_file(path):
        return ""  # a script may have a `datasets.py`
    if _within(name, _STORES):
        return "store"
    if _within(name, _DECODERS) or (name.startswith("PIL.") and name.endswith("ImagePlugin")):
        return "decode"
    return "transforms" if _within(name, _TRANSFORMS) else ""


@lru_cache(maxsize=4096)
def computes(code: CodeType, line: int) -> bool:
    """Return whether a line of Python calls or computes something, beyond mere look-ups."""
    current = 0
    for step in dis.get_instructions(code):
        starts = step.starts_line
        if starts:  # the line itself, or from Python 3.13 on whether one begins here
            current = getattr(step, "line_number", None) or int(starts)
        if current != line:
            continue
        looks_up = "SUBSCR" in step.opname or "SLICE" in step.opname or "[" in step.argrepr
        if step.opname.startswith("CALL") or (step.opname.startswith("BINARY_") and not looks_up):
            return True
    return False


class ItemProfile:
    """Sort stacks by what the dataset is busy with.

    Args:
        dataset: its callables, and those of the datasets that it holds, count as transforms.
    """

    def __init__(self, dataset: Any) -> None:
        self._codes = frozenset(_codes_in(dataset, 0))

    def classify(self, frame: Any) -> tuple[str, tuple[str, int] | None]:
        """Return what a thread does, and the line of the user's code that does it.

        The kinds: `decode` (files, compressed bytes), `store` (a table or an array on disk),
        `transforms`, `own` (other code of the user that computes), `lookup` (the rest).
        """
        frames = list(_frames(frame))
        own = [(code, line) for code, line, _ in frames if is_own_file(code.co_filename)]
        place = (own[0][0].co_filename, own[0][1]) if own else None
        kind = ""
        if own and own[0][0] is frame.f_code:
            kind = _kind_of_line(frame, own[0][1])
        kinds = ("transforms" if c in self._codes else _kind_of_name(m) for c, _, m in frames)
        kind = kind or next(filter(None, kinds), "")
        return kind or ("own" if own and computes(*own[0]) else "lookup"), place


def _frames(frame: Any) -> Iterator[tuple[CodeType, int, str]]:
    """Yield code, line and module of each frame, innermost first, up to the making of a batch."""
    for _ in range(_MOST_FRAMES):
        if frame is None or os.path.dirname(frame.f_code.co_filename) == _HERE:
            return
        yield frame.f_code, line_of(frame), str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def _kind_of_line(frame: Any, line: int) -> str:
    """Return the kind of a line of Python by the functions of other modules that it calls.

    A function that is written in C has no frame.
    """
    text = linecache.getline(frame.f_code.co_filename, line)
    for name in _CALL.findall(text):
        kind = _kind_of_name(_home_of(frame.f_globals, name.split(".")))
        if kind:
            return kind
    return ""


def _home_of(names: dict[str, Any], path: list[str]) -> str:
    """Return the dotted name that a module has for what the script calls `path`."""
    value, name = names.get(path[0]), path[0]
    for part in path[1:]:
        if not isinstance(value, ModuleType):
            return ""  # an attribute of an object: asking for it could run code
        name, value = f"{value.__name__}.{part}", vars(value).get(part)
    if len(path) > 1:
        return name
    home = getattr(value, "__module__", None)
    return f"{home}.{getattr(value, '__name__', '')}" if isinstance(home, str) else ""


def _codes_in(dataset: Any, depth: int) -> Iterator[CodeType]:
    """Yield the code of the callables that a dataset holds."""
    from torch.utils.data import Dataset

    if depth == _DEEPEST:
        return
    for value in list(getattr(dataset, "__dict__", {}).values()):
        members = value if type(value) in (list, tuple) and len(value) <= 64 else (value,)
        for member in members:
            if isinstance(member, Dataset):
                yield from _codes_in(member, depth + 1)
            elif callable(member) and not isinstance(member, (type, ModuleType)):
                yield from _codes_of(member)


def _codes_of(member: Any) -> Iterator[CodeType]:
    """Yield the code that runs when something is called, as far as it is written in Python."""
    while isinstance(member, partial):
        member = member.func
    member = getattr(member, "__func__", member)
    own = type(member)
    torch: Any = sys.modules["torch"]
    calls = own.forward if isinstance(member, torch.nn.Module) else own.__call__
    for function in (member, calls):
        code = getattr(function, "__code__", None)
        if code is not None:
            yield code
