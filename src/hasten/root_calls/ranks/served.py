"""A model with its helpers: its root calls are answered by several processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import finalize

from hasten.root_calls.ranks.batch import cut, joined, split
from hasten.root_calls.ranks.exchange import Exchange, LostRankError
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.ranks.helper import Helper, fork
from hasten.root_calls.ranks.memory import Region, TensorPlace, room_bytes
from hasten.root_calls.ranks.messages import (
    Backward,
    Failed,
    Forward,
    Gradients,
    RootCall,
    SharedTensor,
    ShareOutputs,
    Surroundings,
    take_apart,
)
from hasten.root_calls.ranks.weights import Weights
from hasten.root_calls.values import tensors_in, with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

    from hasten.root_calls.ranks.batch import Join, Span
    from hasten.root_calls.ranks.share import Share

_SLICE_S = 1.0
_PATIENCE_COUNT = 600


class HelperProcess:
    """A helper, as the script's process sees it, and the memory of its messages."""

    def __init__(
        self, connection: Connection, region: Region, pid: int, waits: Callable[[], bool]
    ) -> None:
        self.region = region
        self._connection = connection
        self._waits = waits  # tells whether it waits for this process at an exchange
        self._pid = pid

    def send(self, message: Any) -> None:
        """Send a message."""
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
            if self._waits():  # while this process is at none
                raise LostRankError("a helper of the model has one more batch normalization")
        else:
            raise LostRankError("a helper of the model does not answer")
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise LostRankError("a helper of the model is gone") from None
        if isinstance(answer, Failed):
            raise LostRankError(f"a helper of the model failed: {answer.reason}")
        return answer

    def check(self) -> None:
        """Check that the helper lives, while it is expected at an exchange."""
        if self._connection.poll():
            self.receive()
            raise LostRankError("a helper of the model has left out a batch normalization")

    def end(self) -> None:
        """End the helper, which has nothing to clean up, and wait for it."""
        self._connection.close()
        with suppress(OSError):  # the script may have waited for it
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _end(helpers: list[HelperProcess], owner: int) -> None:
    if os.getpid() == owner:  # and not in a loader worker that was forked
        for helper in helpers:
            helper.end()


class RankOutputs(NamedTuple):
    """What the ranks returned for their shares."""

    own: Any  # what this process returned
    tensors: list[list[Any]]  # for each tensor in it, those of all ranks in order
    spans: list[Span]

    def joined(self, joins: Sequence[Join]) -> Any:
        """Return what this process returned, with the outputs of the whole batch in it."""
        pairs = zip(joins, self.tensors, strict=True)
        outputs = iter([joined(join, tensors, self.spans) for join, tensors in pairs])
        return with_tensors(self.own, lambda _: next(outputs))


class SharingModel(Protocol):
    """A model whose root calls are made by several processes.

    Attributes:
        held: tells whether the model is what it was.
        room_bytes: as many bytes as the tensors of one message may have.
    """

    held: HeldState
    room_bytes: int

    @property
    def why_lost(self) -> str:
        """Why there can be no more calls; empty while there can."""

    def answer(self, root_call: RootCall, generator: Any) -> RankOutputs:
        """Make a root call, a share in each process; the generator of draws has this state."""

    def agreeing(self) -> AbstractContextManager[None]:
        """Return a context that raises in every process that looks at its share, or in none."""

    def restore_buffers(self) -> None:
        """Put the buffers back to what they were before the latest call, which has failed."""

    def close(self, why: str) -> None:
        """Make no more calls."""


class SharedModel:
    """A model and the helpers that were forked with it."""

    def __init__(self, root_call: RootCall, rank_count: int, room_bytes: int, share: Share) -> None:
        self.held = HeldState(root_call.module)
        self.lost = ""  # why there can be no more calls
        self.room_bytes = room_bytes  # for the tensors of one message
        self._share = share
        self._weights = Weights(root_call.module, rank_count - 1)
        self._exchange = Exchange(_rows(root_call.module, rank_count), root_call.module)
        self._number = 0
        self._forgotten: deque[int] = deque()
        self._pending: SharedCall | None = None
        self._is_published = False
        helpers: list[HelperProcess] = []
        self._helpers = helpers
        self._finalizer = finalize(self, _end, helpers, os.getpid())
        for rank in range(1, rank_count):
            helpers.append(self._start(root_call, rank))
        self._exchange.checks = [helper.check for helper in helpers]

    def _start(self, root_call: RootCall, rank: int) -> HelperProcess:
        here, there = Pipe()
        region = Region(self.room_bytes)

        def serve() -> None:
            Helper((there, region), self._weights, self._exchange, root_call).serve(rank)

        pid = fork(serve, there.fileno())
        there.close()
        return HelperProcess(here, region, pid, partial(self._exchange.is_waited_for, rank))

    def agreeing(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: only the script's process looks at its share."""
        return nullcontext()

    def close(self, why: str) -> None:
        """End the helpers."""
        self.lost = self.lost or why
        self._finalizer()

    def restore_buffers(self) -> None:
        """Put the buffers back to what they were before the latest call, which has failed."""
        if self._is_published:
            self._weights.restore()

    @property
    def why_lost(self) -> str:
        """Why there can be no more calls; empty while there can."""
        return self.lost or ("a backward pass was interrupted" if self._pending else "")

    def answer(self, root_call: RootCall, generator: Any) -> RankOutputs:
        """Make a root call, a share in each process.

        Raises:
            LostRankError: a helper failed.
        """
        self._is_published = False
        self.lost = "a call was interrupted"
        spans = split(root_call.size, 1 + len(self._helpers))
        state = generator.numpy().tobytes()
        surroundings = root_call.surroundings._replace(generator=state)
        if self.held.has_other_training:
            surroundings = surroundings._replace(training=self.held.training)
            self.held.accept()
        self._weights.publish()
        self._is_published = True
        self._number += 1
        tensors = self._send(root_call, surroundings, spans)
        shared, token = self._collect(tensors, spans, surroundings.with_grad)
        given = root_call.args, root_call.kwargs
        args, kwargs = with_tensors(given, lambda tensor: cut(tensor, spans[0]))
        with self._share.of(spans[0], self._exchange):
            own = root_call.call(args, kwargs)
        found = tensors_in(own)
        replies: list[ShareOutputs] = [helper.receive() for helper in self._helpers]
        if any(len(reply.tensors) != len(found) for reply in replies):
            raise LostRankError("a helper of the model returned another number of tensors")
        others = self._delivered(shared, token, replies)
        self.lost = ""
        return RankOutputs(own, [list(each) for each in zip(found, *others, strict=True)], spans)

    def _send(
        self, root_call: RootCall, surroundings: Surroundings, spans: list[Span]
    ) -> list[Any]:
        """Send the helpers what they need; return the tensors in the arguments."""
        form, tensors = take_apart((root_call.args, root_call.kwargs))
        forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
        requires = [surroundings.with_grad and tensor.requires_grad for tensor in tensors]
        for helper, span in zip(self._helpers, spans[1:], strict=True):
            helper.region.used_bytes = 0
            places = [helper.region.put(cut(tensor, span)) for tensor in tensors]
            inputs = tuple(map(SharedTensor, places, requires))
            helper.send(Forward(self._number, span, form, inputs, surroundings, forgotten))
        return tensors

    def _collect(
        self, tensors: list[Any], spans: list[Span], with_grad: bool
    ) -> tuple[SharedCall, Any]:
        """Make the end of the helpers' backward pass, before anything else of this call."""
        weights = self._weights.requiring_grad() if with_grad else []
        inputs = [tensor for tensor in tensors if with_grad and tensor.requires_grad]
        pieces = [cut(tensor, span) for span in spans[1:] for tensor in inputs]
        requires = self._weights.requires_grad() if with_grad else ()
        shared = SharedCall(self, self._number, requires)
        if not (weights or inputs):
            return shared, None
        collect, _ = functions()
        return shared, collect(shared, *weights, *pieces)

    def _delivered(
        self, shared: SharedCall, token: Any, replies: list[ShareOutputs]
    ) -> list[list[Any]]:
        """Return the outputs of each helper, joined to the script's graph."""
        for helper, reply in zip(self._helpers, replies, strict=True):
            if reply.backward_bytes > helper.region.size_bytes:
                raise LostRankError("gradients do not fit into the memory of messages")
            shared.given += [(helper, tensor) for tensor in reply.tensors]
        differentiable = [tensor.requires_grad for _, tensor in shared.given]
        if token is None or not any(differentiable):
            outputs = shared.outputs()
        else:
            finalize(shared, self._forgotten.append, shared.number).atexit = False
            _, deliver = functions()
            outputs = deliver(shared, token, differentiable)
        each = len(replies[0].tensors)
        return [list(outputs[each * k : each * (k + 1)]) for k in range(len(replies))]

    def send_back(self, shared: SharedCall, gradients: Sequence[Any]) -> None:
        """Send the gradients of a call's outputs to the helpers."""
        import torch

        if self._pending is not None:  # another call in the same graph
            self._take_gradients(self._pending)
        if self.lost:
            raise LostRankError(f"the helpers of the model are lost: {self.lost}")
        if shared.number != self._number:
            self._weights.publish(with_buffers=False)  # a later call may have had other weights
        keeps: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
        for helper in self._helpers:
            helper.region.used_bytes = 0
            pairs = zip(shared.given, gradients, strict=True)
            places: list[TensorPlace | None] = [
                None if gradient is None else helper.region.put(gradient)
                for (other, tensor), gradient in pairs
                if other is helper and tensor.requires_grad
            ]
            end_bytes = helper.region.used_bytes
            helper.send(Backward(shared.number, tuple(places), end_bytes, bool(keeps())))
        self._pending = shared

    def gradients(self, shared: SharedCall) -> list[Any]:
        """Wait for the gradients of the tensors that `collect` was given, each one or None."""
        self._take_gradients(shared)
        taken, shared.taken = shared.taken, None
        if taken is None:
            raise LostRankError("the helpers' gradients of this call are lost")
        return taken

    def _take_gradients(self, shared: SharedCall) -> None:
        if self._pending is not shared:
            return
        self._pending = None
        self.lost = "a backward pass was interrupted"
        replies: list[Gradients] = [helper.receive() for helper in self._helpers]
        self.lost = ""
        totals = self._weights.total(shared.requires_grad, [reply.reached for reply in replies])
        inputs = [
            None if place is None else helper.region.at(place).clone()
            for helper, reply in zip(self._helpers, replies, strict=True)
            for place in reply.inputs
        ]
        shared.taken = [*totals, *inputs]


@dataclass(slots=True, eq=False, weakref_slot=True)
class SharedCall:
    """One root call, of which helpers have shares."""

    served: SharedModel
    number: int
    requires_grad: Sequence[bool]  # of each weight, at the time of the call
    given: list[tuple[HelperProcess, SharedTensor]] = field(default_factory=list)
    """The tensors in the helpers' outputs, in order, and whose they are."""
    taken: list[Any] | None = None  # the gradients of weights and inputs, once they have come

    def outputs(self) -> list[Any]:
        """Return copies of the helpers' outputs, all in one list."""
        return [helper.region.at(tensor.place).clone() for helper, tensor in self.given]


def _rows(module: Any, rank_count: int) -> Any:
    """Return shared memory for the statistics of the widest layer that normalizes by batch."""
    import torch

    kind = torch.nn.modules.batchnorm._BatchNorm
    channels = [part.num_features for part in module.modules() if isinstance(part, kind)]
    width = 2 + 2 * max(channels, default=0)
    rows = torch.empty(rank_count + 1, width, dtype=torch.float64, device="meta")
    region = Region(room_bytes([rows]))
    return region.at(region.reserve(rows))


# ---- how the shares of helpers stand in the script's graph


@cache
def functions() -> tuple[Any, Any]:
    """Return the two ends of the helpers' shares; `call` is a `served.SharedCall`.

    `collect(call, *tensors)` returns a token, through which gradients flow to them.
    `deliver(call, token, differentiable)` returns the helpers' outputs; the last argument says of
    each whether a gradient goes through it.

    Autograd runs what was made last first: `deliver`, made after the script's own share, sends the
    gradients of the outputs to the helpers; the own share follows, and `collect`, made before it,
    waits for the helpers' gradients. They are added to those of the own share before any weight
    sees them.
    """
    import torch
    from torch.autograd.function import once_differentiable

    class Collect(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Any, *tensors: Any) -> Any:
            ctx.call = call
            return torch.zeros(())

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            return (None, *ctx.call.served.gradients(ctx.call))

    class Deliver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Any, token: Any, differentiable: Any) -> Any:
            ctx.call = call
            ctx.set_materialize_grads(False)
            outputs = call.outputs()
            pairs = zip(outputs, differentiable, strict=True)
            ctx.mark_non_differentiable(*(output for output, is_one in pairs if not is_one))
            return tuple(outputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            ctx.call.served.send_back(ctx.call, grads)
            return None, torch.zeros(()), None

    return Collect.apply, Deliver.apply
