"""Keep a trial's writes in a scratch folder where the kernel permits no overlay.

`install` runs in the user's process before the script, and in the Python processes it starts.
From then on `open`, `os`, `pathlib`, `shutil`, `tempfile`, `sqlite3` and, after `after_torch`,
native code of torch and safetensors see the merged view (`merged_view.py`). A write that gets
around it is refused, by an audit hook here and by Landlock (`landlock.py`) in native code, and
leaves a line in `scratch/refused`.

Not covered, so refused or seen without the trial's changes: native readers and writers other than
those (HDF5, LMDB, Arrow, OpenCV) and other programs; a program started in a folder that only the
trial made; `os.fwalk`; `io.FileIO` and `sqlite3.Connection` called by name. A copy is made of every
existing file that is opened for change and of every folder that is renamed.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import glob
import io
import os
import shutil
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

from hasten.trials.isolation.merged_view import WRITING, MergedView, exists, marked, real
from hasten.trials.isolation.native import redirect_sqlite, redirect_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REFUSED = "refused"
_FLAGS = {"r": os.O_RDONLY, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT, "x": os.O_CREAT}
# name of the audit event -> which of its arguments are paths that change
_CHANGING = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.chmod": (0,), "os.chown": (0,),
    "os.truncate": (0,), "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,),
    "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
}  # fmt: skip
_OPENED = "/proc/self/fd"
_METADATA = ("chmod", "utime", "chown", "lchown", "fchmod", "fchown")
_GLOBBER = getattr(glob, "_StringGlobber", None)
_shadow: MergedView | None = None
_opening = threading.local()


def install(scratch: str) -> None:
    """Redirect this process's writes into `scratch`; does nothing the second time."""
    global _shadow
    if _shadow is not None:
        return
    _shadow = shadow = MergedView(scratch)
    # The import system writes its caches through private copies of `os` functions.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    opened = _named(functools.partial(_open, shadow))
    builtins.open = io.open = opened
    if "bz2" in sys.modules:  # it keeps the function under a name of its own
        sys.modules["bz2"]._builtin_open = opened  # type: ignore[attr-defined]
    for name, replacement in _replacements(shadow):
        _replace(name, _named(replacement))
    for name in ("lstat", "scandir"):  # pathlib's globbing keeps them from its import (3.13)
        if getattr(_GLOBBER, name, None) is getattr(real, name):
            setattr(_GLOBBER, name, staticmethod(getattr(os, name)))
    # shutil's tree functions walk by descriptors, which name real folders.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    redirect_sqlite(shadow)
    sys.addaudithook(functools.partial(_audit, shadow))


def after_torch() -> None:
    """Redirect the native readers and writers that take a path; call once torch is imported."""
    torch = sys.modules.get("torch")
    if torch is not None and _shadow is not None:
        redirect_torch(torch, _shadow)


def _replacements(shadow: MergedView) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every function of `os` that takes a path, with its replacement."""
    for name in ("stat", "access", "statvfs", "getxattr", "listxattr", "pathconf"):
        yield name, functools.partial(_read, shadow, getattr(os, name), True)
    for name in ("lstat", "readlink"):
        yield name, functools.partial(_read, shadow, getattr(os, name), False)
    for name in (*_METADATA, "truncate"):
        yield name, functools.partial(_change, shadow, name)
    for name in ("mkdir", "mkfifo", "mknod"):
        yield name, functools.partial(_make, shadow, getattr(os, name))
    for name in ("remove", "unlink"):
        yield name, functools.partial(_remove, shadow)
    for name in ("rename", "replace"):
        yield name, functools.partial(_rename, shadow)
    own: dict[str, Callable[..., Any]] = {
        "open": _os_open, "listdir": _listdir, "scandir": _scandir, "rmdir": _rmdir,
        "link": _link, "symlink": _symlink, "chdir": _chdir,
        "setxattr": _keep_none, "removexattr": _keep_none,
    }  # fmt: skip
    for name, function in own.items():
        yield name, functools.partial(function, shadow)
    yield "getcwd", shadow.cwd
    yield "getcwdb", lambda: os.fsencode(shadow.cwd())


def _replace(name: str, successor: Callable[..., Any]) -> None:
    original = getattr(os, name, None)
    if original is None:
        return
    for support in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in support:
            support.add(successor)
    setattr(os, name, successor)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function's errors name the paths that the script gave, not the redirected ones."""

    def redirected(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            for part, given in zip(("filename", "filename2"), args, strict=False):
                if getattr(error, part, None) is not None and not isinstance(given, int):
                    setattr(error, part, os.fspath(given))
            raise

    return redirected


def _open(shadow: MergedView, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    opener = kwargs.get("opener") or (args[5] if len(args) > 5 else None)
    path = None if opener else shadow.absolute(file)
    if path is None or not isinstance(mode, str):
        return real.file(file, mode, *args, **kwargs)
    at = shadow.opening(path, _flags(mode))
    if at == path:
        return real.file(file, mode, *args, **kwargs)
    # With an opener, the file keeps the name that the script knows it by.
    kwargs["opener"] = lambda _, flags: real.open(at, flags, 0o666)
    _opening.path = path  # the audit event carries the name, not where the opener goes
    try:
        return real.file(file, mode, *args[:5], **kwargs)
    finally:
        _opening.path = None


def _flags(mode: str) -> int:
    flags = _FLAGS[next((c for c in mode if c in "wax"), "r")]
    if "x" in mode:
        flags |= os.O_EXCL
    if "+" in mode:
        return flags | os.O_RDWR
    return flags | os.O_WRONLY if flags else flags


def _os_open(
    shadow: MergedView, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
) -> int:
    text = shadow.absolute(path, dir_fd)
    if text is None:
        return int(real.open(path, flags, mode, dir_fd=dir_fd))
    return int(real.open(shadow.opening(text, flags), flags, mode))


def _read(
    shadow: MergedView,
    original: Callable[..., Any],
    follow: bool,
    path: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    text = shadow.absolute(path, kwargs.get("dir_fd"))
    if text is None:
        return original(path, *args, **kwargs)
    kwargs.pop("dir_fd", None)
    follow = follow and kwargs.get("follow_symlinks", True)
    found = original(shadow.reading(text, follow=follow), *args, **kwargs)
    return os.fsencode(found) if isinstance(found, str) and isinstance(path, bytes) else found


def _change(shadow: MergedView, name: str, path: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(path, int):
        return _change_opened(shadow, name, path, *args, **kwargs)
    text = shadow.absolute(path, kwargs.get("dir_fd"))
    follow = name != "lchown" and kwargs.get("follow_symlinks", True)
    if text is None:
        lies = os.path.realpath(path) if follow else os.path.abspath(path)
        return _changing(shadow, name, os.fsdecode(lies))(path, *args, **kwargs)
    kwargs.pop("dir_fd", None)
    at = shadow.editing(shadow.resolve(text, follow=follow))
    return _changing(shadow, name, at)(at, *args, **kwargs)


def _keep_none(shadow: MergedView, path: Any, *args: Any, **kwargs: Any) -> None:
    """Answer as a disk that keeps no extended attributes, which tools that copy them expect."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)


def _change_opened(
    shadow: MergedView, name: str, descriptor: int, *args: Any, **kwargs: Any
) -> Any:
    """Change an open file: the file itself if it is the trial's, otherwise its copy."""
    path = os.path.join(_OPENED, str(descriptor))
    if name == "truncate" or not os.path.lexists(path):
        return getattr(real, name)(descriptor, *args, **kwargs)
    path = real.readlink(path)
    if shadow.exempt(path) or not real.access(path, os.F_OK):
        return _changing(shadow, name, path)(descriptor, *args, **kwargs)
    at = shadow.editing(path)
    return _changing(shadow, name.removeprefix("f"), at)(at, *args, **kwargs)


def _changing(shadow: MergedView, name: str, path: str) -> Callable[..., Any]:
    """Return the function that changes a file, in its marked form only for the scratch folder."""
    ours = path.startswith(shadow.scratch + "/")
    found: Callable[..., Any] = getattr(marked if ours else real, name)
    return found


def _make(
    shadow: MergedView, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any
) -> Any:
    text = shadow.absolute(path, kwargs.pop("dir_fd", None))
    if text is None:
        return original(path, *args, **kwargs)
    return original(_new(shadow, text), *args, **kwargs)


def _new(shadow: MergedView, path: str) -> str:
    """Return where to make something that must not exist yet."""
    flat = shadow.resolve(path, follow=False)
    if exists(shadow.spot(flat)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    return shadow.creating(flat)


def _remove(shadow: MergedView, path: Any, *, dir_fd: int | None = None) -> None:
    text = shadow.absolute(path, dir_fd)
    if text is None:
        real.unlink(path, dir_fd=dir_fd)
        return
    flat = shadow.resolve(text, follow=False)
    at, below = shadow.spot(flat), shadow.lower(flat)
    if below and os.path.isdir(at) and not os.path.islink(at):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
    _drop(shadow, flat, below, real.unlink)


def _rmdir(shadow: MergedView, path: Any, *, dir_fd: int | None = None) -> None:
    text = shadow.absolute(path, dir_fd)
    if text is None:
        real.rmdir(path, dir_fd=dir_fd)
        return
    flat = shadow.resolve(text, follow=False)
    if os.path.isdir(shadow.spot(flat)) and shadow.names(flat):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), text)
    if not os.path.isdir(shadow.spot(flat)) and os.path.lexists(shadow.spot(flat)):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), text)
    _drop(shadow, flat, shadow.lower(flat), real.rmdir)


def _drop(shadow: MergedView, flat: str, below: bool, original: Callable[..., Any]) -> None:
    if below and not real.access(os.path.dirname(flat), os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), flat)
    if exists(shadow.root + flat) or not below:
        original(shadow.root + flat)
    if below:
        shadow.hide(flat)
    shadow.forget()


def _rename(
    shadow: MergedView, src: Any, dst: Any, *, src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
) -> None:  # fmt: skip
    source, target = shadow.absolute(src, src_dir_fd), shadow.absolute(dst, dst_dir_fd)
    if source is None and target is None:
        real.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        return
    old = shadow.resolve(source or os.path.abspath(os.fsdecode(src)), follow=False)
    new = shadow.resolve(target or os.path.abspath(os.fsdecode(dst)), follow=False)
    if old == new:
        return
    below, covered = shadow.lower(old) and not shadow.exempt(old), shadow.lower(new)
    at = shadow.editing(old, deep=True) if not shadow.exempt(old) else old
    if covered and os.path.isdir(new) and shadow.names(new):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fsdecode(dst))
    real.rename(at, shadow.creating(new) if not shadow.exempt(new) else new)
    for path, known in ((old, below), (new, covered and not shadow.exempt(new))):
        if known:
            shadow.hide(path)
    shadow.forget()


def _link(shadow: MergedView, src: Any, dst: Any, **kwargs: Any) -> None:
    source = shadow.absolute(src, kwargs.get("src_dir_fd"))
    target = shadow.absolute(dst, kwargs.get("dst_dir_fd"))
    if source is None and target is None:
        real.link(src, dst, **kwargs)
        return
    flat = shadow.resolve(source or os.path.abspath(os.fsdecode(src)), follow=False)
    real.link(shadow.editing(flat), _new(shadow, target) if target else dst)


def _symlink(
    shadow: MergedView, src: Any, dst: Any, target_is_directory: bool = False, *,
    dir_fd: int | None = None,
) -> None:  # fmt: skip
    text = shadow.absolute(dst, dir_fd)
    real.symlink(src, _new(shadow, text) if text else dst, dir_fd=None if text else dir_fd)
    shadow.forget()


def _listdir(shadow: MergedView, path: Any = ".") -> list[Any]:
    text = _folder(shadow, path)
    if text is None:
        return list(real.listdir(path))
    flat = shadow.resolve(text, follow=True)
    names = real.listdir(flat) if shadow.untouched(flat) else shadow.names(flat)
    return [os.fsencode(n) for n in names] if isinstance(path, bytes) else names


def _scandir(shadow: MergedView, path: Any = ".") -> Any:
    text = _folder(shadow, path)
    flat = None if text is None else shadow.resolve(text, follow=True)
    if flat is None or (shadow.untouched(flat) and flat == os.path.normpath(text or ".")):
        return real.scandir(path)
    prefix = "." if path is None or isinstance(path, int) else os.fspath(path)
    folder, binary = os.fsdecode(prefix), isinstance(prefix, bytes)
    names = shadow.names(flat)
    return MergedListing([MergedEntry(shadow, flat, folder, name, binary) for name in names])


def _folder(shadow: MergedView, path: Any) -> str | None:
    if isinstance(path, int):
        return shadow.absolute(shadow.path_of(path))
    return shadow.absolute("." if path is None else path)


def _chdir(shadow: MergedView, path: Any) -> None:
    text = shadow.absolute(path)
    flat = None if text is None else shadow.resolve(text, follow=True)
    # A real folder if there is one, so that other programs find their way by relative paths.
    real.chdir(path if flat is None else flat if shadow.lower(flat) else shadow.root + flat)


def _audit(shadow: MergedView, event: str, args: tuple[Any, ...]) -> None:
    """Refuse a change that is not redirected; redirected ones are in the scratch folder."""
    if event == "open":
        changed = args[:1] if isinstance(args[2], int) and args[2] & WRITING else ()
    elif event in _CHANGING:
        changed = tuple(args[i] for i in _CHANGING[event])
    else:
        return
    for item in changed:
        if not isinstance(item, (str, bytes)):
            continue
        path = os.path.join(shadow.cwd(), os.fsdecode(item))
        if not shadow.exempt(path) and path != getattr(_opening, "path", None):
            _refuse(shadow, path)


def _refuse(shadow: MergedView, path: str) -> None:
    with contextlib.suppress(OSError):
        note = real.open(
            os.path.join(shadow.scratch, _REFUSED), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        real.write(note, f"{path}\n".encode(errors="surrogateescape"))
        real.close(note)
    raise PermissionError(errno.EACCES, "This write cannot be redirected in a trial", path)


# ---- what `os.scandir` gives for a folder of the merged view


class MergedEntry:
    """Like os.DirEntry: a name in a folder, and what the merged view has there."""

    __slots__ = ("_flat", "_shadow", "name", "path")

    def __init__(
        self, shadow: MergedView, folder: str, prefix: str, name: str, binary: bool
    ) -> None:
        path = os.path.join(prefix, name)
        self.name: Any = os.fsencode(name) if binary else name
        self.path: Any = os.fsencode(path) if binary else path
        self._flat = os.path.join(folder, name)
        self._shadow = shadow

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status, as os.DirEntry.stat does."""
        at = self._shadow.reading(self._flat, follow=follow_symlinks)
        status: os.stat_result = real.lstat(at)
        return status

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        """Whether it is a junction: never, since only Windows has them."""
        return False

    def inode(self) -> int:
        """Return the inode number."""
        return self.stat(follow_symlinks=False).st_ino

    def _mode(self, follow: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except OSError:
            return 0

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class MergedListing:
    """An iterator over entries that can be closed and used in `with`."""

    def __init__(self, entries: list[MergedEntry]) -> None:
        self._left = iter(entries)

    def __iter__(self) -> Iterator[MergedEntry]:
        return self

    def __next__(self) -> MergedEntry:
        return next(self._left)

    def __enter__(self) -> MergedListing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self._left = iter(())
