"""Small files of /proc and /sys: what is missing or odd is empty or None, never an error."""

from __future__ import annotations

from pathlib import Path, PurePosixPath


def text(path: Path) -> str:
    """Return the stripped content of a file, empty where it cannot be read.

    Some files exist and still answer EINVAL or EOPNOTSUPP, which are OSErrors too.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # it has ended, or the kernel has no such file
        return ""


def number(path: Path) -> int | None:
    """Return the integer in a file; None where it is missing or a word such as `max`."""
    return whole(text(path))


def whole(word: str | None) -> int | None:
    """Return the integer that a word spells, None for anything else.

    >>> whole("-1"), whole("max"), whole(None)
    (-1, None, None)
    """
    try:
        return int(word) if word is not None else None
    except ValueError:
        return None


def fields(path: Path) -> dict[str, int]:
    """Return the lines `name value` of a file such as cpu.stat or /proc/meminfo.

    The colon after a name is dropped, and so is the unit after a value.
    """
    found: dict[str, int] = {}
    for line in text(path).splitlines():
        words = line.split()
        value = whole(words[1]) if len(words) > 1 else None
        if value is not None:
            found[words[0].rstrip(":")] = value
    return found


def groups(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the folders of this process' control groups for `controller`, its own first.

    A limit may be set on any ancestor, so these are all levels up to the top of what is mounted
    here. Both versions are walked: on hybrid systems a controller lives in one of them, and their
    files have different names. A container may see its own group as the top, or be told a path
    that its mount hides: folders that are not there hold no limits.
    """
    top, found = root / "sys/fs/cgroup", list[Path]()
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(own.lstrip("/"))
        steps = [PurePosixPath()] if ".." in group.parts else [group, *group.parents]
        places = (top / controllers, top / controller) if controllers else (top, top / "unified")
        found += [place / step for place in places for step in steps]
    return tuple(dict.fromkeys(found))


def id_list(listing: str) -> frozenset[int]:
    """Return the ids in a list in the kernel's format; empty where it cannot be parsed.

    See https://docs.kernel.org/admin-guide/kernel-parameters.html (cpu lists).

    >>> sorted(id_list("0-2,8"))
    [0, 1, 2, 8]
    """
    ids: set[int] = set()
    for part in listing.split(","):
        first, _, last = part.strip().partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None:
            return frozenset()
        ids.update(range(low, high + 1))
    return frozenset(ids)
