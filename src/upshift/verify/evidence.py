"""What one recorded run left behind, read back in the parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The first steps of one training, as far as the gates ask.

    Attributes:
        step_count: steps that were recorded.
        batches: a hash of the content of each batch, in order.
        orders: for each dataset, a hash of the indices of each batch, in order.
        structure: optimizer settings before each step, and what trained in each call.
        samples: samples of each step.
        losses: the value of each loss.
        weights: a hash of all weights and buffers after the last step.
        sizes: how many values of each parameter tensor are kept.
        gradients: for each taught step the gradients that the optimizer saw, all in one run.
        moves: for each taught step how it moved the weights.
        forced_losses_count: losses that belong to the taught steps.
    """

    step_count: int
    batches: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    structure: tuple[str, ...]
    samples: tuple[int, ...]
    losses: tuple[float, ...]
    weights: str
    sizes: tuple[int, ...]
    gradients: tuple[NDArray[np.float32], ...]
    moves: tuple[NDArray[np.float32], ...]
    forced_losses_count: int

    def equals(self, other: Evidence) -> bool:
        """Return whether both runs saw the same batches and ended with the same bits."""
        return (
            self.step_count == other.step_count
            and self.batches == other.batches
            and self.losses == other.losses
            and self.weights == other.weights
            and all(map(np.array_equal, self.gradients, other.gradients))
            and all(map(np.array_equal, self.moves, other.moves))
        )


def read_evidence(message: Mapping[str, Any], folder: Path) -> Evidence:
    """Return the evidence of the run that sent `message` and wrote its tensors to `folder`."""

    def arrays(name: str) -> tuple[NDArray[np.float32], ...]:
        taught = range(message["forced"])
        return tuple(np.fromfile(folder / f"{name}{step}", dtype="<f4") for step in taught)

    return Evidence(
        step_count=message["steps"],
        batches=tuple(message["batches"]),
        orders=tuple(tuple(order) for order in message["orders"]),
        structure=tuple(message["structure"]),
        samples=tuple(message["samples"]),
        losses=tuple(message["losses"]),
        weights=message["weights"],
        sizes=tuple(message["sizes"]),
        gradients=arrays("gradients"),
        moves=arrays("moves"),
        forced_losses_count=message["forced_losses"],
    )
