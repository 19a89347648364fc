"""CUDA's streams and events for a script that runs on the CPU, where a call returns when done."""

from __future__ import annotations

import time
from typing import Any


class HostStream:
    """A stream on which all work is done at once, made with the arguments of any stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        """Return whether all its work is done."""
        return True

    def synchronize(self, *args: Any) -> None:
        """Wait for nothing."""

    wait_event = wait_stream = synchronize

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Record an event, a new one if none is given."""
        event = event or HostEvent()
        event.record()
        return event

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *args: object) -> None:
        pass


class HostEvent:
    """An event whose time is that of the host, made with the arguments of any event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at_s = 0.0

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        """Return whether it has happened."""
        return True

    def synchronize(self, *args: Any) -> None:
        """Wait for nothing."""

    wait = synchronize

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds until another event.

        >>> HostStream().record_event().elapsed_time(HostStream().record_event()) >= 0
        True
        """
        return 1e3 * (end._at_s - self._at_s)
