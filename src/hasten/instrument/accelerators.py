"""What an accelerator is doing right now, found out without waking its driver.

Once running, a driver ignores `CUDA_VISIBLE_DEVICES` and cannot be used after a fork.
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


def usage() -> dict[str, float]:
    """Return how much device memory the script takes; nothing where that is unknown.

    It had tensors on `device_count` devices, which took `peak_device_bytes` at their peaks. A
    second process like this one would leave `spare_device_bytes` on the fullest; the number is
    negative where it does not fit. Of one of the devices others hold `others_device_ratio`, the
    driver included.
    """
    devices = [
        (backend, index)
        for backend in backends()
        if backend.is_initialized() and hasattr(backend, "max_memory_allocated")
        for index in range(backend.device_count())
    ]
    peaks = [backend.max_memory_allocated(index) for backend, index in devices]
    told: dict[str, float] = {}
    if peaks:
        told = {"device_count": sum(map(bool, peaks)), "peak_device_bytes": sum(peaks)}
    seen = [
        (*backend.mem_get_info(index), _kept_bytes(backend, index))
        for (backend, index), peak_bytes in zip(devices, peaks, strict=True)
        if peak_bytes and hasattr(backend, "mem_get_info")
    ]
    if seen:
        told["spare_device_bytes"] = min(free - kept for free, _, kept in seen)
        told["others_device_ratio"] = max(
            (whole - free - kept) / whole for free, whole, kept in seen
        )
    return told


def _kept_bytes(backend: Any, index: int) -> int:
    """Return the most that this process has held of a device, free blocks included."""
    ask = getattr(backend, "max_memory_reserved", backend.max_memory_allocated)
    return int(ask(index))


def lacks_bfloat16(kind: str) -> bool:
    """Return whether a kind of device multiplies float16 fast, but has no units for bfloat16.

    Those of CUDA have some since compute capability 8.0; only its backends tell theirs.
    """
    import torch

    ask = getattr(getattr(torch, kind, None), "get_device_capability", None)
    return ask is not None and tuple(ask()) < (8, 0)


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured: until that ends no number can be read."""
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
