"""Where loaders are made, and how long they take to start and end their workers."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.instrument.object_table import Table
from hasten.instrument.source_lines import is_own_file, line_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_MOST_STARTS = 64


class StartClock:
    """Time the start, the first batch and the end of each pass over a loader with workers.

    `paused_s` tells for how many seconds the trial was parked so far, by `time.monotonic`.
    """

    def __init__(self, paused_s: Callable[[], float]) -> None:
        self._paused_s = paused_s
        self._aside_s = self.spent_s = 0.0
        # Each: when, `iter(loader)`, the first batch, the end of the pass.
        self._starts: list[list[float]] = []
        self._going: ref[Any] | None = None
        self._is_first = False
        self._workers_count = 0
        self._staying = Table()
        self._method = ""

    def begin(self, make: Callable[[Any, Any], Any], original: Any, loader: Any) -> Any:
        """Return `make(original, loader)`, and take its time."""
        at_s = time.monotonic() - self._paused_s() - self._aside_s
        began_ns = time.perf_counter_ns()
        iterator = make(original, loader)
        spent_s = (time.perf_counter_ns() - began_ns) * 1e-9
        if getattr(iterator, "_num_workers", 0):
            self._begun(loader, iterator, at_s, spent_s)
        return iterator

    def _begun(self, loader: Any, iterator: Any, at_s: float, begin_s: float) -> None:
        # Workers that stayed from the pass before are not started.
        if loader.persistent_workers and loader in self._staying:
            return
        if loader.persistent_workers:
            self._staying[loader] = True
        context: Any = loader.multiprocessing_context or multiprocessing
        self._method = context.get_start_method(allow_none=True) or ""
        self._workers_count = int(iterator._num_workers)
        self._going, self._is_first = ref(iterator), True
        self.spent_s += begin_s
        self._starts = [*self._starts[1 - _MOST_STARTS :], [at_s, begin_s, 0.0, 0.0]]

    def advance(self, advance: Callable[[Any, Any], Any], original: Any, iterator: Any) -> Any:
        """Return `advance(original, iterator)`, and take the time of a first and a last call."""
        if self._going is None or self._going() is not iterator:
            return advance(original, iterator)
        began_ns = time.perf_counter_ns()
        try:
            batch = advance(original, iterator)
        except StopIteration:
            self._starts[-1][3] = self._spend(began_ns)
            self._going = None
            raise
        if self._is_first:
            self._is_first = False
            self._starts[-1][2] = self._spend(began_ns)
        return batch

    def _spend(self, began_ns: int) -> float:
        spent_s = (time.perf_counter_ns() - began_ns) * 1e-9
        self.spent_s += spent_s
        return spent_s

    def leave_out(self, seconds: float) -> None:
        """Leave out of the time between two starts what is not the script's."""
        self._aside_s += seconds

    def read(self) -> dict[str, Any]:
        """Return when workers were started and what each start took, in seconds.

        `starts` has rows of: when, `iter(loader)`, the first batch, the end of the pass.
        """
        if not self._starts:
            return {}
        return {
            "starts": self._starts,
            "started_count": self._workers_count,
            "start_method": self._method,
        }


class LoaderLines:
    """Remember where each living loader was made, where the user's own code made it."""

    def __init__(self) -> None:
        self._lines = Table()

    def note(self, loader: Any) -> None:
        """Note who calls the constructor of `loader`, beyond those of its own classes."""
        makers = [vars(kind).get("__init__") for kind in type(loader).__mro__]
        codes = [getattr(maker, "__code__", None) for maker in makers]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code in codes:
            frame = frame.f_back
        if frame is not None and is_own_file(frame.f_code.co_filename):
            self._lines[loader] = os.path.abspath(frame.f_code.co_filename), line_of(frame)

    def of(self, dataset_id: int) -> tuple[str, int] | None:
        """Return where the newest loader of a dataset was made; None where a library made it."""
        made = [loader for loader in self._lines if id(loader.dataset) == dataset_id]
        return self._lines.get(made[-1]) if made else None
