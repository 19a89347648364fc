"""What all benchmark pages format alike: the machine, and a ratio with its spread."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from math import exp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEWEST_FOR_INTERVAL = 6


def machine_line(packages: Sequence[str] = ("torch",)) -> str:
    """Return a line that says what the figures were measured on."""
    installed = []
    for name in packages:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            installed.append(f"{name} not installed")
    facts = f"{os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}"
    return f"{facts}, {', '.join(installed)}"


def ratio(logs: Sequence[float]) -> dict[str, Any] | None:
    """Return the ratio with its interval, or with its lowest and highest of under six rounds."""
    from hasten.compare import hodges_lehmann, signed_rank_interval

    if not logs:
        return None
    if len(logs) < FEWEST_FOR_INTERVAL:
        low, mid, high = min(logs), hodges_lehmann(logs), max(logs)
        found = {"low": exp(low), "mid": exp(mid), "high": exp(high), "is_range": True}
    else:
        seen = signed_rank_interval(logs)
        found = {"low": seen.low_ratio, "mid": seen.mid_ratio, "high": seen.high_ratio}
    return {**found, "rounds": [exp(value) for value in logs]}


def ratio_cell(
    found: Mapping[str, Any] | None, failed: str | None = None, *, digits: int = 2
) -> str:
    """Return a ratio and its interval, or why there is none."""
    if failed:
        return failed.replace("|", "/")
    if found is None:
        return ""
    mark = " r" if found.get("is_range") else ""
    mid, low, high = (f"{found[name]:.{digits}f}" for name in ("mid", "low", "high"))
    return f"{mid}x [{low}, {high}]{mark}"
