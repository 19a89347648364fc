"""What grows from step to step: memory, and autograd's graph."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from upshift.attach.kept_graph import largest_holder, lines_that_add, live_node_count

if TYPE_CHECKING:
    from upshift.attach.watch import Watch

_LEAST_NODES_RATIO = 0.5


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Growth:
    """Compare the graph and the memory at the begin and the end."""

    def __init__(self, watch: Watch) -> None:
        self._resident_bytes: list[int] = []
        self._cpu_s: list[float] = []
        self._before_s = 0.0
        self._begun_count = 0

    def begin(self) -> None:
        """Count what is alive."""
        self._begun_count = live_node_count()
        self._before_s = time.thread_time()

    def ended(self) -> None:
        """Note the memory after a step, and what it took of this thread's time on a CPU."""
        now_s = time.thread_time()
        self._cpu_s.append(now_s - self._before_s)
        self._before_s = now_s
        self._resident_bytes.append(_resident_bytes())

    def end(self) -> dict[str, Any]:
        """Count again, and look for the variable that holds what is new."""
        grown_count = live_node_count() - self._begun_count
        found: dict[str, Any] = {
            "nodes_count": grown_count,
            "resident_bytes": self._resident_bytes,
            "cpu_s": self._cpu_s,
        }
        if grown_count < len(self._resident_bytes) or not self._resident_bytes:
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
