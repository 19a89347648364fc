"""The data engine under the script's own DataLoader: same samples, same order, same draws."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from upshift.loader.switchboard import Switchboard

if TYPE_CHECKING:
    from upshift.lever import Training

_BOARDS: WeakKeyDictionary[Training, Switchboard] = WeakKeyDictionary()


def board_of(training: Training) -> Switchboard:
    """Return the switchboard of a training's loaders; the first call puts it into the seams."""
    training = getattr(training, "itself", training)  # what the child hands to one lever only
    board = _BOARDS.get(training)
    if board is None:
        board = _BOARDS[training] = Switchboard(rehearses=training.trial)
        training.on_loader(board.make)
        training.on_next(board.advance)
    return board


__all__ = ["Switchboard", "board_of"]
