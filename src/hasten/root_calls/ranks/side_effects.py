"""What a root call did beside returning something, and what it learns beside its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.root_calls.calls import leaves_among, nodes_behind
from hasten.root_calls.model_code import states, went_on
from hasten.root_calls.ranks.held_state import HeldState
from hasten.root_calls.values import tensors_in

if TYPE_CHECKING:
    from hasten.root_calls.ranks.messages import RootCall


class SideEffects:
    """Looks at a model and its inputs before a call in one process, and again after it."""

    def __init__(self, root_call: RootCall) -> None:
        self._module = root_call.module
        self._inputs = root_call.tensors
        self._held = HeldState(self._module)
        self._buffers = {id(buffer) for buffer in self._module.buffers()}
        self._generators = states()
        self._before = self._written_to()

    def found(self, result: Any) -> str:
        """Say what helpers could not do in the script's place; empty for nothing."""
        if went_on(self._generators):
            return "the model draws random numbers from Python or NumPy"
        if why := self._held.unwatchable:
            return why
        if changed := self._held.changed():
            return f"a call of the model changes {changed}"
        if self._written_to() != self._before:
            return "a call of the model writes to its weights, their gradients or its inputs"
        if _leaves_behind(result, self._inputs) - set(map(id, self._module.parameters())):
            return "the model learns weights that are not among its parameters"
        return ""

    def _written_to(self) -> list[Any]:
        """Return where the tensors lie that a call may read only, and how often they were written.

        Buffers are left out: they are compared by value.
        """
        tensors = [*self._held.tensors, *self._inputs]
        tensors = [tensor for tensor in tensors if id(tensor) not in self._buffers]
        found = [(id(tensor), tensor.data_ptr(), tensor._version) for tensor in tensors]
        grads = [weight.grad for weight in self._module.parameters() if weight.grad is not None]
        return found + [(id(grad), grad.data_ptr(), grad._version) for grad in grads]


def are_joined(result: Any) -> bool:
    """Return whether the gradient of one output goes through another."""
    outputs = [output for output in tensors_in(result) if output.grad_fn is not None]
    nodes = {output.grad_fn for output in outputs}
    if len(outputs) < 2:
        return False
    return len(nodes) < len(outputs) or any(
        (nodes - {output.grad_fn}) & nodes_behind([output]) for output in outputs
    )


def _leaves_behind(result: Any, inputs: list[Any]) -> set[int]:
    """Return the ids of the tensors that get gradients from a result, not by way of its inputs."""
    return set(map(id, leaves_among(nodes_behind(tensors_in(result), inputs))))
