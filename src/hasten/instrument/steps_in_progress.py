"""Which steps of optimizers and passes of autograd go on just now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def asks_backward_id() -> Callable[[], int]:
    """Return what tells the backward pass that this thread is in, -1 outside of any."""
    import torch

    internals: Any = torch._C
    asked: Callable[[], int] = internals._current_graph_task_id
    return asked


def steps_around() -> int:
    """Return how many optimizers are in their step around the one whose pre-hook asks.

    Nothing tells of a step that raised; the frames of torch's wrapper around `step` do. To keep
    one of them instead would keep alive what it holds.
    """
    around, count = sys._getframe(2), 0  # the frame of the wrapper; 1 is that of the hook
    code, frame = around.f_code, around.f_back
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count
