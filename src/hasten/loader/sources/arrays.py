"""Torchvision datasets that hold all their images in one array, read a batch at a time.

MNIST, CIFAR, SVHN and the like make a Pillow image from one row of an array, and apply a
transform. If every transform is known, the rows of a batch are gathered, moved and looked up
together. The array, the labels and the settings of the transforms are reread for each batch:
the script may write into them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader import random_states
from hasten.loader.sources.gather import why_not_collated
from hasten.loader.sources.pixel_lut import Refused
from hasten.loader.sources.source import Stock
from hasten.loader.sources.subsets import assemble, leaves
from hasten.loader.sources.transforms import Settings, read
from hasten.loader.view import new_tensors_device

if TYPE_CHECKING:
    from collections.abc import Sequence


class ArrayShape(NamedTuple):
    """How a torchvision dataset stores its samples.

    Attributes:
        axes: of one image in `data`: rows Y, columns X, colours C.
        labels: the attribute with the labels.
        whole: each label goes through `int`.
    """

    axes: str
    labels: str
    whole: bool


_SHAPES = {
    "torchvision.datasets.cifar.CIFAR10": ArrayShape("YXC", "targets", whole=False),
    "torchvision.datasets.mnist.MNIST": ArrayShape("YX", "targets", whole=True),
    "torchvision.datasets.stl10.STL10": ArrayShape("CYX", "labels", whole=True),
    "torchvision.datasets.svhn.SVHN": ArrayShape("CYX", "labels", whole=True),
}

_READ = ("data", "targets", "labels", "transform", "target_transform")


class Arrays:
    """The batches of a data set of images whose transform is known.

    Args:
        dataset: one that `offer` accepted: torch's views of `leaf`.
        leaf: the data set below them.

    Raises:
        Refused: the data set or its transform is not known in every detail.

    Attributes:
        channels_last: torch's own batches have this memory format.
    """

    name = "arrays"
    light = True

    def __init__(self, dataset: Any, leaf: Any) -> None:
        self._dataset, self._leaf = dataset, leaf
        self._shape = _shape_of(leaf)
        own = vars(leaf)
        if own["transform"] is None:
            raise Refused("without a transform its items are no tensors")
        if own["target_transform"] is not None:
            raise Refused("its target_transform is code of the script's")
        self._transform = own["transform"]
        self._settings = Settings(self._transform)
        axes = "N" + self._shape.axes
        sizes = dict(zip(axes, _images(leaf, self._shape).shape, strict=True))
        self._chain = read(self._transform, sizes["Y"], sizes["X"], sizes.get("C", 1))
        self.pure = not self._chain.draws
        self.channels_last = False

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`.

        Raises:
            IndexError: an index lies outside, or there is none.
            Refused: the data set is not what it was when it was offered. Nothing was drawn.
            TypeError: the indices are of another kind.
        """
        images, labels = assemble(self._dataset, indices, self._rows)
        moved = self._chain.move(images.numpy())
        return [self._chain.paint(moved, channels_last=self.channels_last), labels]

    def _rows(self, leaf: Any, positions: Any) -> list[Any]:
        now = vars(leaf)
        same = now["transform"] is self._transform and now["target_transform"] is None
        if leaf is not self._leaf or not same or "__getitems__" in now or not self._settings.same():
            raise Refused("the data set or its transform has changed")
        return _rows(leaf, self._shape, positions)


def offer(loader: Any) -> Arrays | str:
    """Return a source for a loader of images in arrays, or one sentence why there is none.

    It knows torchvision's MNIST and its variants, CIFAR, SVHN and STL10, also under `Subset`, and
    the transforms in `hasten.loader.sources.transforms`.
    """
    if why := why_not_collated(loader):
        return why
    if new_tensors_device().type != "cpu":
        return "new tensors are made on another device"
    found = leaves(loader.dataset)
    if isinstance(found, str):
        return found
    if len(found) != 1:
        return "several data sets are concatenated"
    try:
        source = Arrays(loader.dataset, found[0])
        source.channels_last = _channels_last(loader) and not loader.num_workers
    except Refused as refused:
        return str(refused)
    return source


def _channels_last(loader: Any) -> bool:
    """Return whether torch's own batches are channels-last, judging by a first one.

    Raises:
        Refused: there is none.
    """
    import torch

    if not len(loader.dataset):
        raise Refused("the data set is empty")
    before = random_states.read()
    try:
        images, _ = Stock(loader).fetch([0, len(loader.dataset) - 1])
    except Exception as error:
        raise Refused(f"its first item raises {type(error).__name__}") from error
    finally:
        random_states.restore(before)
    return bool(images.stride() != torch.empty(images.shape, device="meta").stride())


def _shape_of(leaf: Any) -> ArrayShape:
    """Return how a data set keeps its samples, where it is torchvision's to the last method."""
    kind: Any = type(leaf)
    owner: Any = next((base for base in kind.__mro__ if "__getitem__" in vars(base)), kind)
    name = getattr(owner, "__qualname__", "")
    shape = _SHAPES.get(f"{owner.__module__}.{name}")
    if shape is None:
        raise Refused(f"a {kind.__name__} may do anything to make an item")
    module: Any = sys.modules[owner.__module__]
    item: Any = vars(owner)["__getitem__"]
    genuine = (
        getattr(module, name, None) is owner
        and getattr(item, "__qualname__", "") == f"{name}.__getitem__"
        and getattr(item, "__globals__", None) is vars(module)
        and kind.__getattribute__ is object.__getattribute__
        and not any(hasattr(kind, name) for name in ("__getattr__", *_READ))
        and not hasattr(leaf, "__getitems__")
    )
    if not genuine:
        raise Refused(f"{kind.__name__} makes its items in a way of its own")
    if not {"data", shape.labels, "transform", "target_transform"} <= vars(leaf).keys():
        raise Refused(f"this {kind.__name__} lacks attributes of torchvision's")
    return shape


def _images(leaf: Any, shape: ArrayShape) -> Any:
    """Return the array of all images, as NumPy sees it."""
    import torch

    numpy: Any = sys.modules["numpy"]
    data = leaf.data
    # Torchvision's code expects one row of a tensor, or one of an array, depending on the class.
    if type(data) is torch.Tensor and shape.axes == "YX" and data.is_cpu:
        data = data.numpy() if data.dtype is torch.uint8 else data
    if type(data) not in (numpy.ndarray, numpy.memmap) or data.dtype.char != "B":
        raise Refused("its images are no array of bytes")
    sizes = dict(zip(shape.axes, data.shape[1:], strict=False))
    if data.ndim != len(shape.axes) + 1 or not all(data.shape[1:]) or sizes.get("C", 3) != 3:
        raise Refused(f"its images have the shape {data.shape[1:]}")
    return data


def _rows(leaf: Any, shape: ArrayShape, positions: Any) -> list[Any]:
    """Return images (batch, height, width, channel) and collated labels of some rows."""
    import torch
    from torch.utils.data import default_collate

    collate: Any = default_collate

    images = _images(leaf, shape)[positions.numpy()]
    if shape.axes == "YX":
        images = images[..., None]
    elif shape.axes == "CYX":
        images = images.transpose(0, 2, 3, 1)
    return [torch.from_numpy(images), collate(_labels(leaf, shape, positions))]


def _labels(leaf: Any, shape: ArrayShape, positions: Any) -> tuple[Any, ...]:
    import torch

    labels = vars(leaf)[shape.labels]
    if type(labels) is torch.Tensor and shape.whole:
        labels = labels[positions].tolist()
    elif type(labels) is sys.modules["numpy"].ndarray and shape.whole:
        labels = labels[positions.numpy()].tolist()
    elif type(labels) is list:
        labels = [labels[index] for index in positions.tolist()]
    else:
        raise Refused(f"its labels are in a {type(labels).__name__}")
    return tuple(map(int, labels)) if shape.whole else tuple(labels)
