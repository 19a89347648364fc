"""When does a training step end? After the last optimizer of one cycle."""

from __future__ import annotations

_LEARNED_AFTER_COUNT = 3
_GIVE_UP_AFTER_COUNT = 24


class Cycle:
    """Learn the period of several optimizers from the order of their steps.

    One optimizer: each of its steps ends a training step. Several (GANs, actor and critic): the
    cycle ends with the optimizer that steps most rarely, the one seen last among equals, so
    D-D-D-D-D-G is one training step that ends with G.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._ender: int | None = None

    def ends_step(self, optimizer: int, alive_count: int) -> bool:
        """Return whether this step of `optimizer` (its id) ends a training step.

        Args:
            optimizer: identity of the optimizer that has just stepped.
            alive_count: optimizers that the script has constructed; while there is only one
                there is nothing to learn.
        """
        if self._ender is None:
            self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
            if alive_count <= 1:
                return True
            if not self._learned():
                return False
            rarest = min(self._counts.values())
            self._ender = [key for key, count in self._counts.items() if count <= rarest + 1][-1]
        if optimizer not in self._counts:  # a new optimizer: learn again
            self._counts, self._ender = {optimizer: 1}, None
            return False
        return optimizer == self._ender

    def _learned(self) -> bool:
        counts = self._counts.values()
        if len(counts) > 1:
            return min(counts) >= _LEARNED_AFTER_COUNT
        return max(counts) >= _GIVE_UP_AFTER_COUNT
