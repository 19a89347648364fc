"""What this process does with its threads, as traits for the levers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.records import Traits

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


def add_threads(traits: Traits) -> Traits:
    """Return traits with thread counts, and the OpenMP variables that somebody has set."""
    import torch

    return replace(
        traits,
        thread_count=torch.get_num_threads(),
        interop_thread_count=torch.get_num_interop_threads(),
        interop_started_count=_started_count(),
        openmp_variables=tuple(filter(_is_set, _VARIABLES)),
    )


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _NOTHING


def _started_count() -> int | None:
    """Return how many threads of the inter-op pool exist; the pool starts with its first task."""
    try:
        return sum(_name(task) == _POOL_NAME for task in _TASKS.iterdir())
    except OSError:
        return None


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
