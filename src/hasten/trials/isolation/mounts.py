"""The table of mounts, and which of them a trial sees unchanged.

Imported in the guard's child as well, so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN, SHM = "/run", "/dev/shm"
PSEUDO = (
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
    *("devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore"),
    *("rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
)
"""File systems that hold no files of the user's."""
_KEPT_REAL = ("/proc", "/sys", "/dev")
# What programs put into /run so that others find them; users' disks are mounted there, too.
_OF_SESSIONS = (*PSEUDO, "tmpfs", "ramfs", "fuse.portal")


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    path: str
    kind: str
    read_only: bool
    mount_id: int


def visible_mounts() -> dict[str, Mount]:
    """Return the mounts that a path look-up can reach, by path."""
    found: dict[str, Mount] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            fields = left.split(" ")
            path = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
            options = {*fields[5].split(","), *right.rstrip("\n").split(" ")[-1].split(",")}
            mount = Mount(path, right.split(" ")[0], "ro" in options, int(fields[0]))
            if _mount_id(path) == mount.mount_id:
                found[path] = mount
    return found


def stays_real(path: str, mounts: dict[str, Mount]) -> bool:
    """Whether a trial sees the tree at `path` unchanged.

    It does in /run, except for disks (/run/media/USER/DISK), shares (/run/user/ID/gvfs), volumes
    and all that is mounted in them.
    """
    if not within(path, RUN):
        return within_any(path, _KEPT_REAL)
    above = (m for m in mounts.values() if within(path, m.path) and within(m.path, RUN))
    return all(m.kind in _OF_SESSIONS or m.path == RUN for m in above)


def wake(cwd: str, words: Sequence[str]) -> None:
    """Trigger the mounts of disks that these words may be on: autofs waits until it is asked.

    In a trial's own mount namespace, nothing would answer it.

    Args:
        cwd: where relative paths begin.
        words: such as `data/train` and `--data=/net/data`.
    """
    for word in ("", *words):
        for path in {word, word.partition("=")[2]}:
            with contextlib.suppress(OSError, ValueError):
                os.stat(os.path.join(cwd, path, "."))  # a stat of the path itself triggers nothing


def within(path: str, tree: str) -> bool:
    """Whether a path is a tree, or is inside it."""
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def within_any(path: str, trees: tuple[str, ...] | list[str]) -> bool:
    """Whether a path is in one of several trees."""
    return any(within(path, tree) for tree in trees)


def _mount_id(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
        found = next((int(x.split()[1]) for x in lines if x.startswith("mnt_id:")), None)
    os.close(descriptor)
    return found
