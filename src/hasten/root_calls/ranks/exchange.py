"""An all-reduce among the ranks of a model, through shared memory."""

from __future__ import annotations

from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Protocol

from hasten.modules import weights_of
from hasten.root_calls.ranks.weights import others_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SPIN_COUNT = 1_000
_SLICE_S = 1.0
_MOST_LAYERS_COUNT = 1_000_000


class LostRankError(RuntimeError):
    """A process that computes a share has died, or does not answer."""


def layers_of(module: Any) -> dict[int, int]:
    """Number the tensors of a model from 1 on, by identity: the same in each of its copies."""
    tensors = (*weights_of(module), *others_in(module))
    return {id(tensor): number for number, tensor in enumerate(tensors, start=1)}


class Meets(Protocol):
    """Where the ranks of a model meet within a call: through shared memory, or a network.

    Attributes:
        layers: a number for each tensor of the model, by its identity.
    """

    layers: Mapping[int, int]
    _number: int = 0

    def begin(self) -> None:
        """Begin a call: its exchanges are numbered from 1 on."""
        self._number = 0

    def next_number(self, *tensors: Any) -> int:
        """Return the number of the next exchange of a forward pass.

        Args:
            tensors: of the layer, each of the model or None: the number tells layers apart.
        """
        self._number += 1
        layer = next((self.layers.get(id(one), 0) for one in tensors if one is not None), 0)
        return self._number * _MOST_LAYERS_COUNT + layer

    def all_reduce(self, number: int, own: Any, combine: Callable[[Any], Any]) -> Any:
        """Return what `combine` makes of the numbers of all ranks; see `Exchange`."""


class Exchange(Meets):
    """A row for each rank in shared memory, one for the result, and semaphores that pass the turn.

    The first rank, that of the script, waits for all others, combines, and lets them go on. It
    writes a result when all are there again, and so have read the one before.

    Args:
        rows: float64 of shape (ranks + 1, 1 + numbers), in shared memory.
        module: the model.
    """

    def __init__(self, rows: Any, module: Any) -> None:
        context = get_context("fork")
        self.layers = layers_of(module)
        self._values, self._result = rows[:-1], rows[-1]
        self.rank = 0  # of this process; 0 for that of the script
        # Called now and then while this process waits; they raise if others will not come.
        self.checks: Sequence[Callable[[], None]] = ()
        self._there = [context.Semaphore(0) for _ in range(len(rows) - 2)]
        self._go_on = [context.Semaphore(0) for _ in range(len(rows) - 2)]

    def all_reduce(self, number: int, own: Any, combine: Callable[[Any], Any]) -> Any:
        """Return what `combine` makes of the numbers of all ranks.

        Args:
            number: of the exchange, the same for all ranks: that of the forward pass, or its
                negative on the way back.
            own: numbers of this rank, of shape (n,).
            combine: takes float64 of shape (ranks, n), and returns numbers of shape (m,).

        Returns:
            Float64, the same for all ranks; only the first m numbers are of this result.

        Raises:
            LostRankError: another rank does not come, or comes from another layer.
        """
        end = 1 + len(own)
        if end > self._values.shape[1]:
            raise LostRankError("the model normalizes by batch outside of a BatchNorm module")
        self._values[self.rank, 0] = number
        self._values[self.rank, 1:end] = own
        if self.rank:
            self._there[self.rank - 1].release()
            self._wait(self._go_on[self.rank - 1])
        else:
            for semaphore in self._there:
                self._wait(semaphore)
            if bool((self._values[:, 0] != number).any()):
                raise LostRankError("the ranks are at different layers")
            result = combine(self._values[:, 1:end])
            self._result[: len(result)] = result
            for semaphore in self._go_on:
                semaphore.release()
        return self._result.clone()

    def is_waited_for(self, rank: int) -> bool:
        """Return whether another rank waits at an exchange for the first."""
        return bool(self._there[rank - 1].get_value())

    def _wait(self, semaphore: Any) -> None:
        """Wait for another rank, at first without sleeping: it is nearly always close."""
        for _ in range(_SPIN_COUNT):
            if semaphore.acquire(False):
                return
        while not semaphore.acquire(True, _SLICE_S):
            for check in self.checks:
                check()
