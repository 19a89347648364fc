"""Pads, crops and flips of a whole batch of images at once, and how to read them off transforms.

Images are NumPy arrays: batch, height, width, channel, with any strides. A step may write
into the array that it gets.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader.sources.pixel_lut import Refused, entries, fill_of

if TYPE_CHECKING:
    from hasten.loader.sources.bulk_draws import Kinds
    from hasten.loader.sources.pixel_lut import TransformCompiler

_PAD_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, slots=True)
class Pad:
    """Rows and columns added around.

    Attributes:
        left, top, right, bottom: in pixels.
        mode: as `numpy.pad` calls it.
        fill: one value for each channel, where the mode is "constant".
    """

    left: int
    top: int
    right: int
    bottom: int
    mode: str
    fill: tuple[int, ...]

    draws: Kinds = ()

    def apply(self, images: Any, drawn: list[Any]) -> Any:
        """Return the padded images."""
        numpy: Any = sys.modules["numpy"]
        if self.mode != "constant":
            widths = ((0, 0), (self.top, self.bottom), (self.left, self.right), (0, 0))
            return numpy.pad(images, widths, self.mode)
        count, height, width, channel_count = images.shape
        shape = (count, height + self.top + self.bottom, width + self.left + self.right)
        padded = numpy.empty((*shape, channel_count), images.dtype)
        padded[...] = self.fill if len(set(self.fill)) > 1 else self.fill[0]
        padded[:, self.top : self.top + height, self.left : self.left + width] = images
        return padded


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A rectangle of each image, at a random position.

    Attributes:
        height, width: of the rectangle.
        tops, lefts: how many positions there are; None: the first one, without a draw.
    """

    height: int
    width: int
    tops: int | None
    lefts: int | None

    @property
    def draws(self) -> Kinds:
        """What one sample draws: the top, then the left."""
        return tuple(count for count in (self.tops, self.lefts) if count is not None)

    def apply(self, images: Any, drawn: list[Any]) -> Any:
        """Return the rectangles."""
        numpy: Any = sys.modules["numpy"]
        places = iter(drawn)
        top = 0 if self.tops is None else next(places).numpy()
        left = 0 if self.lefts is None else next(places).numpy()
        size = (self.height, self.width)
        windows = numpy.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
        return windows[numpy.arange(len(images)), top, left].transpose(0, 2, 3, 1)


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """Each image flipped left to right, or not.

    Attributes:
        p: the probability of a flip.
    """

    p: float

    draws: Kinds = (None,)

    def apply(self, images: Any, drawn: list[Any]) -> Any:
        """Flip those whose draw is below `p`."""
        import torch

        numpy: Any = sys.modules["numpy"]
        planes = numpy.ascontiguousarray(images.transpose(0, 3, 1, 2))
        turned = (drawn[0] < self.p).nonzero().flatten().numpy()
        # Torch flips bytes four times as fast as NumPy.
        planes[turned] = torch.from_numpy(planes[turned]).flip(-1).numpy()
        return planes.transpose(0, 2, 3, 1)


PixelMove = Pad | RandomCrop | RandomFlip


def resize(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a resize to the size that the images already have."""
    size = [transform.size] if isinstance(transform.size, int) else list(transform.size or ())
    own = [reading.height, reading.width]
    if transform.max_size is not None or size not in (own, [min(own)]):
        raise Refused("Resize is not known to give whole batches the same bits")
    _may_move(reading, transform, generation)


def _may_move(reading: TransformCompiler, transform: Any, generation: int) -> None:
    import torch

    # First-generation transforms turn some torchvision tensors into plain ones.
    kinds = (torch.Tensor, sys.modules["PIL.Image"].Image)
    if generation == 1 and type(reading.palette) not in kinds:
        raise Refused(f"{type(transform).__name__} gets a {type(reading.palette).__name__}")


def flip(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a RandomHorizontalFlip."""
    _may_move(reading, transform, generation)
    if not isinstance(transform.p, (int, float)):
        raise Refused(f"{type(transform).__name__} has a {type(transform.p).__name__} for p")
    reading.steps.append(RandomFlip(transform.p))


def pad(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a Pad."""
    _may_move(reading, transform, generation)
    _pad(reading, transform, generation, _four(transform.padding))


def _four(padding: Any) -> tuple[int, int, int, int]:
    """Return the left, top, right and bottom of a padding as transforms specify it."""
    given = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (given * (4 // len(given)))[:4]
    return left, top, right, bottom


def _pad(
    reading: TransformCompiler, transform: Any, generation: int, sides: tuple[int, ...]
) -> None:
    left, top, right, bottom = sides
    mode = transform.padding_mode
    if mode not in _PAD_MODES or min(sides) < 0 or not all(type(side) is int for side in sides):
        raise Refused(f"{type(transform).__name__} pads by {sides}, {mode!r}")
    if mode != "constant" and (
        max(left, right) >= reading.width or max(top, bottom) >= reading.height
    ):
        raise Refused(f"{type(transform).__name__} pads by more than an image")
    fill: tuple[int, ...] = ()
    if mode == "constant":
        fill = entries(reading, fill_of(reading, transform, generation), generation)
    reading.steps.append(Pad(left, top, right, bottom, mode, fill))
    reading.height += top + bottom
    reading.width += left + right


def random_crop(reading: TransformCompiler, transform: Any, generation: int) -> None:
    """Read a RandomCrop with its padding."""
    _may_move(reading, transform, generation)
    height, width = transform.size
    if transform.pad_if_needed:
        raise Refused("RandomCrop pads as much as an image needs")
    if transform.padding:
        left, top, right, bottom = _four(transform.padding)
        if generation == 2:  # it keeps them in another order
            top, right = right, top
        _pad(reading, transform, generation, (left, top, right, bottom))
    spare_rows, spare_columns = reading.height - height, reading.width - width
    if min(spare_rows, spare_columns) < 0:
        raise Refused("RandomCrop is larger than an image")
    # The first generation draws both places or none; the second, each where there is a choice.
    both = generation == 1 and bool(spare_rows or spare_columns)
    tops = spare_rows + 1 if spare_rows or both else None
    lefts = spare_columns + 1 if spare_columns or both else None
    if spare_rows or spare_columns:
        reading.steps.append(RandomCrop(height, width, tops, lefts))
    reading.height, reading.width = height, width
