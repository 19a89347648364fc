"""Numbers as text, and versions as numbers: the only place where units are converted."""

from __future__ import annotations

import re
from math import ceil

from hasten.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as `90`, `90s`, `5m`, `1h30m`; `1h30` is none.

    Raises:
        UsageError: the text is not a duration.

    Example:
        >>> parse_duration("1h30m")
        5400.0
    """
    compact = text.strip().lower()
    parts = _DURATION.findall(compact)
    is_clear = len(parts) == 1 or (parts and all(unit for _, unit in parts))
    if not is_clear or "".join(n + u for n, u in parts) != compact.replace(" ", ""):
        raise UsageError(f"Cannot read the duration {text!r}.", remedy="Write 90s, 5m or 1h30m.")
    return sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits, with three digits below a minute.

    >>> duration(0.0123), duration(75), duration(4000), duration(3e-6), duration(0.0009998)
    ('12.3 ms', '1m 15s', '1h 07m', '3 µs', '1 ms')
    """
    if seconds >= _SECONDS["h"]:
        minutes = round(seconds / 60)
        return f"{minutes // 60}h {minutes % 60:02d}m"
    if seconds >= _SECONDS["m"]:
        whole = round(seconds)
        return f"{whole // 60}m {whole % 60:02d}s"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        rounded = f"{seconds * factor:.3g}"
        if float(rounded) >= 1 or unit == "µs":
            return f"{rounded} {unit}"
    raise AssertionError


def whole_minutes(seconds: float) -> str:
    """Return a duration in the form that options take, rounded up to whole minutes.

    >>> whole_minutes(190), whole_minutes(60)
    ('4m', '1m')
    """
    return f"{ceil(seconds / _SECONDS['m'])}m"


def size(count_bytes: float) -> str:
    """Return a size in binary units.

    >>> size(3 * 2**30), size(512)
    ('3.0 GiB', '512 B')
    """
    value, names = float(count_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(names) > 1:
        value /= 1024
        names.pop(0)
    return f"{value:.0f} B" if names[0] == "B" else f"{value:.1f} {names[0]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun; the plural where it does not just end in s.

    >>> counted(1, "core"), counted(1_200, "core")
    ('1 core', '1,200 cores')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def step_parts(batch_count: int, update_count: int) -> str:
    """Say what a step holds; empty where it is one batch and one step of an optimizer.

    Args:
        batch_count: batches of a loader; 0 without one.
        update_count: steps of optimizers.

    >>> step_parts(5, 6), step_parts(1, 2), step_parts(0, 2), step_parts(1, 1)
    ('5 batches and 6 optimizer steps', '1 batch and 2 optimizer steps', '2 optimizer steps', '')
    """
    if batch_count < 2 and update_count == 1:
        return ""
    batches = f"{batch_count} {'batch' if batch_count == 1 else 'batches'} and "
    return f"{batches if batch_count else ''}{counted(update_count, 'optimizer step')}"


def percent(ratio: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.384), percent(0.0042)
    ('38%', '0.42%')
    """
    return f"{100 * ratio:.0f}%" if abs(ratio) >= 0.1 else f"{100 * ratio:.2g}%"


def significant(number: float) -> str:
    """Return a number to four significant digits.

    >>> significant(12_043.7), significant(14.0512), significant(0.01234)
    ('12,040', '14.05', '0.01234')
    """
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.4g}"


def times(ratio: float) -> str:
    """Return a speed-up as a factor.

    >>> times(1.234)
    '1.23x'
    """
    return f"{ratio:.2f}x"


def reaches(version: object, least: tuple[int, int]) -> bool:
    """Return whether a version is at least a given release; False if it is unknown.

    >>> reaches("2.13.0+cpu", (2, 9)), reaches("2.8.1", (2, 9)), reaches("", (2, 9))
    (True, False, False)
    """
    found = re.match(r"(\d+)\.(\d+)", str(version))
    return found is not None and (int(found[1]), int(found[2])) >= least
