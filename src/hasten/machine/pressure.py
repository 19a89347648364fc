"""How contended the machine is right now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hasten.machine.cgroup import throttled_ratio
from hasten.machine.kernel_files import text
from hasten.records import Pressure

if TYPE_CHECKING:
    from pathlib import Path

_SOME = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
# user nice system idle iowait irq softirq steal; the guest columns after them are in user already.
_STEAL, _COLUMNS = 7, 8


def read_pressure(root: Path, *, thread_count: int | None) -> Pressure:
    """Read pressure, throttling, steal and load beneath `root`."""
    return Pressure(
        cpu_some_ratio=_waiting(root),
        throttled_ratio=throttled_ratio(root),
        steal_ratio=_steal(root),
        load_ratio=_load(root, thread_count),
    )


def _waiting(root: Path) -> float | None:
    """Return the share of the last 10 s in which some task waited (docs.kernel.org: PSI)."""
    some = _SOME.search(text(root / "proc/pressure/cpu") or "")
    return float(some[1]) / 100 if some else None


def _steal(root: Path) -> float | None:
    words = (text(root / "proc/stat") or "").partition("\n")[0].split()
    ticks = [int(word) for word in words[1 : 1 + _COLUMNS] if word.isdigit()]
    if words[:1] != ["cpu"] or len(ticks) < _COLUMNS or not sum(ticks):
        return None
    return ticks[_STEAL] / sum(ticks)


def _load(root: Path, thread_count: int | None) -> float | None:
    words = (text(root / "proc/loadavg") or "").split()
    try:
        return float(words[0]) / thread_count if words and thread_count else None
    except ValueError:
        return None
