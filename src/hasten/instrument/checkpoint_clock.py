"""How often and for how long the loop stops to write a checkpoint."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hasten.instrument.ledger import INDEX
from hasten.records import CheckpointTraits, Phase, Traits

_CHECKPOINT = INDEX[Phase.CHECKPOINT]
_KEPT_COUNT = 64


class CheckpointClock:
    """Note the steps in which a checkpoint was written, from the first step on.

    A closer look is too short to see them: checkpoints are often minutes apart.
    """

    def __init__(self) -> None:
        self._step_count = self._wall_ns = 0
        # The step, the wall clock at its end, and the time of its checkpoints.
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=_KEPT_COUNT)

    def stepped(self, phases_ns: tuple[int, ...]) -> None:
        """Take in a step, with everything since the previous one."""
        self._step_count += 1
        self._wall_ns += sum(phases_ns)
        if phases_ns[_CHECKPOINT]:
            self._seen.append((self._step_count, self._wall_ns, phases_ns[_CHECKPOINT]))

    def add(self, traits: Traits) -> Traits:
        """Return traits with the seconds and mean distance of checkpoints, if there are two."""
        if len(self._seen) < 2:
            return traits
        (first_step, first_ns, _), (last_step, last_ns, _) = self._seen[0], self._seen[-1]
        between_count = len(self._seen) - 1
        seen = CheckpointTraits(
            each_s=tuple(spent_ns * 1e-9 for _, _, spent_ns in self._seen),
            period_s=(last_ns - first_ns) * 1e-9 / between_count,
            period_step_count=(last_step - first_step) / between_count,
        )
        return replace(traits, checkpoints=seen)
