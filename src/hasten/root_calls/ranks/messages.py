"""What the script's process and its helpers say to one another; tensors lie in shared memory."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.root_calls.ranks.batch import Span
    from hasten.root_calls.ranks.memory import TensorPlace


class Surroundings(NamedTuple):
    """What a call depends on beside its arguments and the model.

    Attributes:
        with_grad: a gradient may be asked for.
        autocast: its dtype and whether casts are cached; None where it is off.
        thread_count: threads that share an operation.
        generator: the state of torch's generator; None before the call is sent.
        training: whether each submodule is in training mode; None where nothing has changed.
    """

    with_grad: bool
    autocast: tuple[Any, bool] | None
    thread_count: int
    generator: bytes | None
    training: tuple[bool, ...] | None


class RootCall(NamedTuple):
    """A root call that the script makes.

    Attributes:
        module: the model.
        call: makes its call in this process.
        args: positional arguments.
        kwargs: the others.
        tensors: those in both.
        size: samples in the batch.
        surroundings: what else the call depends on.
    """

    module: Any
    call: Callable[[Any, Any], Any]
    args: Any
    kwargs: Any
    tensors: list[Any]
    size: int
    surroundings: Surroundings


class SharedTensor(NamedTuple):
    """A tensor in shared memory, and whether autograd goes through it."""

    place: TensorPlace
    requires_grad: bool


class Forward(NamedTuple):
    """Answer a root call for a share; the reply is `ShareOutputs` or `Failed`.

    Attributes:
        number: of the call.
        span: the share.
        form: the pickled arguments, without their tensors.
        inputs: the tensors in them.
        surroundings: what else it depends on.
        forgotten: numbers of calls whose graphs are gone in the script's process.
    """

    number: int
    span: Span
    form: bytes
    inputs: tuple[SharedTensor, ...]
    surroundings: Surroundings
    forgotten: tuple[int, ...]


class ShareOutputs(NamedTuple):
    """The tensors in what a call returned.

    Attributes:
        tensors: in order.
        backward_bytes: what their gradients and those of the inputs will take at most.
    """

    tensors: tuple[SharedTensor, ...]
    backward_bytes: int


class Backward(NamedTuple):
    """Go back from the outputs of a call; the reply is `Gradients` or `Failed`.

    Attributes:
        number: of the call.
        outputs: the gradient of each output that requires one, None where it has none.
        end_bytes: where the last of them ends; the reply lies behind it.
        keeps_graph: the script may go back once more.
    """

    number: int
    outputs: tuple[TensorPlace | None, ...]
    end_bytes: int
    keeps_graph: bool


class Gradients(NamedTuple):
    """The gradients of a share; those of weights lie where both sides know.

    Attributes:
        reached: for each weight whether it has any.
        inputs: those of the inputs that require one.
    """

    reached: tuple[bool, ...]
    inputs: tuple[TensorPlace | None, ...]


class Failed(NamedTuple):
    """A share could not be computed.

    Attributes:
        reason: type and message of the exception.
        no_room: its tensors did not fit into the memory of its messages.
    """

    reason: str
    no_room: bool


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        import torch

        if not isinstance(obj, torch.Tensor):
            return None
        self.tensors.append(obj)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensor: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def persistent_load(self, pid: Any) -> Any:
        return self._tensor(pid)


def take_apart(value: Any) -> tuple[bytes, list[Any]]:
    """Return a value without its tensors, pickled, and its tensors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.tensors


def put_together(form: bytes, tensors: list[Any]) -> Any:
    """Return the value that was taken apart, with these tensors in it."""
    return _Unpickler(io.BytesIO(form), tensors.__getitem__).load()
