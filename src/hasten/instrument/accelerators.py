"""What an accelerator does just now, asked without waking its driver.

A driver that runs reads `CUDA_VISIBLE_DEVICES` no more, and is of no use in a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def backends() -> Iterator[Any]:
    """Yield the module of each kind of accelerator that this torch knows."""
    import torch

    core: Any = torch._C
    for name in ("cuda", "xpu", core._get_privateuse1_backend_name()):
        backend = getattr(torch, name, None)
        if backend is not None:
            yield backend


def in_use() -> bool:
    """Return whether the script has begun to use an accelerator."""
    return any(backend.is_initialized() for backend in backends())


def peak_bytes() -> int | None:
    """Return the most memory that tensors took on all devices so far; None where nobody tells."""
    counts = [
        backend.max_memory_allocated(index)
        for backend in backends()
        if backend.is_initialized() and hasattr(backend, "max_memory_allocated")
        for index in range(backend.device_count())
    ]
    return sum(counts) if counts else None


def is_capturing() -> bool:
    """Return whether operations go into a CUDA graph: until it ends nobody can read a number."""
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
