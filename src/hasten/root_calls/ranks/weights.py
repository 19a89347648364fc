"""The numbers of a model in shared memory, and room for the gradients of each helper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.modules import weights_of
from hasten.root_calls.ranks.memory import Region, room_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


class Weights:
    """Copies of a model's tensors that helpers read; the model's own stay where they are.

    Made before the helpers are forked. Rank 0 is the script's process.
    """

    def __init__(self, module: Any, helper_count: int) -> None:
        self._own = list(weights_of(module))
        self._others = others_in(module)
        region = Region((1 + helper_count) * room_bytes(self._own) + room_bytes(self._others))

        def copies(tensors: Sequence[Any]) -> list[Any]:
            return [region.at(region.reserve(tensor)) for tensor in tensors]

        self._shared, self._shared_others = copies(self._own), copies(self._others)
        self._gradients = [copies(self._own) for _ in range(helper_count)]
        self._rank = 0

    def publish(self, *, with_buffers: bool = True) -> None:
        """Copy the model's values to where helpers read them, in the script's process."""
        import torch

        with torch.no_grad():
            torch._foreach_copy_(self._shared, self._own)
            if self._others and with_buffers:
                torch._foreach_copy_(self._shared_others, self._others)

    def restore(self) -> None:
        """Copy buffers back from where they were published."""
        import torch

        if self._others:
            with torch.no_grad():
                torch._foreach_copy_([other.data for other in self._others], self._shared_others)

    def use(self, rank: int) -> None:
        """Let the model of a helper have its weights in shared memory."""
        self._rank = rank
        for own, shared in zip(self._own, self._shared, strict=True):
            own.data, own.grad = shared, None
        # By `data`, as autograd would otherwise count writes between a forward and its backward.
        self._others = [other.data for other in self._others]

    def refresh(self) -> None:
        """Copy buffers to those of this helper, which writes to its own."""
        import torch

        if self._others:
            with torch.no_grad():
                torch._foreach_copy_(self._others, self._shared_others)

    def requires_grad(self) -> tuple[bool, ...]:
        """Return for each weight whether it requires a gradient."""
        return tuple(own.requires_grad for own in self._own)

    def requiring_grad(self) -> list[Any]:
        """Return the weights that require a gradient."""
        return [own for own in self._own if own.requires_grad]

    def are_shared(self) -> bool:
        """Return whether the model of a helper still has its weights in shared memory."""
        pairs = zip(self._own, self._shared, strict=True)
        return all(own.data_ptr() == shared.data_ptr() for own, shared in pairs)

    def give(self, found: Sequence[Any]) -> tuple[bool, ...]:
        """Write the gradients of this helper's share; return which weights have one."""
        room = self._gradients[self._rank - 1]
        for place, gradient in zip(_those(room, self.requires_grad()), found, strict=True):
            if gradient is not None:
                place.copy_(gradient)
        return tuple(gradient is not None for gradient in found)

    def total(self, requires_grad: Sequence[bool], reached: Sequence[Sequence[bool]]) -> list[Any]:
        """Return the sum of the helpers' gradients for each weight that required one, or None."""
        rooms = [_those(room, requires_grad) for room in self._gradients]
        totals = []
        for places, flags in zip(zip(*rooms, strict=True), zip(*reached, strict=True), strict=True):
            parts = _those(places, flags)
            # A copy: the next backward pass writes there, and autograd may keep what it is given.
            totals.append(sum(parts[1:], parts[0].clone()) if parts else None)
        return totals


def _those(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def others_in(module: Any) -> list[Any]:
    """Return the buffers of a module, and the tensors that are mere attributes of its parts."""
    import torch

    found = {id(buffer): buffer for buffer in module.buffers()}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor):
                found[id(value)] = value
    return list(found.values())
