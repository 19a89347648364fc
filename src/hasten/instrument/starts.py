"""How long loaders take to begin and end a pass: starting workers, and ending them."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

_MOST_STARTS = 64


class StartClock:
    """Time the start, the first batch and the end of each pass over a loader with workers.

    Args:
        paused_s: tells for how many seconds the trial was parked so far, by `time.monotonic`.

    Attributes:
        spent_s: seconds in begins, first batches and ends so far.
    """

    def __init__(self, paused_s: Callable[[], float]) -> None:
        from torch.utils.weak import WeakIdKeyDictionary  # a script's loader may have no hash

        self._paused_s = paused_s
        self.spent_s = 0.0
        # Each: when, `iter(loader)`, the first batch, the end of the pass.
        self._starts: list[list[float]] = []
        self._going: ref[Any] | None = None
        self._is_first = False
        self._workers_count = 0
        self._staying: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._method = ""

    def begin(self, make: Callable[[Any, Any], Any], original: Any, loader: Any) -> Any:
        """Return `make(original, loader)`, and take its time."""
        at_s, began_ns = time.monotonic() - self._paused_s(), time.perf_counter_ns()
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
