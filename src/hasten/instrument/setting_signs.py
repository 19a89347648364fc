"""Signs of settings that cost time: garbage collections, denormal numbers, debug modes, shapes.

They are looked for only in trials; a real run carries none of this.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Table, parameters_of
from hasten.instrument.rerun import denormal_counts
from hasten.kernel_files import text
from hasten.records import CollectorTraits, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TENSOR_COUNT, _ELEMENT_COUNT = 400, 1 << 14


class CollectorClock:
    """Sum up the time of Python's garbage collections, including those that the script asks for."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._begun_ns = 0

    def install(self) -> None:
        """Have Python call back at the start and end of each collection."""
        gc.callbacks.append(self._collects)

    def remove(self) -> None:
        """Take the callback out of Python's list."""
        gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
        elif self._begun_ns:
            self.spent_ns += time.perf_counter_ns() - self._begun_ns


def _optimized(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the parameters of optimizers, their gradients and their states."""
    for optimizer in optimizers:
        for parameter in parameters_of(optimizer):
            yield parameter
            yield parameter.grad
            yield from optimizer.state.get(parameter, {}).values()


def denormal_ratio(optimizers: Iterable[Any]) -> float | None:
    """Return the share of denormal numbers in weights, gradients and states; None without any."""
    counts = (denormal_counts(tensor, _ELEMENT_COUNT) for tensor in _optimized(optimizers))
    found_count = seen_count = 0
    for found, seen in islice((each for each in counts if each[1]), _TENSOR_COUNT):
        found_count += found
        seen_count += seen
    return found_count / seen_count if seen_count else None


def huge_pages() -> str | None:
    """Return how the kernel hands out huge pages: always, madvise or never; None if unknown."""
    return text(_HUGE_PAGES).partition("[")[2].partition("]")[0] or None


class SettingSigns:
    """An observer of the loop, part of `TraitsReader`."""

    def __init__(self) -> None:
        self._clock = CollectorClock()
        self._optimizers = Table()
        self._step_count = 0
        self._backward_count = self._anomaly_count = self._profiler_count = 0

    def backward(self) -> None:
        """Note which debug modes are on while gradients are computed."""
        import torch

        autograd: Any = torch.autograd
        self._backward_count += 1
        self._anomaly_count += torch.is_anomaly_enabled()
        self._profiler_count += autograd._profiler_enabled()

    def steps(self, optimizer: Any) -> None:
        """Note an optimizer."""
        self._optimizers[optimizer] = None

    def ended(self) -> None:
        """Count a step; collections count from the end of the first one on."""
        if not self._step_count:
            self._clock.install()
        self._step_count += 1

    def add(self, traits: Traits) -> Traits:
        """Return traits with what was found; what could not be seen stays unknown."""
        count = self._backward_count
        spent_s = self._clock.spent_ns * 1e-9
        collector = CollectorTraits(
            is_enabled=gc.isenabled(),
            threshold_count=gc.get_threshold()[0],
            frozen_count=gc.get_freeze_count(),
            step_s=spent_s / (self._step_count - 1) if self._step_count > 1 else None,
        )
        return replace(
            traits,
            anomaly_ratio=self._anomaly_count / count if count else None,
            profiler_ratio=self._profiler_count / count if count else None,
            huge_pages=huge_pages(),
            preloaded=os.environ.get("LD_PRELOAD", ""),
            denormal_ratio=denormal_ratio(self._optimizers),
            collector=collector,
        )
