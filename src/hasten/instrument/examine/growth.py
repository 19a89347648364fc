"""What grows from step to step: memory, autograd's graph, and what the models are fed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hasten.instrument.kept_graph import largest_holder, lines_that_add, live_node_count
from hasten.instrument.samples import element_count

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_LEAST_NODES_RATIO = 0.5
_CLOSE_COUNT = 8
_LEVEL_COUNT = 4


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _is_counted(step: int) -> bool:
    """Return whether the graph is counted after a step (from 1): counting can outlast a step.

    >>> [step for step in range(1, 201) if _is_counted(step)]
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128]
    """
    return step <= _CLOSE_COUNT or step & (step - 1) == 0


class Growth:
    """Compare the ends of steps: at each, the script still holds the graph of its last loss.

    That graph may have any size, so it takes several counts to see what else is kept.
    """

    def __init__(self, watch: Watch) -> None:
        self._ledger = watch.ledger
        self._resident_bytes: list[int] = []
        self._cpu_s: list[float] = []
        self._node_counts: list[tuple[int, int]] = []
        self._element_counts: list[int] = []
        self._called_count = self._loaded_count = 0
        self._before_s = time.thread_time()

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note the size of what a root module is called with."""
        self._called_count += element_count((args, kwargs))

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note how much a batch holds, for a step that calls no module."""
        self._loaded_count += element_count(batch)

    def ended(self) -> None:
        """Note the memory after a step, and the CPU time that the step took of this thread."""
        self._cpu_s.append(time.thread_time() - self._before_s)
        self._resident_bytes.append(_resident_bytes())
        self._element_counts.append(self._called_count or self._loaded_count)
        self._called_count = self._loaded_count = 0
        if _is_counted(len(self._cpu_s)):
            self._count_nodes()
            self._ledger.start()  # the time of the count belongs to no step
        self._before_s = time.thread_time()

    def _count_nodes(self) -> None:
        """Count the graph, unless no count so far is larger than an earlier one: nothing is kept.

        A count takes a tenth of a second or more, as it looks at each object in memory.
        """
        counts = [count for _, count in self._node_counts]
        if len(counts) < _LEVEL_COUNT or counts != sorted(counts, reverse=True):
            self._node_counts.append((len(self._cpu_s), live_node_count()))

    def end(self) -> dict[str, Any]:
        """Count once more, and look for the variable that holds what is new."""
        if not self._cpu_s:
            return {}
        if self._node_counts[-1][0] < len(self._cpu_s):
            self._count_nodes()
        found: dict[str, Any] = {
            "node_counts": self._node_counts,
            "element_counts": self._element_counts,
            "resident_bytes": self._resident_bytes,
            "cpu_s": self._cpu_s,
        }
        grown_count = self._node_counts[-1][1] - self._node_counts[0][1]
        if grown_count < max(1, len(self._cpu_s) - 1):
            return found
        holder = largest_holder()
        if holder is None or holder[2] < _LEAST_NODES_RATIO * grown_count:
            return found
        path, name, _ = holder
        lines: list[int] = []
        with suppress(OSError, SyntaxError, ValueError), open(path) as file:
            lines = lines_that_add(file.read(), name)
        return {**found, "holder": name, "places": [[os.path.abspath(path), n] for n in lines]}


EXAMINER = Growth
