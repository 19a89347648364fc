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
        weights: a hash of all weights after the last step.
        gradients: the gradients that the first optimizer step saw, all in one run.
        moved_once: how the first step moved the weights.
        moved: how all steps moved the weights.
    """

    step_count: int
    batches: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    structure: tuple[str, ...]
    samples: tuple[int, ...]
    losses: tuple[float, ...]
    weights: str
    gradients: NDArray[np.float32]
    moved_once: NDArray[np.float32]
    moved: NDArray[np.float32]

    def equals(self, other: Evidence) -> bool:
        """Return whether both runs saw the same batches and ended with the same bits."""
        return (
            self.step_count == other.step_count
            and self.batches == other.batches
            and self.losses == other.losses
            and self.weights == other.weights
        )


def read_evidence(message: Mapping[str, Any], folder: Path) -> Evidence:
    """Return the evidence of the run that sent `message` and wrote its tensors to `folder`."""
    before, after, last, gradients = (
        np.fromfile(folder / name, dtype="<f4")
        for name in ("before_one", "after_one", "last", "gradients")
    )
    return Evidence(
        step_count=message["steps"],
        batches=tuple(message["batches"]),
        orders=tuple(tuple(order) for order in message["orders"]),
        structure=tuple(message["structure"]),
        samples=tuple(message["samples"]),
        losses=tuple(message["losses"]),
        weights=message["weights"],
        gradients=gradients,
        moved_once=after - before if after.size == before.size else after,
        moved=last - before if last.size == before.size else last,
    )
