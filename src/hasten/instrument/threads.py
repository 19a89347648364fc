"""What this process does with its threads, as traits for the levers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_VARIABLES = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "KMP_LIBRARY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
)
_NOTHING = ("", "false", "none", "disabled")
_TASKS = Path("/proc/self/task")
_POOL_NAME = "PTThreadPool"  # c10::setThreadName in ATen/ParallelThreadPoolNative.cpp


def read_threads() -> dict[str, Any]:
    """Return thread counts, the settings of OpenMP that somebody made, and what ties them.

    `openmp.variables` names the environment variables that say something, with a space between.
    `interop_started_count` is missing where the kernel tells no names of threads.
    """
    import torch

    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "openmp.variables": " ".join(filter(_is_set, _VARIABLES)),
        "compiled": has_compiled(),
    }
    started = _started_count()
    return found if started is None else {**found, "interop_started_count": started}


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _NOTHING


def has_compiled() -> bool:
    """Return whether torch.compile has made a graph in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    stats = getattr(dynamo, "counters", {}).get("stats", {})
    return bool(stats.get("unique_graphs"))


def _started_count() -> int | None:
    """Return how many threads of the inter-op pool run; it starts with its first task."""
    try:
        return sum(_name(task) == _POOL_NAME for task in _TASKS.iterdir())
    except OSError:
        return None


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
