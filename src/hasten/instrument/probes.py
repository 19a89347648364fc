"""How fast this machine computes in other layouts and with fewer bits: probes on our own numbers.

They draw no random number.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.instrument.accelerators import lacks_bfloat16
from hasten.instrument.operation_timing import timed_ns
from hasten.records import ProductSpeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIDE = 512
_IMAGES = (4, 32, 28, 28)
_KERNELS = (32, 32, 3, 3)
_PRODUCT_PROBE_S, _LAYOUT_PROBE_S = 0.012, 0.08
_LEAST_COUNT, _HOPELESS_NS = 4, 100_000_000


def fewer_bits(device: str) -> dict[str, ProductSpeed]:
    """Return how many times faster matrix products and convolutions are with fewer bits.

    `bf16` compares bfloat16 tensors with float32 ones, `fp16` those of float16 where the device has
    units for these alone. `inside` compares float32 tensors that torch is told to multiply with
    fewer bits (bf16 on a CPU, tf32 on CUDA) with plain float32. A figure below 1 is a loss;
    what torch cannot do here is left out, as are other devices.
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
    return _best_ratio(full, fewer, wait, probe_s=_PRODUCT_PROBE_S)


class ConvolutionShape(NamedTuple):
    """All that defines a convolution except its numbers."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    dtype: Any
    options: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups


def _layout(dimensions: int) -> Any:
    import torch

    return torch.channels_last if dimensions == 4 else torch.channels_last_3d


def with_channels_last(tensor: Any) -> bool:
    """Return whether a tensor has channels last, and not a layout that is also channels first."""
    layout = _layout(tensor.dim())
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)


def can_tell_layout(tensor: Any) -> bool:
    """Return whether channels first and channels last are different layouts for a tensor."""
    layout = _layout(tensor.dim())
    return bool(tensor.is_contiguous() != tensor.is_contiguous(memory_format=layout))


def speed_ratio(shape: ConvolutionShape) -> float:
    """Return how many times faster a convolution is with channels last, forward and backward."""
    import torch

    with torch.no_grad():
        first = _convolve(shape, torch.contiguous_format)
        last = _convolve(shape, _layout(len(shape.image)))
        return _best_ratio(first, last, probe_s=_LAYOUT_PROBE_S)


def _convolve(shape: ConvolutionShape, layout: Any) -> Callable[[], Any]:
    import torch

    def filled(sizes: tuple[int, ...]) -> Any:
        # With one channel every tensor is contiguous in both layouts: only its strides tell them.
        return torch.empty(sizes, dtype=shape.dtype, device="cpu", memory_format=layout).fill_(0.5)

    aten: Any = torch.ops.aten
    image, kernel, options = filled(shape.image), filled(shape.kernel), shape.options
    gradient = torch.ones_like(aten.convolution(image, kernel, None, *options))

    def work() -> None:
        aten.convolution(image, kernel, None, *options)
        aten.convolution_backward(gradient, image, kernel, None, *options, [True, True, False])

    return work


def _best_ratio(
    one: Callable[[], object],
    other: Callable[[], object],
    wait: Callable[[], object] = lambda: None,
    *,
    probe_s: float,
) -> float:
    """Return how many times faster `other` is, by the best of each, timed alternately.

    Alternately, since a neighbour on the machine slows it down for milliseconds at a time.
    `wait` waits for an accelerator to end its work.
    """

    def spent_ns(work: Callable[[], object]) -> int:
        return timed_ns(lambda: (work(), wait()))

    spent_ns(one), spent_ns(other)  # the first call also makes the kernel
    ones_ns: list[int] = []
    others_ns: list[int] = []
    until_s = time.perf_counter() + probe_s
    while len(ones_ns) < _LEAST_COUNT or time.perf_counter() < until_s:
        ones_ns.append(spent_ns(one))
        others_ns.append(spent_ns(other))
        if others_ns[-1] > _HOPELESS_NS:  # without hardware it may take a thousand times as long
            break
    return min(ones_ns) / min(others_ns)
