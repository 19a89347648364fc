"""The loss envelope: how the script trains without levers, as the guard of a real run needs it.

The runs of the proof have pinned seeds, so they show one course of the loss and not how courses
differ. What another seed changes is left to the width that the guard gives the band.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hasten.records import LossEnvelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

WINDOW_COUNT = 8
_MAD_TO_SD = 1.4826


def envelope_of(
    health: Sequence[Mapping[str, Any]], *, step_s: float | None = None
) -> LossEnvelope | None:
    """Return what recorded runs of the untouched script show together.

    Args:
        health: for each run `losses` (step, value, whether by `torch.autograd.grad`), `moves` and
            `updates`, as the child reads them, and `steps`, the training steps in it.
        step_s: seconds of a training step, which may hold several steps of optimizers.

    Returns:
        None where the script has losses that are no numbers, or less than one window of steps.
    """
    by_hand = not all(run["updates"] for run in health)
    runs = [_steps(run, by_hand=by_hand) for run in health]
    if not runs or not all(np.isfinite([value for _, value in run]).all() for run in runs):
        return None
    counts = [
        len(run) if by_hand else own["updates"] for run, own in zip(runs, health, strict=True)
    ]
    windows = _windows(runs, min(counts) // WINDOW_COUNT)
    moves = list(zip(*(run["moves"] for run in health), strict=False))
    if not windows and not moves:
        return None
    everything = np.concatenate(windows) if windows else np.zeros(1)
    return LossEnvelope(
        by_hand=by_hand,
        losses=tuple(float(np.median(losses)) for losses in windows),
        spreads=tuple(map(_spread, windows)),
        losses_range=(float(everything.min()), float(everything.max())),
        moves=tuple(max(several) for several in moves),
        step_s=None if step_s is None else step_s * health[0]["steps"] / max(1, counts[0]),
    )


def _steps(run: Mapping[str, Any], *, by_hand: bool) -> list[tuple[int, float]]:
    """Return the losses with their steps; if `by_hand`, each loss is a step."""
    if by_hand:
        return [(index, value) for index, (_, value, _) in enumerate(run["losses"])]
    return [(step, value) for step, value, is_grad in run["losses"] if not is_grad]


def _windows(runs: Sequence[Sequence[tuple[int, float]]], count: int) -> list[NDArray[np.float64]]:
    """Return all losses of each whole window; nothing where one has none."""
    windows = [
        np.asarray(
            [value for run in runs for step, value in run if step // WINDOW_COUNT == index],
            dtype=np.float64,
        )
        for index in range(count)
    ]
    return windows if all(map(len, windows)) else []


def _spread(losses: NDArray[np.float64]) -> float:
    """Return the robust standard deviation, but not far below the plain one: tails are real."""
    mad = np.median(np.abs(losses - np.median(losses)))
    return float(max(_MAD_TO_SD * mad, losses.std() / 2))
