"""A merged view of the file system: the real files below, a trial's changes above.

The changes are in `scratch/shadow` under their absolute paths; what the trial removed has a
mark in `scratch/gone`. A mark hides a real path and all beneath it for good: what is made there
again lies above. The state is only on disk, so loader workers and child processes share it.

Runs in the user's process with `os` patched, so it calls only the originals that it saved.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from types import SimpleNamespace
from typing import Any

from hasten.trials.isolation.mounts import SHM
from hasten.trials.isolation.seccomp import MARKED

real = SimpleNamespace(
    **{name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}, file=open
)
marked = SimpleNamespace(**{**vars(real), **MARKED})
"""The same, except that calls that change metadata pass the filter; for the scratch folder only."""
_EXEMPT, _COVERED = ("/dev/", "/proc/", "/sys/"), SHM + "/"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_LINKS = 40
_LARGEST_CACHE = 4096


class MergedView:
    """The merged view of one trial."""

    def __init__(self, scratch: str) -> None:
        self.scratch = os.path.realpath(scratch)
        self.root = os.path.join(self.scratch, "shadow")
        self.gone = os.path.join(self.scratch, "gone")
        for folder in (self.root, self.gone):
            if not os.path.isdir(folder):
                real.makedirs(folder, exist_ok=True)
        self._exempt = (self.scratch + "/", *_EXEMPT)
        self._marks: set[str] = set()
        self._marks_ns = -1
        self._folders: dict[str, str] = {}

    def absolute(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path as absolute text; None for a descriptor or a path that stays real."""
        if isinstance(path, int) or path is None:
            return None
        text = os.fsdecode(path)
        if not text or "\0" in text:
            return None
        if not text.startswith("/"):
            base = self.cwd() if dir_fd is None else self.path_of(dir_fd)
            text = os.path.join(base, text)
        return None if self.exempt(text) else text

    def exempt(self, path: str) -> bool:
        """Whether writes to a path may stay real, since they do no harm."""
        flat = os.path.normpath(path) if "/." in path or "//" in path else path
        if flat.startswith(_COVERED):
            return False
        return flat.startswith(self._exempt) or flat + "/" in self._exempt

    def cwd(self) -> str:
        """Return the working directory under the user's name for it."""
        return self.unmapped(real.getcwd())

    def path_of(self, descriptor: int) -> str:
        """Return the user's name for an open folder."""
        return self.unmapped(real.readlink(f"/proc/self/fd/{descriptor}"))

    def unmapped(self, path: str) -> str:
        """Return the user's name for a path in the shadow."""
        if path == self.root or path.startswith(self.root + "/"):
            return path[len(self.root) :] or "/"
        return path

    def resolve(self, path: str, *, follow: bool) -> str:
        """Return an absolute path with its links resolved, one at its end where they `follow`."""
        for _ in range(_MOST_LINKS):
            folder, name = os.path.split(path.rstrip("/") or "/")
            folder = self._resolved_folder(folder)
            if name in ("", ".", ".."):
                return os.path.normpath(os.path.join(folder, name))
            flat = os.path.join(folder, name)
            target = self._link(flat) if follow else None
            if target is None:
                return flat
            path = os.path.join(folder, target)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def spot(self, path: str) -> str:
        """Return where the file of a resolved path really is, or would be if it is missing."""
        if self.exempt(path):
            return path
        above = self.root + path
        if exists(above):
            return above
        return above if self.hidden(path) else path

    def hidden(self, path: str) -> bool:
        """Whether this trial has removed a path's real file, or a folder that it is in."""
        now_ns = real.stat(self.gone).st_mtime_ns
        if now_ns != self._marks_ns:
            self._marks, self._marks_ns = set(real.listdir(self.gone)), now_ns
        if not self._marks:
            return False
        while path != "/":
            if _mark(path) in self._marks:
                return True
            path = os.path.dirname(path)
        return False

    def reading(self, path: str, *, follow: bool = True) -> str:
        """Return where to read an absolute path."""
        return self.spot(self.resolve(path, follow=follow))

    def lower(self, path: str) -> bool:
        """Whether a resolved path shows a real file of the user's."""
        return exists(path) and not self.hidden(path)

    def opening(self, path: str, flags: int) -> str:
        """Return where to open an absolute path with the flags of open(2)."""
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        flat = self.resolve(path, follow=not (exclusive or flags & os.O_NOFOLLOW))
        if not flags & WRITING or self.exempt(flat):
            return self.spot(flat)
        if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return self.editing(flat)
        at = self.spot(flat)
        if not exists(at):
            return self.creating(flat) if flags & os.O_CREAT else at
        if exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if at != flat:
            return at
        return self._changing(flat, empty=bool(flags & os.O_TRUNC))

    def _changing(self, path: str, *, empty: bool) -> str:
        """Return where to open a resolved path for writing when its file is the user's."""
        mode = real.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not real.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return self.editing(path, empty=empty) if stat.S_ISREG(mode) else path

    def creating(self, path: str) -> str:
        """Return where to make a resolved path that does not exist; its folder must."""
        folder = os.path.dirname(path)
        at = self.spot(folder)
        if at == folder and not real.access(folder, os.W_OK) and exists(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if not stat.S_ISDIR(real.stat(at).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._make_folder(folder)
        return self.root + path

    def editing(self, path: str, *, empty: bool = False, deep: bool = False) -> str:
        """Copy what a resolved path shows into the shadow, so that it can be changed there.

        An `empty` copy has no content, a `deep` one of a folder all that it holds.
        """
        above = self.root + path
        if not deep and (exists(above) or self.exempt(path)):
            return self.spot(path)
        if not exists(self.spot(path)):
            return above
        if stat.S_ISDIR(real.lstat(self.spot(path)).st_mode):
            self._make_folder(path)
            for name in self.names(path) if deep else ():
                self.editing(os.path.join(path, name), deep=True)
            return above
        if not exists(above):
            self._make_folder(os.path.dirname(path))
            _copy(path, above, empty=empty)
        return above

    def names(self, path: str) -> list[str]:
        """Return the merged listing of a resolved folder."""
        above = self.root + path
        found: dict[str, None] = {}
        if self.lower(path) and real.lstat(path).st_mode & stat.S_IFDIR:
            found.update(dict.fromkeys(real.listdir(path)))
            if self._marks:
                hidden = [n for n in found if _mark(os.path.join(path, n)) in self._marks]
                for name in hidden:
                    del found[name]
        if exists(above):
            found.update(dict.fromkeys(real.listdir(above)))
        elif not self.lower(path):
            real.listdir(above)  # raises the right error
        return list(found)

    def untouched(self, path: str) -> bool:
        """Whether a resolved folder shows just what the disk has."""
        return not exists(self.root + path) and not self.hidden(path) and not self._marks

    def hide(self, path: str) -> None:
        """Mark the real file of a resolved path, and all beneath it, as gone."""
        real.close(real.open(os.path.join(self.gone, _mark(path)), os.O_CREAT | os.O_WRONLY, 0o600))
        self._marks.add(_mark(path))
        self._marks_ns = -1

    def forget(self) -> None:
        """Forget which folders are links, after one has been made, moved or removed."""
        self._folders.clear()

    def _resolved_folder(self, folder: str) -> str:
        found = self._folders.get(folder)
        if found is None:
            found = "/" if folder == "/" else self.resolve(folder, follow=True)
            if len(self._folders) > _LARGEST_CACHE:
                self._folders.clear()
            self._folders[folder] = found
        return found

    def _link(self, path: str) -> str | None:
        try:
            target: str = real.readlink(self.spot(path))
        except OSError:
            return None
        return target

    def _make_folder(self, path: str) -> None:
        above = self.root + path
        if exists(above):
            return
        self._make_folder(os.path.dirname(path))
        mode = stat.S_IMODE(real.stat(path).st_mode) if self.lower(path) else 0o755
        try:
            real.mkdir(above, mode | 0o700)
        except FileExistsError:
            return  # another process of this trial was faster


def exists(path: str) -> bool:
    """Return whether there is something of this name, be it a link to nothing."""
    try:
        real.lstat(path)
    except OSError:
        return False
    return True


def _mark(path: str) -> str:
    return hashlib.sha1(os.fsencode(path), usedforsecurity=False).hexdigest()


def _copy(source: str, target: str, *, empty: bool) -> None:
    status = real.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        real.symlink(real.readlink(source), target)
        return
    if stat.S_ISFIFO(status.st_mode):  # opening it would wait for a writer
        real.mkfifo(target, stat.S_IMODE(status.st_mode))
        return
    # Complete before it gets its name, since other processes of the trial may read it.
    partial = f"{target}.hasten-{os.getpid()}"
    with real.file(partial, "wb") as sink:
        if not empty:
            with real.file(source, "rb") as origin:
                shutil.copyfileobj(origin, sink, 1 << 20)
    marked.chmod(partial, stat.S_IMODE(status.st_mode) | 0o200)
    marked.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
    real.rename(partial, target)
