"""What this process does with its threads, as traits for the levers."""

from __future__ import annotations

import os
from dataclasses import replace
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


def add_threads(traits: Traits) -> Traits:
    """Return traits with thread counts, and the OpenMP variables that somebody has set."""
    import torch

    return replace(
        traits,
        thread_count=torch.get_num_threads(),
        openmp_variables=tuple(filter(_is_set, _VARIABLES)),
    )


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _NOTHING
