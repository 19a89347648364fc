"""Native libraries that take a path: pass them the path in the merged view instead.

Only those that nearly every training script meets: SQLite, torch's own file reader and writer
(`torch.save` writes its archive in C++), TorchScript and safetensors.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from hasten.trials.isolation.merged_view import MergedView, real

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_DATABASE_BYTES = 1 << 30
_WRITING = os.O_RDWR | os.O_CREAT | os.O_TRUNC


def redirect_torch(torch: Any, shadow: MergedView) -> None:
    """Redirect the native readers and writers of torch and safetensors, once."""
    if hasattr(torch._C.PyTorchFileWriter, "hasten_redirected"):
        return
    for name, flags in (("PyTorchFileWriter", _WRITING), ("PyTorchFileReader", os.O_RDONLY)):
        setattr(torch._C, name, _taking_place(shadow, getattr(torch._C, name), flags))
    torch.jit.save = torch.jit._serialization.save = _with_place(
        shadow, torch.jit.save, index=1, flags=_WRITING
    )
    torch.jit.load = torch.jit._serialization.load = _with_place(shadow, torch.jit.load)
    storage = torch.UntypedStorage
    storage.from_file = staticmethod(_with_place(shadow, storage.from_file, flags=os.O_RDONLY))
    if importlib.util.find_spec("safetensors"):
        rust = importlib.import_module("safetensors")
        for name, index, flags in (("serialize_file", 1, _WRITING), ("safe_open", 0, os.O_RDONLY)):
            if hasattr(rust, name):
                setattr(rust, name, _with_place(shadow, getattr(rust, name), index, flags))


def redirect_sqlite(shadow: MergedView) -> None:
    """Redirect `sqlite3.connect`, whether sqlite3 has been imported already or will be."""
    try:
        native = importlib.import_module("_sqlite3")
    except ImportError:
        return
    original = native.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_database(shadow, database, bool(kwargs.get("uri"))), *args, **kwargs)

    for module in (native, sys.modules.get("sqlite3"), sys.modules.get("sqlite3.dbapi2")):
        if module is not None:
            module.connect = connect  # type: ignore[attr-defined]


def _database(shadow: MergedView, database: Any, uri: bool) -> Any:
    text = os.fsdecode(database)
    scheme, _, options = text.partition("?") if uri and text.startswith("file:") else ("", "", "")
    name = scheme.removeprefix("file:").removeprefix("//") if scheme else text
    path = None if name in ("", ":memory:") or "mode=memory" in options else shadow.absolute(name)
    if path is None:
        return database
    flat = shadow.resolve(path, follow=True)
    at = shadow.spot(flat)
    large = (
        at == flat and os.path.lexists(flat) and real.stat(flat).st_size > _LARGEST_DATABASE_BYTES
    )
    if not large and "mode=ro" not in options:
        at = shadow.opening(path, os.O_RDWR | os.O_CREAT)
        for suffix in ("-wal", "-journal"):
            shadow.editing(flat + suffix)
    return f"file:{at}?{options}" if scheme else at


def _taking_place(shadow: MergedView, native: Any, flags: int) -> Any:
    """Return a class like `native` whose first argument may be a path to redirect."""

    def begin(self: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        native.__init__(self, _place(shadow, target, flags), *args, **kwargs)

    return type(native.__name__, (native,), {"__init__": begin, "hasten_redirected": True})


def _with_place(
    shadow: MergedView, original: Callable[..., Any], index: int = 0, flags: int = os.O_RDONLY
) -> Callable[..., Any]:
    """Return a function that redirects the path in one of its arguments."""

    @functools.wraps(original, assigned=("__name__", "__doc__"), updated=())
    def redirected(*args: Any, **kwargs: Any) -> Any:
        moved = list(args)
        if len(moved) > index:
            moved[index] = _place(shadow, moved[index], flags)
        for name in ("filename", "f"):
            if name in kwargs:
                kwargs[name] = _place(shadow, kwargs[name], flags)
        return original(*moved, **kwargs)

    return redirected


def _place(shadow: MergedView, target: Any, flags: int) -> Any:
    path = shadow.absolute(target) if isinstance(target, (str, bytes, os.PathLike)) else None
    return target if path is None else shadow.opening(path, flags)
