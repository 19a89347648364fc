"""Whether a script updates its weights by hand: then a pass that follows another ends a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Table
from hasten.instrument.training_health import read_some, spread

if TYPE_CHECKING:
    from hasten.instrument.live import LiveTraining

_PATIENT_COUNT = 64


class ManualUpdateDetector:
    """Decide it at each backward pass, as long as no optimizer has stepped.

    A script without optimizers updates by hand. Of one that has made some, many passes say
    little (it accumulates gradients, takes inner steps, or skips those whose gradients are not
    finite), unless its weights move between them.

    Args:
        live: the optimizers and roots that are known.

    Attributes:
        update: the script updates its weights by hand.
        waiting: a backward pass has been made that no end of a step has followed.
    """

    def __init__(self, live: LiveTraining) -> None:
        self.update = self.waiting = False
        self.made = Table()
        self._live = live
        self._unstepped_count = 0
        self._before: dict[int, Any] = {}

    @property
    def due(self) -> bool:
        """Whether a step ends where the script goes on to the next forward pass or batch."""
        return self.update and self.waiting

    def constructed(self, optimizer: Any) -> None:
        """Note that the script has made an optimizer, before its first step."""
        self.made[optimizer] = None

    def begins_backward(self, *, stepping: bool) -> None:
        """Note a backward pass, inside the step of an optimizer or not."""
        self.waiting = True
        self._unstepped_count += 1
        if stepping or self.update or len(self._live.optimizers.known):
            return
        patient = self._unstepped_count <= _PATIENT_COUNT
        self.update = not len(self.made) or (not patient and self._moved())

    def stepped(self) -> None:
        """Note that an optimizer has made a step."""
        self._unstepped_count = 0
        self._before = {}

    def _moved(self) -> bool:
        """Return whether weights have moved since the last pass, True where nobody can tell.

        Those with gradients are looked at, or those of the roots where no optimizer has any.
        """
        import torch

        held = [p for made in self.made for group in made.param_groups for p in group["params"]]
        trained = [p for p in held if p.grad is not None]
        if not trained:
            trained = [p for root in self._live.roots.known for p in root.parameters()]
        try:
            now = {id(parameter): read_some(parameter) for parameter in spread(trained)}
            before, self._before = self._before, now
            known = before.keys() & now.keys()
            return not now or any(not torch.equal(before[key], now[key]) for key in known)
        except Exception:  # weights of a kind of their own
            return True
