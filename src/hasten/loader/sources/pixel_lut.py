"""All possible values of a pixel, and what a chain of transforms turns them into.

The readers of value transforms are here; each takes what has been read so far, the transform,
and its generation: 1 or 2.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

HOMES = {1: "torchvision.transforms", 2: "torchvision.transforms.v2"}


class Refused(Exception):
    """A chain that is not known in every detail."""


@dataclass(slots=True)
class TransformCompiler:
    """How far a chain has been read.

    Attributes:
        palette: the image of all values, after the transforms so far.
        height, width: of the images then.
        steps: what moved pixels so far, of `crops`.
    """

    palette: Any
    height: int
    width: int
    steps: list[Any] = field(default_factory=list)


def palette(channel_count: int) -> Any:
    """Return an image of one row that holds all values of a pixel."""
    numpy: Any = sys.modules["numpy"]
    values = numpy.arange(256, dtype="uint8")
    ramp = values[None] if channel_count == 1 else values[None, :, None].repeat(channel_count, 2)
    return sys.modules["PIL.Image"].fromarray(ramp)


def plain(image: Any) -> Any:
    """Return an image as a plain tensor: channel, height, width."""
    import torch

    if isinstance(image, torch.Tensor):
        return image.as_subclass(torch.Tensor)
    numpy: Any = sys.modules["numpy"]
    pixels = torch.from_numpy(numpy.array(image))
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1)


def change_values(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a transform that changes each value by itself: apply it to the palette."""
    import torch

    before = reading.palette
    forward = transform.forward if hasattr(transform, "forward") else transform.__call__
    after = forward(before)
    if isinstance(after, torch.Tensor) and after.shape != plain(before).shape:
        raise Refused(f"{type(transform).__name__} changes the shape of an image")
    reading.palette = after


def normalize(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a Normalize by channels: means of pixels would be spread over the palette."""
    for numbers in (transform.mean, transform.std):
        given = numbers if isinstance(numbers, (list, tuple)) else [numbers]
        if not given or not all(isinstance(number, (int, float)) for number in given):
            raise Refused("Normalize is not set by plain numbers")
    change_values(reading, transform, generation)


def to_dtype(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a change of dtype."""
    import torch

    if not isinstance(transform.dtype, torch.dtype):
        raise Refused(f"{type(transform).__name__} has a dtype for each kind of tensor")
    change_values(reading, transform, generation)


def fill_of(reading: TransformCompiler, transform: Any, generation: int) -> Any:
    """Return what a transform fills with, if an image is of the palette's kind."""
    if generation == 1:
        return transform.fill
    fills, kind = transform._fill, type(reading.palette)
    return fills[kind] if kind in fills else fills["others"]


def entries(reading: TransformCompiler, fill: Any, generation: int) -> tuple[int, ...]:
    """Return which palette entry represents a fill, for each channel.

    Torchvision is asked to pad the palette: how it rounds a fill, spreads it over the channels
    or refuses it is its own affair.

    Raises:
        Refused: no entry does.
    """
    import torch

    pad = sys.modules[f"{HOMES[generation]}.functional"].pad
    padded = pad(reading.palette, [1, 1, 1, 1], fill=fill, padding_mode="constant")
    pixel, values = plain(padded)[:, 0, :1], plain(reading.palette).flatten(1)
    hits = (values == pixel) & (values.signbit() == pixel.signbit())
    if not hits.any(1).all():
        raise Refused("a padding is filled with what no pixel has")
    return tuple(hits.to(torch.uint8).argmax(1).tolist())
