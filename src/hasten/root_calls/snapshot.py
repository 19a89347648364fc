"""What a call changes beside weights: buffers, and the states of random generators."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from hasten.generators import read_numpy, restore_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Snapshot:
    """The buffers of a module and the states of the random generators at this moment."""

    def __init__(self, module: Any) -> None:
        import torch

        lazy = torch.nn.parameter.is_lazy  # without values yet
        self._module = module
        buffers = module.buffers()
        self.buffers: list[Any] = [None if lazy(one) else one.detach().clone() for one in buffers]
        self._python = random.getstate()
        self.generator = torch.get_rng_state()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state_all() if cuda.is_initialized() else []
        self._numpy = read_numpy(loads=True)

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield the buffers that there are now, which may be other tensors, and their values."""
        pairs = zip(self._module.buffers(), self.buffers, strict=False)
        return ((buffer, value) for buffer, value in pairs if value is not None)

    def restore(self) -> None:
        """Put everything back."""
        import torch

        with torch.no_grad():
            for buffer, value in self._pairs():
                there = value.to(buffer.device)  # the model may have moved since
                if not torch.equal(buffer, there):
                    buffer.data.copy_(there)  # a graph may have saved the buffer
        random.setstate(self._python)
        torch.set_rng_state(self.generator)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            restore_numpy(self._numpy)


def states() -> dict[str, Any]:
    """Return the state of Python's generator, and of NumPy's if it is imported."""
    numpy = read_numpy()
    return {"random": random.getstate()} | ({} if numpy is None else {"numpy": numpy})


def went_on(before: dict[str, Any]) -> bool:
    """Return whether a generator has drawn since its state was taken."""
    now = states()
    return any(now[name] != state for name, state in before.items())
