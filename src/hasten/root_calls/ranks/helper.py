"""What runs in a helper: a forked process that computes one share of each root call."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from hasten.root_calls.ranks.memory import room_bytes
from hasten.root_calls.ranks.messages import (
    Backward,
    Failed,
    Forward,
    Gradients,
    SharedTensor,
    ShareOutputs,
    put_together,
)
from hasten.root_calls.ranks.share import Share
from hasten.root_calls.values import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from hasten.root_calls.ranks.exchange import Exchange
    from hasten.root_calls.ranks.memory import Region
    from hasten.root_calls.ranks.messages import RootCall, Surroundings
    from hasten.root_calls.ranks.weights import Weights

_PDEATHSIG = 1
_LEFT_TO_SCRIPT = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
)  # fmt: skip


def fork(serve: Callable[[], None], kept: int) -> int:
    """Fork a process that calls `serve` and ends; return its id.

    It dies with the script's process, leaves signals to it, and writes nothing: neither what is
    left in buffers nor what the model prints. It holds on to no file, pipe or socket but `kept`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            for number in _LEFT_TO_SCRIPT:
                signal.signal(number, signal.SIG_IGN)
            gc.freeze()
            _let_go(kept)
            # OpenMP keeps its threads by the thread that started them; those are not here.
            loop = threading.Thread(target=serve)
            loop.start()
            loop.join()
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close all descriptors but one: who waits for their other ends would wait for this process."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):  # up to the limit it may be a billion
        if number > 2 and number != kept:
            with suppress(OSError):  # the listing itself is over
                os.close(number)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


class Helper:
    """The loop of a helper."""

    def __init__(
        self,
        line: tuple[Connection, Region],
        weights: Weights,
        exchange: Exchange,
        root_call: RootCall,
    ) -> None:
        self._connection, self._region = line  # to the script's process; the memory of messages
        self._weights = weights
        self._exchange = exchange
        self._share = Share()
        self._parts = list(root_call.module.modules())
        self._call = root_call.call
        self._thread_count = 0
        self._graphs: dict[int, tuple[list[Any], list[Any]]] = {}

    def serve(self, rank: int) -> None:
        """Answer until the script's process has ended."""
        for owner, name, answer in self._share.answers():
            module = importlib.import_module(owner)
            original = getattr(module, name)
            setattr(module, name, update_wrapper(partial(answer, original), original))
        self._exchange.rank = rank
        self._weights.use(rank)
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                return
            try:
                is_forward = isinstance(message, Forward)
                reply: Any = self._forward(message) if is_forward else self._backward(message)
            except Exception as error:
                reply = Failed(f"{type(error).__name__}: {error}")
            self._connection.send(reply)

    def _forward(self, message: Forward) -> ShareOutputs:
        for number in message.forgotten:
            self._graphs.pop(number, None)
        inputs = []
        for place, requires_grad in message.inputs:
            tensor = self._region.at(place).clone()
            inputs.append(tensor.requires_grad_() if requires_grad else tensor)
        args, kwargs = put_together(message.form, inputs)
        with ExitStack() as scope:
            self._surround(message.surroundings, scope)
            scope.enter_context(self._share.of(message.span, self._exchange))
            outputs = tensors_in(self._call(args, kwargs))
        if not self._weights.are_shared():
            raise RuntimeError("a call of the model replaces the memory of its weights")
        if any(output.requires_grad for output in outputs):
            self._graphs[message.number] = (
                [tensor for tensor in inputs if tensor.requires_grad],
                [output for output in outputs if output.requires_grad],
            )
        self._region.used_bytes = 0
        places = [self._region.put(output) for output in outputs]
        requires = [output.requires_grad for output in outputs]
        back = room_bytes(tensor for tensor in inputs if tensor.requires_grad)
        return ShareOutputs(
            tuple(map(SharedTensor, places, requires)), self._region.used_bytes + back
        )

    def _surround(self, wanted: Surroundings, scope: ExitStack) -> None:
        import torch

        self._weights.refresh()
        if self._thread_count != wanted.thread_count:
            self._thread_count = wanted.thread_count
            torch._C.set_num_threads(self._thread_count)
        if wanted.training is not None:
            for part, trains in zip(self._parts, wanted.training, strict=True):
                part.training = trains
        if wanted.generator is not None:
            torch.set_rng_state(torch.frombuffer(bytearray(wanted.generator), dtype=torch.uint8))
        scope.enter_context(torch.set_grad_enabled(wanted.with_grad))
        dtype, is_cached = wanted.autocast or (None, False)
        scope.enter_context(
            torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=is_cached)
        )

    def _backward(self, message: Backward) -> Gradients:
        inputs, outputs = self._graphs[message.number]
        if not message.keeps_graph:
            del self._graphs[message.number]
        given = zip(outputs, message.outputs, strict=True)
        pairs = [(output, self._region.at(place)) for output, place in given if place is not None]
        weights = self._weights.requiring_grad()
        found = gradients(
            [output for output, _ in pairs], [grad for _, grad in pairs], [*weights, *inputs],
            keeps_graph=message.keeps_graph,
        )  # fmt: skip
        reached = self._weights.give(found[: len(weights)])
        self._region.used_bytes = message.end_bytes
        return Gradients(
            reached,
            tuple(
                None if grad is None else self._region.put(grad) for grad in found[len(weights) :]
            ),
        )


def gradients(
    outputs: Sequence[Any], given: Sequence[Any], tensors: Sequence[Any], *, keeps_graph: bool
) -> tuple[Any, ...]:
    """Return the gradients of outputs by tensors, None where there is none.

    What `torch.autograd.grad` does, which is watched for the script's calls.
    """
    import torch

    engine: Any = torch.autograd.Variable._execution_engine
    found: tuple[Any, ...] = engine.run_backward(
        tuple(outputs), tuple(given), keeps_graph, False, tuple(tensors), allow_unreachable=True,
        accumulate_grad=False,
    )  # fmt: skip
    return found
