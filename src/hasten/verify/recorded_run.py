"""What one recorded run left behind, read back in the parent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from hasten.protocol import Recorded

NOTHING: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
_AS_TOLD = (
    "batches", "outlines", "orders", "structure", "samples", "losses", "losses_at", "weights",
    "sizes", "fetch_draws", "model_draws", "gradients_taught", "overflows",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What the gates need to know of the first steps of one training.

    Attributes:
        step_count: steps that were recorded.
        batches: a hash of the content of each batch that the loader made, in order.
        outlines: for each batch, the type, shape, mean and spread of each of its tensors.
        orders: for each dataset, a hash of the indices of each batch, in order.
        structure: optimizer settings before each step, and what trained in each call.
        samples: samples of each step.
        losses: the value of each loss.
        losses_at: how many losses there were at the end of each step.
        weights: a hash of all weights and buffers after the last step.
        sizes: how many values of each parameter tensor are kept.
        gradients: for each taught step the gradients that the optimizer saw, in one array.
        moves: for each taught step how it moved the weights.
        tail: how the steps after the taught ones moved the weights.
        averages: what follows the weights or the activations without gradients (running
            averages, statistics of a norm) after the taught steps, each with its shape.
        fetch_draws: a hash of torch's generator after each batch was made.
        model_draws: the same at the beginning of each backward pass.
        fed_step_count: steps on batches of the script as it is; None where it was not asked.
        gradients_taught: the optimizer got the gradients of the script as it is.
        overflows: the steps, from 0, that a lever left out since their gradients overflowed.
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
    losses_at: tuple[int, ...]
    outlines: tuple[tuple[tuple[str, float, float], ...], ...] = ()
    tail: NDArray[np.float32] = field(default_factory=lambda: NOTHING)
    averages: tuple[tuple[str, NDArray[np.float32]], ...] = ()
    fetch_draws: tuple[str, ...] = ()
    model_draws: tuple[str, ...] = ()
    fed_step_count: int | None = None
    gradients_taught: bool = False
    overflows: tuple[int, ...] = ()

    @property
    def forced_losses_count(self) -> int:
        """Losses that belong to the taught steps."""
        forced = min(len(self.gradients), len(self.losses_at))
        return self.losses_at[forced - 1] if forced else 0

    @property
    def step_losses(self) -> tuple[float, ...]:
        """The mean loss of each step; not a number for a step without a loss."""
        begins = (0, *self.losses_at)
        steps = (self.losses[a:b] for a, b in zip(begins, self.losses_at, strict=False))
        return tuple(sum(losses) / len(losses) if losses else nan for losses in steps)

    def equals(self, other: RecordedRun) -> bool:
        """Return whether this run saw the batches of `other` and ended with the same bits."""
        # A run that was fed has the generators of the script as it is, whatever it drew itself.
        fed = self.fed_step_count is not None
        return (
            self.step_count == other.step_count
            and self.batches == other.batches
            and _same(self.losses, other.losses)
            and self.weights == other.weights
            and all(map(_same, self.gradients, other.gradients))
            and all(map(_same, self.moves, other.moves))
            and _holds(self.averages, other.averages)
            and (self.draws_like(other) or not fed)
        )

    def draws_like(self, other: RecordedRun) -> bool:
        """Return whether torch's generator had the states of `other` wherever it was read."""
        return self.fetch_draws == other.fetch_draws and self.model_draws == other.model_draws

    def without(self, steps: Collection[int]) -> RecordedRun:
        """Return the evidence without the gradients and movements of some steps."""
        gradients, moves = (
            tuple(one for step, one in enumerate(part) if step not in steps)
            for part in (self.gradients, self.moves)
        )
        return replace(self, gradients=gradients, moves=moves)

    def until(self, step_count: int) -> RecordedRun:
        """Return the evidence of the first steps, without that of later ones."""
        if step_count >= self.step_count:
            return self
        kept = self.losses_at[step_count - 1] if step_count else 0
        return replace(
            self,
            step_count=step_count,
            losses=self.losses[:kept],
            losses_at=self.losses_at[:step_count],
            samples=self.samples[:step_count],
            gradients=self.gradients[:step_count],
            moves=self.moves[:step_count],
            tail=NOTHING,
            averages=self.averages if step_count >= len(self.gradients) else (),
        )


def _same(left: ArrayLike, right: ArrayLike) -> bool:
    """Return whether all numbers are equal; NaN equals NaN."""
    return np.array_equal(left, right, equal_nan=True)


def _holds(
    candidate: tuple[tuple[str, NDArray[np.float32]], ...],
    baseline: tuple[tuple[str, NDArray[np.float32]], ...],
) -> bool:
    """Return whether the candidate has each average of the baseline, to the bit, in any order."""
    found = {(shape, values.tobytes()) for shape, values in candidate}
    return all((shape, values.tobytes()) in found for shape, values in baseline)


def read_evidence(message: Recorded, folder: Path) -> RecordedRun:
    """Return the evidence of the run that sent `message` and wrote its tensors to `folder`."""

    def array(name: str) -> NDArray[np.float32]:
        path = folder / name
        return np.fromfile(path, dtype="<f4") if path.exists() else NOTHING

    def arrays(name: str) -> tuple[NDArray[np.float32], ...]:
        return tuple(array(f"{name}{step}") for step in range(message.forced))

    shapes, sizes = message.averages
    borders = np.cumsum(sizes)[:-1].astype(int)
    averages = np.split(array("averages"), borders) if shapes else []
    return RecordedRun(
        step_count=message.steps,
        gradients=arrays("gradients"),
        moves=arrays("moves"),
        tail=array("tail"),
        averages=tuple(zip(shapes, averages, strict=True)),
        fed_step_count=message.fed,
        **{name: _frozen(getattr(message, name)) for name in _AS_TOLD},
    )


def _frozen(value: Any) -> Any:
    """Return what a child told with tuples in place of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
