"""How much faster this machine multiplies with fewer bits: a probe of about 50 ms."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hasten.instrument.accelerators import lacks_bfloat16
from hasten.instrument.operation_timing import best_ratio
from hasten.records import ProductSpeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIDE = 512
_IMAGES = (4, 32, 28, 28)
_KERNELS = (32, 32, 3, 3)
_PROBE_S = 0.012


def fewer_bits(device: str) -> dict[str, ProductSpeed]:
    """Return how many times faster matrix products and convolutions are with fewer bits.

    `bf16` compares bfloat16 tensors with float32 ones, `fp16` those of float16 where the device has
    units for these alone. `inside` compares float32 tensors that torch is told to multiply with
    fewer bits (bf16 on a CPU, tf32 on CUDA) with plain float32. A figure below 1 is a loss;
    what torch cannot do here is left out, as are other devices. No random number is drawn.
    """
    import torch

    if device not in ("cpu", "cuda"):
        return {}
    name, narrow = ("fp16", torch.float16) if lacks_bfloat16(device) else ("bf16", torch.bfloat16)
    half: dict[str, float] = {}
    inside: dict[str, float] = {}
    with torch.no_grad(), torch.autocast(device, enabled=False):
        for product, make in (("matmul_ratio", _product), ("conv_ratio", _convolution)):
            full = make(device, torch.float32)
            rivals = ((half, make(device, narrow)), (inside, _fewer_inside(device)(full)))
            for found, work in rivals:
                with suppress(RuntimeError):
                    found[product] = _speed_ratio(full, work, device)
    return {name: ProductSpeed(**half), "inside": ProductSpeed(**inside)}


def product_speed_ratio(device: str, dtype: str) -> float:
    """Return how many times faster matrix products of `dtype` are than of float32."""
    import torch

    kinds = (torch.float32, getattr(torch, dtype))
    with torch.no_grad(), torch.autocast(device, enabled=False):
        full, other = (_product(device, kind) for kind in kinds)
        return _speed_ratio(full, other, device)


def fp32_precision() -> str:
    """Return the precision of float32 products as torch reports it, "mixed" if it cannot.

    Torch refuses to read its older setting once a script has used the newer ones.
    """
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return "mixed"


def _product(device: str, dtype: Any) -> Callable[[], object]:
    import torch

    left = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device)
    return lambda: torch.mm(left, left)


def _convolution(device: str, dtype: Any) -> Callable[[], object]:
    import torch

    images = torch.ones(_IMAGES, dtype=dtype, device=device)
    kernels = torch.ones(_KERNELS, dtype=dtype, device=device)
    return lambda: torch.conv2d(images, kernels, padding=1)


@contextmanager
def _fewer_inside(device: str) -> Iterator[None]:
    """Multiply float32 tensors with fewer bits, and put the settings back to what they were."""
    import torch

    if device == "cuda":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    onednn: Any = torch.backends.mkldnn
    parts: list[Any] = [getattr(onednn, name, None) for name in ("matmul", "conv")]
    if None in parts:  # before torch 2.9
        raise RuntimeError("this torch has no precision for each kind of product")
    own = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "bf16"
        yield
    finally:
        for part, precision in zip(parts, own, strict=True):
            part.fp32_precision = precision


def _speed_ratio(full: Callable[[], object], fewer: Callable[[], object], device: str) -> float:
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return best_ratio(full, fewer, wait, probe_s=_PROBE_S)
