"""What a failed attempt to compile may have changed, so that plain torch can start afresh."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKS = ("_dynamo", "_torchdynamo")


class Snapshot:
    """The buffers of a module and the states of the random generators at this moment."""

    def __init__(self, module: Any) -> None:
        import torch

        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._python = random.getstate()
        self._torch = torch.get_rng_state()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state_all() if cuda.is_initialized() else []
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        """Put everything back."""
        import torch

        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


@contextmanager
def unmarked(module: Any) -> Iterator[None]:
    """Take away what the compiler notes on parameters and modules: it would be saved with them."""
    holders = [*module.modules(), *module.parameters(), *module.buffers()]
    before = [set(vars(holder)) for holder in holders]
    try:
        yield
    finally:
        for holder, names in zip(holders, before, strict=True):
            for name in set(vars(holder)) - names:
                if name.startswith(_MARKS):
                    del vars(holder)[name]
