"""A model with its helpers: its root calls are answered by several processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any
from weakref import finalize

from hasten.root_calls.ranks.batch import cut, joined, share_of, spans, tensors_in
from hasten.root_calls.ranks.exchange import Exchange, LostRankError
from hasten.root_calls.ranks.graph import functions
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.helper import Helper, fork
from hasten.root_calls.ranks.memory import Region, TensorPlace, room_bytes
from hasten.root_calls.ranks.messages import (
    Asked,
    Backward,
    Failed,
    Forward,
    Given,
    Gradients,
    ShareOutputs,
    Surroundings,
    take_apart,
)
from hasten.root_calls.ranks.weights import Weights
from hasten.root_calls.values import with_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from hasten.root_calls.ranks.batch import Join, Span
    from hasten.root_calls.ranks.share import Share

_SLICE_S = 1.0
_PATIENCE_COUNT = 120


class HelperLine:
    """The script's end of the line to one helper.

    Attributes:
        region: the memory of its messages.
    """

    def __init__(self, connection: Connection, region: Region, pid: int) -> None:
        self.region = region
        self._connection = connection
        self._pid = pid

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            LostRankError: the helper is gone.
        """
        try:
            self._connection.send(message)
        except OSError as error:
            raise LostRankError(f"a helper of the model is gone: {error}") from None

    def receive(self) -> Any:
        """Wait for the answer.

        Raises:
            LostRankError: the helper is gone or stuck, or its share could not be computed.
        """
        # Slices are counted, not seconds: all processes of a trial may be stopped meanwhile.
        for _ in range(_PATIENCE_COUNT):
            if self._connection.poll(_SLICE_S):
                break
        else:
            raise LostRankError("a helper of the model does not answer")
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise LostRankError("a helper of the model is gone") from None
        if isinstance(answer, Failed):
            raise LostRankError(f"a helper of the model failed: {answer.reason}")
        return answer

    def end(self) -> None:
        """End the helper, which has nothing to clean up, and wait for it."""
        self._connection.close()
        with suppress(OSError):  # the script may have waited for it
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _end(lines: list[HelperLine], owner: int) -> None:
    if os.getpid() == owner:  # and not in a loader worker that was forked
        for line in lines:
            line.end()


class SharedModel:
    """A model and the helpers that were forked with it.

    Args:
        asked: a call of the model, which is not kept alive.
        rank_count: processes, with that of the script.
        room_bytes: for the tensors of one message.
        share: the share that this process computes.

    Attributes:
        held: what the helpers have a copy of.
        lost: why there can be no more calls; empty while there can.
    """

    def __init__(self, asked: Asked, rank_count: int, room_bytes: int, share: Share) -> None:
        module = asked.module
        self.held = HeldState(module)
        self.lost = ""
        self.room_bytes = room_bytes
        self._share = share
        self._weights = Weights(module, rank_count - 1)
        self._exchange = Exchange(_rows(module, rank_count))
        self._number = 0
        self._forgotten: deque[int] = deque()
        self._pending: _SharedCall | None = None
        self._open: set[int] = set()
        self._lines = [self._start(asked, rank) for rank in range(1, rank_count)]
        self._finalizer = finalize(self, _end, self._lines, os.getpid())

    def _start(self, asked: Asked, rank: int) -> HelperLine:
        here, there = Pipe()
        region, parent = Region(self.room_bytes), os.getpid()

        def serve() -> None:
            here.close()
            Helper((there, region), self._weights, self._exchange, asked).serve(rank)

        pid = fork(serve, parent)
        there.close()
        return HelperLine(here, region, pid)

    def close(self, why: str = "") -> None:
        """End the helpers."""
        self.lost = self.lost or why or "the helpers have been ended"
        self._finalizer()

    def answer(self, asked: Asked, generator: Any) -> tuple[Any, list[list[Any]], list[Span]]:
        """Make a root call, a share in each process.

        Args:
            asked: the call.
            generator: the state of torch's generator; None where the model draws nothing.

        Returns:
            What this process's share returned; for each tensor in it those of all shares, in
            order; the shares.

        Raises:
            LostRankError: a helper failed.
            NoRoomError: the tensors of a message do not fit.
        """
        self.settle()
        self.lost = "a call was interrupted"
        surroundings, shares = asked.surroundings, spans(asked.size, 1 + len(self._lines))
        if generator is not None:
            surroundings = surroundings._replace(generator=generator.numpy().tobytes())
        if self.held.has_other_training:
            surroundings = surroundings._replace(training=self.held.training)
            self.held.accept()
        self._weights.publish()
        self._number += 1
        tensors = self._send(asked, surroundings, shares)
        shared, token = self._collect(tensors, shares, surroundings.with_grad)
        args, kwargs = share_of((asked.args, asked.kwargs), shares[0])
        with self._share.of(shares[0], self._exchange):
            own = asked.call(args, kwargs)
        found = tensors_in(own)
        replies: list[ShareOutputs] = [line.receive() for line in self._lines]
        if any(len(reply.tensors) != len(found) for reply in replies):
            raise LostRankError("a helper of the model returned something else")
        parts = self._delivered(shared, token, replies)
        self.lost = ""
        return own, [[one, *others] for one, *others in zip(found, *parts, strict=True)], shares

    def _send(self, asked: Asked, surroundings: Surroundings, shares: list[Span]) -> list[Any]:
        """Send their shares to the helpers; return the tensors in the arguments."""
        form, tensors = take_apart((asked.args, asked.kwargs))
        forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
        learning = [surroundings.with_grad and tensor.requires_grad for tensor in tensors]
        for line, span in zip(self._lines, shares[1:], strict=True):
            line.region.rewind()
            places = [line.region.put(cut(tensor, span)) for tensor in tensors]
            given = tuple(map(Given, places, learning))
            line.send(Forward(self._number, span, form, given, surroundings, forgotten))
        return tensors

    def _collect(
        self, tensors: list[Any], shares: list[Span], with_grad: bool
    ) -> tuple[_SharedCall, Any]:
        """Make the end of the helpers' backward pass, before anything else of this call."""
        weights = self._weights.learning() if with_grad else []
        inputs = [tensor for tensor in tensors if with_grad and tensor.requires_grad]
        parts = [cut(tensor, span) for span in shares[1:] for tensor in inputs]
        shared = _SharedCall(self, self._number, len(weights), len(inputs))
        if not (weights or inputs):
            return shared, None
        return shared, functions().collect(shared, *weights, *parts)

    def _delivered(
        self, shared: _SharedCall, token: Any, replies: list[ShareOutputs]
    ) -> list[list[Any]]:
        """Return the outputs of each helper, joined to the script's graph."""
        shared.given = [
            (line, given)
            for line, reply in zip(self._lines, replies, strict=True)
            for given in reply.tensors
        ]
        differentiable = [given.requires_grad for _, given in shared.given]
        if token is None or not any(differentiable):
            outputs = shared.outputs()
        else:
            self._open.add(shared.number)
            finalize(shared, self._forget, shared.number).atexit = False
            outputs = functions().deliver(shared, token, differentiable)
        each = len(replies[0].tensors)
        return [list(outputs[k : k + each]) for k in range(0, len(outputs), each or 1)]

    def _forget(self, number: int) -> None:
        self._open.discard(number)
        self._forgotten.append(number)

    def send_back(self, shared: _SharedCall, gradients: Sequence[Any]) -> None:
        """Send the gradients of a call's outputs to the helpers."""
        import torch

        self.settle()
        keeps: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
        for line in self._lines:
            line.region.rewind()
            pairs = zip(shared.given, gradients, strict=True)
            places: list[TensorPlace | None] = [
                None if gradient is None else line.region.put(gradient)
                for (other, given), gradient in pairs
                if other is line and given.requires_grad
            ]
            line.send(Backward(shared.number, tuple(places), line.region.used_bytes, bool(keeps())))
        self._pending = shared

    def settle(self) -> None:
        """Take the gradients that helpers still owe, before they are asked for anything else."""
        if self._pending is not None:
            self.take_gradients(self._pending)

    def take_gradients(self, shared: _SharedCall) -> None:
        """Wait for the gradients of a call, unless they have come."""
        if self._pending is not shared:
            return
        self._pending = None
        self._open.discard(shared.number)
        self.lost = "a backward pass was interrupted"
        replies: list[Gradients] = [line.receive() for line in self._lines]
        self.lost = ""
        totals = self._weights.total([reply.reached for reply in replies])
        if self._open:  # another backward pass may write there before these are added
            totals = [None if total is None else total.clone() for total in totals]
        inputs = [
            None if place is None else line.region.at(place).clone()
            for line, reply in zip(self._lines, replies, strict=True)
            for place in reply.inputs
        ]
        shared.taken = [*totals, *inputs]


class _SharedCall:
    """One root call, of which helpers have shares.

    Attributes:
        number: of the call.
        given: the tensors in the helpers' outputs, in order, and where they are.
        taken: the gradients of the weights and inputs, once they have come.
    """

    def __init__(
        self, served: SharedModel, number: int, weight_count: int, input_count: int
    ) -> None:
        self.number = number
        self.given: list[tuple[HelperLine, Given]] = []
        self.taken: list[Any] | None = None
        self._served = served
        self._tensor_count = weight_count + input_count

    def outputs(self) -> list[Any]:
        return [line.region.at(given.place).clone() for line, given in self.given]

    def send(self, gradients: tuple[Any, ...]) -> None:
        self._served.send_back(self, gradients)

    def gradients(self) -> list[Any]:
        self._served.take_gradients(self)
        taken, self.taken = self.taken, None
        if taken is None:
            raise LostRankError("the helpers of the model were not asked for gradients")
        return taken


def whole(own: Any, parts: list[list[Any]], joins: Sequence[Join], shares: list[Span]) -> Any:
    """Return what this process's share returned, with the outputs of the whole batch in it."""
    outputs = iter([joined(join, part, shares) for join, part in zip(joins, parts, strict=True)])
    return with_tensors(own, lambda _: next(outputs))


def _rows(module: Any, rank_count: int) -> Any:
    """Return shared memory for the statistics of the widest layer that normalizes by batch."""
    import torch

    parts = module.modules()
    channels = max((getattr(part, "num_features", 0) for part in parts), default=0)
    rows = torch.empty(rank_count + 1, 2 * channels + 1, dtype=torch.float64, device="meta")
    region = Region(room_bytes([rows]))
    return region.at(region.reserve(rows))
