"""What `os.scandir` gives, for a folder of the merged view."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from hasten.trials.isolation.merged_view import MergedView, real

if TYPE_CHECKING:
    from collections.abc import Iterator


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
