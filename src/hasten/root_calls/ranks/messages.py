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
    """What a call depends on beside its arguments and the model."""

    with_grad: bool
    autocast: tuple[Any, bool] | None  # its dtype, and whether casts are cached
    thread_count: int
    generator: bytes | None = None  # the state of torch's, once the call is sent
    training: tuple[bool, ...] | None = None  # of each submodule, where modes have changed


class RootCall(NamedTuple):
    """A root call that the script makes."""

    module: Any
    call: Callable[[Any, Any], Any]  # makes it in this process
    args: Any
    kwargs: Any
    tensors: list[Any]  # those in both
    size: int  # samples in the batch
    surroundings: Surroundings


class SharedTensor(NamedTuple):
    """A tensor in shared memory, and whether autograd goes through it."""

    place: TensorPlace
    requires_grad: bool


class Forward(NamedTuple):
    """Answer a root call for a share; the reply is `ShareOutputs` or `Failed`."""

    number: int
    span: Span
    form: bytes  # the pickled arguments, without their tensors
    inputs: tuple[SharedTensor, ...]
    surroundings: Surroundings
    forgotten: tuple[int, ...]  # numbers of calls whose graphs are gone in the script's process


class ShareOutputs(NamedTuple):
    """The tensors in what a call returned."""

    tensors: tuple[SharedTensor, ...]
    backward_bytes: int  # what their gradients and those of the inputs will take at most


class Backward(NamedTuple):
    """Go back from the outputs of a call; the reply is `Gradients` or `Failed`."""

    number: int
    outputs: tuple[TensorPlace | None, ...]  # a gradient for each output that requires one
    end_bytes: int  # where the last of them ends; the reply lies behind it
    keeps_graph: bool  # the script may go back once more


class Gradients(NamedTuple):
    """The gradients of a share; those of weights lie where both sides know."""

    reached: tuple[bool, ...]  # for each weight whether it has any
    inputs: tuple[TensorPlace | None, ...]  # those of the inputs that require one


class Failed(NamedTuple):
    """A share could not be computed."""

    reason: str


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, tensors: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> int | None:
        import torch

        if not isinstance(obj, torch.Tensor):
            return None
        self._tensors.append(obj)
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: list[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:  # a method: Python 3.13 takes no attribute
        return self._tensors[pid]


def take_apart(value: Any) -> tuple[bytes, list[Any]]:
    """Return a value without its tensors, pickled, and its tensors."""
    file, tensors = io.BytesIO(), list[Any]()
    _Pickler(file, tensors).dump(value)
    return file.getvalue(), tensors


def put_together(form: bytes, tensors: list[Any]) -> Any:
    """Return the value that was taken apart, with these tensors in it."""
    return _Unpickler(io.BytesIO(form), tensors).load()
