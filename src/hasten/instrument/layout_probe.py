"""Whether the script's own convolutions are faster with channels last: a probe on copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.instrument.operation_timing import best_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

_PROBE_S = 0.08


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
    """Return how many times faster a convolution is with channels last, forward and backward.

    On our own numbers; no random number is drawn.
    """
    import torch

    with torch.no_grad():
        first = _convolve(shape, torch.contiguous_format)
        last = _convolve(shape, _layout(len(shape.image)))
        return best_ratio(first, last, probe_s=_PROBE_S)


def _convolve(shape: ConvolutionShape, layout: Any) -> Callable[[], Any]:
    import torch

    def filled(sizes: tuple[int, ...]) -> Any:
        return torch.full(sizes, 0.5, dtype=shape.dtype, device="cpu").contiguous(
            memory_format=layout
        )

    aten: Any = torch.ops.aten
    image, kernel, options = filled(shape.image), filled(shape.kernel), shape.options
    gradient = torch.ones_like(aten.convolution(image, kernel, None, *options))

    def work() -> None:
        aten.convolution(image, kernel, None, *options)
        aten.convolution_backward(gradient, image, kernel, None, *options, [True, True, False])

    return work
