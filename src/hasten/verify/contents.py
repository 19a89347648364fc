"""What a value holds: its bytes, its hash, the outline of its tensors."""

from __future__ import annotations

import ctypes
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_ELEMENTS_COUNT = 100_000


def tensor_bytes(tensor: Any) -> bytes:
    """Return the values of a tensor as bytes, in logical order whatever its strides."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def content_hash(value: Any, into: Any = None) -> str:
    """Return a hash of all tensors and plain values inside nested containers."""
    import torch

    digest = into or hashlib.sha256()
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.layout == torch.strided:
            digest.update(tensor_bytes(value))
    elif isinstance(value, (list, tuple)):
        for part in value:
            content_hash(part, digest)
    elif hasattr(value, "items"):
        for name, part in value.items():
            digest.update(repr(name).encode())
            content_hash(part, digest)
    elif isinstance(value, (str, int, float, bool, bytes)):
        digest.update(repr(value).encode())
    return str(digest.hexdigest())


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "items"):
        for _, part in value.items():
            yield from _tensors(part)


def outline(batch: Any) -> list[tuple[str, float, float]]:
    """Return type and shape, mean and standard deviation of each tensor in a batch."""
    import torch

    found = []
    for tensor in _tensors(batch):
        kind = f"{tensor.dtype} {tuple(tensor.shape)}"
        values = tensor.detach()
        if values.layout != torch.strided or not values.numel() or values.is_complex():
            found.append((kind, 0.0, 0.0))
            continue
        values = values.double()
        found.append((kind, float(values.mean()), float(values.std(correction=0))))
    return found


def thinned(tensor: Any) -> Any:
    """Return the values of a tensor as one flat row of float32; of large ones, every n-th."""
    import torch

    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor
    flat = dense.detach().to(torch.float32).contiguous().reshape(-1)
    return flat[:: 1 + flat.numel() // MOST_ELEMENTS_COUNT]


def perturb(parameters: Iterable[Any], *, scale: float, seed: int) -> None:
    """Multiply each weight by 1 + scale or 1 - scale at random, without the script's generator.

    A type without a number that close to 1 uses its nearest one.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.is_floating_point():
                coin = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                least = torch.finfo(parameter.dtype).eps
                parameter.mul_(1 + max(scale, least) * coin.to(parameter))
