"""What a call looks like to a compiler: its arguments without their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TENSOR = "tensor"
_PLAIN = (bool, int, float, str, type(None))


def signature(value: Any) -> tuple[Any, ...] | None:
    """Return what compiled code depends on in an argument, None if that cannot be determined.

    None is returned for objects of other classes, and for tensors whose gradient the script asks
    for: it may want the gradient of that gradient, which compiled code does not have.
    """
    import torch

    kind = type(value)
    if kind is torch.Tensor:
        return _of_tensor(value)
    if kind in _PLAIN or kind in (torch.dtype, torch.device):
        return (kind, value)
    if kind in (list, tuple):
        return _of_parts(kind, value, ())
    if kind is dict:
        return _of_parts(kind, value.values(), tuple(value))
    return None


def _of_tensor(tensor: Any) -> tuple[Any, ...] | None:
    import torch

    wanted = tensor.requires_grad and tensor.is_leaf
    if wanted or tensor.layout is not torch.strided or tensor.is_inference():
        return None
    return (
        _TENSOR, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad,
    )  # fmt: skip


def _of_parts(kind: Any, parts: Any, names: tuple[Any, ...]) -> tuple[Any, ...] | None:
    found = [signature(part) for part in parts]
    return None if any(part is None for part in found) else (kind, names, *found)


def loosen(key: Any) -> Any:
    """Return a signature without sizes and numbers, as one graph for changing shapes serves.

    >>> loosen((list, (), (int, 3), (str, "mean"))) == loosen((list, (), (int, 5), (str, "mean")))
    True
    """
    if not isinstance(key, tuple) or not key:
        return key
    if key[0] is _TENSOR:
        return (_TENSOR, len(key[1]), *key[3:])
    if key[0] in (int, float):
        return key[:1]
    return tuple(loosen(part) for part in key)


def nodes_behind(outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> set[Any]:
    """Return the nodes of autograd's graph between outputs and inputs."""
    known = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    found: set[Any] = set()
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in known:
            continue
        known.add(node)
        found.add(node)
        waiting += [after for after, _ in node.next_functions if after is not None]
    return found


def leaves_among(nodes: Iterable[Any]) -> list[Any]:
    """Return the tensors to whose gradients nodes of autograd's graph add."""
    return [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]
