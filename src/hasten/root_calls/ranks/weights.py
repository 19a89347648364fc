"""The numbers of a model in shared memory, and room for the gradients of each helper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.root_calls.ranks.memory import Region, room_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


class Weights:
    """Copies of a model's tensors that helpers read; the model's own stay where they are.

    Made before the helpers are forked. Rank 0 is the script's process.

    Args:
        module: the model.
        helper_count: processes beside that of the script.
    """

    def __init__(self, module: Any, helper_count: int) -> None:
        self._own = list(module.parameters())
        self._others = others_in(module)
        region = Region((1 + helper_count) * room_bytes(self._own) + room_bytes(self._others))

        def copies(tensors: Sequence[Any]) -> list[Any]:
            return [region.at(region.reserve(tensor)) for tensor in tensors]

        self._shared, self._shared_others = copies(self._own), copies(self._others)
        self._gradients = [copies(self._own) for _ in range(helper_count)]
        self._rank = 0

    def publish(self) -> None:
        """Copy the model's numbers to where helpers read them, in the script's process.

        Raises:
            RuntimeError: one has another shape now.
        """
        import torch

        with torch.no_grad():
            torch._foreach_copy_(self._shared, self._own)
            if self._others:
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

    def requiring_grad(self) -> list[Any]:
        """Return the weights that require a gradient."""
        return [own for own in self._own if own.requires_grad]

    def give(self, found: Sequence[Any]) -> tuple[bool, ...]:
        """Write the gradients of this helper's share; return which weights have one."""
        for place, gradient in zip(self._places(self._rank - 1), found, strict=True):
            if gradient is not None:
                place.copy_(gradient)
        return tuple(gradient is not None for gradient in found)

    def total(self, reached: Sequence[Sequence[bool]]) -> list[Any]:
        """Return for each weight that requires one the sum of the helpers' gradients, or None.

        With one helper they are where the next backward pass writes.

        Args:
            reached: for each helper, what `give` returned in it.
        """
        rooms = [self._places(place) for place in range(len(self._gradients))]
        totals = []
        for places, flags in zip(zip(*rooms, strict=True), zip(*reached, strict=True), strict=True):
            parts = [place for place, has in zip(places, flags, strict=True) if has]
            totals.append(sum(parts[1:], parts[0]) if parts else None)
        return totals

    def _places(self, helper_index: int) -> list[Any]:
        """Return where a helper's gradients lie, of the weights that require one."""
        pairs = zip(self._own, self._gradients[helper_index], strict=True)
        return [place for own, place in pairs if own.requires_grad]


def others_in(module: Any) -> list[Any]:
    """Return the buffers of a module, and the tensors that are mere attributes of its parts."""
    import torch

    found = {id(buffer): buffer for buffer in module.buffers()}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor):
                found[id(value)] = value
    return list(found.values())
