"""How long Python's garbage collections took in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.instrument.setting_signs import CollectorClock

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch


class Pauses:
    """Time the collections of each step."""

    def __init__(self, watch: Watch) -> None:
        self._clock = CollectorClock()
        self._before_ns = 0
        self._found_s: list[float] = []

    def begin(self) -> None:
        """Listen to the collector."""
        self._clock.install()

    def ended(self) -> None:
        """Note what the step's collections took."""
        self._found_s.append((self._clock.spent_ns - self._before_ns) * 1e-9)
        self._before_ns = self._clock.spent_ns

    def end(self) -> dict[str, Any]:
        """Stop listening."""
        self._clock.remove()
        return {"collections_s": self._found_s}


EXAMINER = Pauses
