"""Small files of /proc and /sys: what is missing or odd is None, never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def text(path: Path) -> str | None:
    """Return the stripped content of a file, None where it cannot be read.

    Some files exist and still answer EINVAL or EOPNOTSUPP, which are OSErrors too.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


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
    for line in (text(path) or "").splitlines():
        words = line.split()
        value = whole(words[1]) if len(words) > 1 else None
        if value is not None:
            found[words[0].rstrip(":")] = value
    return found


def id_list(listing: str | None) -> frozenset[int]:
    """Return the ids in a list in the kernel's format; empty where it cannot be parsed.

    See https://docs.kernel.org/admin-guide/kernel-parameters.html (cpu lists).

    >>> sorted(id_list("0-2,8"))
    [0, 1, 2, 8]
    """
    ids: set[int] = set()
    for part in (listing or "").split(","):
        first, _, last = part.strip().partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None:
            return frozenset()
        ids.update(range(low, high + 1))
    return frozenset(ids)
