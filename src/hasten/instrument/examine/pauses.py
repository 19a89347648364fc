"""How long Python's garbage collections took in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.instrument.setting_signs import CollectorClock
from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch


class Pauses:
    """Time the collections of each step."""

    def __init__(self, watch: Watch) -> None:
        self._clock = CollectorClock()
        self._growth = StepGrowth(lambda: self._clock.spent_ns * 1e-9)
        self.ended = self._growth.ended
        self._clock.install()

    def end(self) -> dict[str, Any]:
        """Stop listening."""
        self._clock.remove()
        return {"collections_s": self._growth.seen}


EXAMINER = Pauses
