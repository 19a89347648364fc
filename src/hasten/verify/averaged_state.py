"""What follows the training without gradients: averages of the weights, statistics of a norm.

Nobody announces a running average of the weights (EMA): it is a copy of the model, a list or a
dict of tensors somewhere in the script, written to or made anew after each step. So living
tensors with the shape of a parameter are looked for: those that were there after the first step
and have changed since, and those that are new and outlive a whole step.
"""

from __future__ import annotations

import gc
import weakref
import zlib
from typing import TYPE_CHECKING, Any

from hasten.verify.contents import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_COUNT = 2000


class AveragedState:
    """The tensors that follow one training.

    Args:
        parameters: returns what trains.
        buffers: returns what the models learn without gradients.
        states: returns the tensors that the optimizers keep; they are their own matter.
    """

    def __init__(
        self,
        parameters: Callable[[], list[Any]],
        buffers: Callable[[], list[Any]],
        states: Callable[[], list[Any]],
    ) -> None:
        self._parameters, self._buffers, self._states = parameters, buffers, states
        self._old: list[tuple[weakref.ref[Any], int]] = []
        self._new: list[weakref.ref[Any]] = []

    def note(self) -> None:
        """Note what is there after the first step."""
        self._old = [(weakref.ref(t), _checksum(t)) for t in self._living()]

    def note_new(self) -> None:
        """Note before the last step what has come since."""
        old = {id(ref()) for ref, _ in self._old}
        self._new = [weakref.ref(t) for t in self._living() if id(t) not in old]

    def moved(self) -> list[Any]:
        """Return the statistics of norms, and what has changed or outlived the last step."""
        old = [(ref(), checksum) for ref, checksum in self._old]
        found = [t for t in self._buffers() if t.is_floating_point() and t.numel()]
        found += [t for t, checksum in old if t is not None and _checksum(t) != checksum]
        found += [t for t in (ref() for ref in self._new) if t is not None]
        return list({id(t): t for t in found}.values())[:_MOST_COUNT]

    def _living(self) -> list[Any]:
        """Return every dense tensor of a parameter's shape that has no history of its own.

        Nothing is asked of objects that are no tensors: some of a script's do much when asked.
        """
        import torch

        parameters = self._parameters()
        known = {id(t) for t in (*parameters, *self._states(), *self._buffers())}
        known |= {id(p.grad) for p in parameters if p.grad is not None}
        shapes = {(p.shape, p.dtype) for p in parameters if p.numel() > 1}
        kinds = (torch.Tensor, torch.nn.Parameter)
        gc.collect()  # what only waits for it would be found in one run and not in another
        tensors = [t for t in gc.get_objects() if type(t) in kinds and id(t) not in known]
        tensors = [t for t in tensors if t.layout == torch.strided and not t.is_meta]
        dense = [t for t in tensors if t.grad_fn is None]
        return [t for t in dense if (t.shape, t.dtype) in shapes][:_MOST_COUNT]


def _checksum(tensor: Any) -> int:
    return zlib.crc32(tensor_bytes(tensor))
