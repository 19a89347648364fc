"""Facts where there is no /proc: macOS and Windows, by psutil's system calls."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from hasten.records import Cpu, Memory


def read_cpu_elsewhere() -> Cpu:
    """Ask the system for its cores; what it does not tell stays None."""
    return Cpu(core_count=_psutil().cpu_count(logical=False), thread_count=os.cpu_count())


def read_memory_elsewhere() -> Memory:
    """Ask the system for its memory."""
    found = _psutil().virtual_memory()
    return Memory(total_bytes=found.total, available_bytes=found.available)


def _psutil() -> Any:
    # By name: psutil ships no types, and Linux, where most jobs run, never needs it here.
    return import_module("psutil")
