"""How a script trains without levers in its first steps."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEnvelope:
    """What the first steps of a real run are held against.

    Attributes:
        by_hand: the script updates its weights itself; then a step is a backward pass.
        losses: the median loss of each window of eight steps.
        spreads: the robust standard deviation of the losses in each window.
        losses_range: the lowest and the highest single loss.
        moves: how far the weights moved in each window, relative to their size.
        step_s: seconds between two steps, None where that is not to be compared.
    """

    by_hand: bool = False
    losses: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    losses_range: tuple[float, float] = (0.0, 0.0)
    moves: tuple[float, ...] = ()
    step_s: float | None = None

    @property
    def highest(self) -> float:
        """The highest single loss."""
        return self.losses_range[1]

    def only_what_is_sure(self) -> LossEnvelope:
        """Return the part that holds under other arguments, too: numbers, and weights that move.

        Another batch size or another data set has other losses.
        """
        return replace(self, losses=(), spreads=(), step_s=None)
