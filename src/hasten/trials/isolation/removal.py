"""Remove what a trial has left, in whatever state."""

from __future__ import annotations

import contextlib
import os
import stat


def wipe(path: str) -> None:
    """Remove a tree, whatever the modes in it: an overlay's `work/work` has mode 000.

    By descriptors and without recursion, since a trial may leave folders deeper than any path can
    name. What cannot be removed stays, with the folders that lead to it.
    """
    with contextlib.suppress(OSError):  # gone already, or not ours: the parent wipes once more
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        _empty(_entered(path, None))
        os.rmdir(path)


def _empty(at: int) -> None:
    """Remove everything in a folder, and close it."""
    stuck: set[int] = set()
    way: list[str] = []
    while (inside := _emptied(at, stuck)) or way:
        try:
            following = _entered(inside or "..", at)
        except OSError:
            if not inside:
                break
            stuck.add(_number(inside, at))
            continue
        os.close(at)
        at = following
        if inside:
            way.append(inside)
            continue
        left = way.pop()
        try:
            os.rmdir(left, dir_fd=at)
        except OSError:
            stuck.add(_number(left, at))
    os.close(at)


def _number(name: str, at: int) -> int:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_ino
    except OSError:
        return 0  # somebody else has removed it


def _entered(name: str, at: int | None) -> int:
    """Open a folder, as its owner if need be."""
    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if mode & 0o700 != 0o700:
        os.chmod(name, stat.S_IMODE(mode) | 0o700, dir_fd=at)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)


def _emptied(at: int, stuck: set[int]) -> str:
    """Remove files from a folder until a subfolder comes; return its name, empty for none."""
    with os.scandir(at) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.inode() not in stuck:
                    return entry.name
                continue
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=at)
    return ""
