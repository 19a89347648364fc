"""Chains of torchvision's transforms, applied to whole batches of 8-bit images.

A known transform does one of two things. It moves pixels: pads, crops, flips. Or it maps
each value separately: what a pixel becomes depends only on its value and its channel. So a
chain is read by running the script's own value transforms once, on a *palette*: an image of one
row that holds all 256 values in each channel. A batch then consists of entries of the palette,
which are moved as bytes and looked up at the end. Whatever arithmetic the transforms do, their
bits are kept: `x * (1 / 255)` for `x / 255`, say, would differ for 126 of 256 values. What a
padding is filled with is the entry that has this value at its place in the chain.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader.sources import bulk_draws, crops, pixel_lut
from hasten.loader.sources.pixel_lut import HOMES, Refused, TransformCompiler

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.loader.sources.bulk_draws import Kinds
    from hasten.loader.sources.crops import PixelMove

_METHODS = (
    "__call__", "forward", "transform", "check_inputs", "make_params", "get_params",
    "_get_params", "_transform", "_check_inputs", "_call_kernel", "_needs_transform_list",
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What a chain of transforms does to 8-bit images.

    Attributes:
        steps: what moves pixels.
        table: what each palette entry becomes; its axes are channel and entry.
    """

    steps: tuple[PixelMove, ...]
    table: Any
    height: int
    width: int

    @property
    def draws(self) -> Kinds:
        """The draws of one sample from torch's global generator, in order."""
        return tuple(kind for step in self.steps for kind in step.draws)

    def move(self, images: Any) -> Any:
        """Draw, and move the pixels of a batch.

        Args:
            images: a fresh array of uint8: batch, height, width, channel.
        """
        drawn = bulk_draws.draw(self.draws, len(images))
        for step in self.steps:
            images = step.apply(images, [drawn.pop(0) for _ in step.draws])
        return images

    def paint(self, images: Any, *, channels_last: bool) -> Any:
        """Return the batch that the palette's entries stand for: batch, channel, height, width."""
        import torch

        numpy: Any = sys.modules["numpy"]
        axes = (0, 1, 2, 3) if channels_last else (0, 3, 1, 2)
        entries = torch.from_numpy(images).permute(axes).contiguous()
        painted = torch.empty(entries.shape, dtype=self.table.dtype)
        channel_count, entry_count = self.table.shape
        offsets = numpy.arange(channel_count, dtype="int32") * entry_count
        places = numpy.empty(entries.shape, "int32")
        offsets = offsets if channels_last else offsets[:, None, None]
        numpy.add(entries.numpy(), offsets, out=places)
        found = torch.from_numpy(places.reshape(-1))
        torch.index_select(self.table.view(-1), 0, found, out=painted.view(-1))
        return painted.permute(0, 3, 1, 2) if channels_last else painted


def read(transform: Any, height: int, width: int, channel_count: int) -> Chain:
    """Return what a transform does to 8-bit images of a given size, in Pillow mode "L" or "RGB".

    Raises:
        Refused: some part of the transform is unknown, was changed, or does not fit.
    """
    import torch

    reading = TransformCompiler(pixel_lut.palette(channel_count), height, width)
    for part in _nodes(transform):
        if type(part).__name__ not in _READERS:  # a chain, whose members follow
            continue
        generation, name = _kind(part)
        try:
            _READERS[name](reading, part, generation)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise Refused(f"{name} does not take these images: {error}") from error
    if not isinstance(reading.palette, torch.Tensor):
        raise Refused("the transform makes no tensor of an image")
    table = pixel_lut.plain(reading.palette).flatten(1).contiguous()
    return Chain(tuple(reading.steps), table, reading.height, reading.width)


class Settings:
    """The settings of a chain and of its transforms, kept to see whether they change.

    Args:
        transform: the whole chain.

    Raises:
        Refused: some part of it is unknown or was changed.
    """

    def __init__(self, transform: Any) -> None:
        import torch

        self._dtype = torch.get_default_dtype()
        self._seen = [(node, _copied(node)) for node in _nodes(transform)]

    def same(self) -> bool:
        """Return whether everything is as it was. It is called for each batch, so it is cheap."""
        import torch

        if torch.get_default_dtype() is not self._dtype:
            return False
        return all(vars(node) == seen for node, seen in self._seen)


def _nodes(transform: Any) -> list[Any]:
    """Return the transforms of a chain in order, with nested chains before their members.

    Raises:
        Refused: one of them is unknown or was changed.
    """
    _kind(transform)
    if type(transform).__name__ != "Compose":
        return [transform]
    if type(transform.transforms) not in (list, tuple):
        raise Refused(f"Compose holds its transforms in a {type(transform.transforms).__name__}")
    return [transform, *(node for member in transform.transforms for node in _nodes(member))]


def _copied(node: Any) -> dict[str, Any]:
    """Return the attributes of an object; containers copied, since they may be written into."""
    kept = vars(node).items()
    return {k: v.copy() if isinstance(v, (list, dict)) else v for k, v in kept}


def _kind(transform: Any) -> tuple[int, str]:
    """Return generation and name of a transform that is torchvision's own, to the last method."""
    name, generation = type(transform).__name__, generation_of(transform)
    if generation is None:
        raise Refused(f"{name} is no transform of torchvision's")
    if name not in _READERS and name != "Compose":
        raise Refused(f"{name} is not known to work on whole batches with the same bits")
    if not untouched(transform):
        raise Refused(f"methods or hooks of {name} were changed")
    return generation, name


def generation_of(transform: Any) -> int | None:
    """Return of which generation of torchvision's transforms one is; None if it is none of them."""
    kind = type(transform)
    for generation, home in HOMES.items():
        if getattr(sys.modules.get(home), kind.__name__, None) is kind:
            return generation
    return None


def untouched(transform: Any) -> bool:
    """Return whether a transform runs nothing but the methods that its library gave it."""
    from torch.nn.modules import module

    own = vars(transform)
    methods = [
        getattr(type(transform), name) for name in _METHODS if hasattr(type(transform), name)
    ]
    genuine = all(
        str(getattr(method, "__module__", "")).startswith(("torchvision.", "torch.nn."))
        for method in methods
    )
    hooked = any(own.get(name) for name in _HOOKS) or bool(
        module._global_forward_hooks or module._global_forward_pre_hooks
    )
    return genuine and not hooked and not own.keys() & set(_METHODS)


_READERS: dict[str, Callable[[TransformCompiler, Any, int], None]] = {
    "ConvertImageDtype": pixel_lut.to_dtype,
    "Normalize": pixel_lut.normalize,
    "Pad": crops.pad,
    "PILToTensor": pixel_lut.change_values,
    "RandomCrop": crops.random_crop,
    "RandomHorizontalFlip": crops.flip,
    "Resize": crops.resize,
    "ToDtype": pixel_lut.to_dtype,
    "ToImage": pixel_lut.change_values,
    "ToPureTensor": pixel_lut.change_values,
    "ToTensor": pixel_lut.change_values,
}
