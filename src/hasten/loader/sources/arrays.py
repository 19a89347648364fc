"""Torchvision datasets that hold all their images in one array, read a batch at a time.

MNIST, CIFAR, SVHN and the like make a Pillow image from one row of an array, and apply a
transform. If every transform is known, the rows of a batch are gathered, moved and looked up
together. The array, the labels and the settings of the transforms are reread for each batch:
the script may write into them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader import random_states
from hasten.loader.sources.gather import why_not_collated
from hasten.loader.sources.pixel_lut import Refused
from hasten.loader.sources.source import Stock
from hasten.loader.sources.subsets import assemble, leaves
from hasten.loader.sources.transforms import Settings, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.loader.sources.transforms import Chain


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """How a torchvision dataset stores its samples.

    Attributes:
        axes: of one image in `data`: rows Y, columns X, colours C.
        labels: the attribute with the labels.
        whole: each label goes through `int`.
        column: labels are a table, of which `int` takes this column.
    """

    axes: str
    labels: str
    whole: bool
    column: int | None = None


_SHAPES = {
    "torchvision.datasets.cifar.CIFAR10": ArrayShape("YXC", "targets", whole=False),
    "torchvision.datasets.mnist.MNIST": ArrayShape("YX", "targets", whole=True),
    "torchvision.datasets.mnist.QMNIST": ArrayShape("YX", "targets", whole=True, column=0),
    "torchvision.datasets.semeion.SEMEION": ArrayShape("YX", "labels", whole=True),
    "torchvision.datasets.stl10.STL10": ArrayShape("CYX", "labels", whole=True),
    "torchvision.datasets.svhn.SVHN": ArrayShape("CYX", "labels", whole=True),
    "torchvision.datasets.usps.USPS": ArrayShape("YX", "targets", whole=True),
}


NAMES = frozenset(
    {"CIFAR10", "CIFAR100", "EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "SEMEION"}
    | {"STL10", "SVHN", "USPS"}
)
"""Data sets that torchvision makes in these shapes; a subclass has a name of its own."""

_READ = ("data", "targets", "labels", "transform", "target_transform", "compat")
_CHANNEL_COUNT = 3


class Leaf(NamedTuple):
    """A data set below torch's views, as it was when it was looked at.

    Attributes:
        dataset: the data set.
        shape: how it keeps its samples.
        transform: its transform.
        settings: what that was set to.
    """

    dataset: Any
    shape: ArrayShape
    transform: Any
    settings: Settings


class Arrays:
    """The batches of data sets of images whose transform is known.

    Args:
        dataset: one that `offer` accepted.
        leaves: the data sets below its views.
        chain: what their transforms do.
        channels_last: torch's own batches have this memory format, outside of workers.
    """

    name = "arrays"
    light = True

    def __init__(
        self, dataset: Any, leaves: list[Leaf], chain: Chain, *, channels_last: bool
    ) -> None:
        self.pure = not chain.draws
        self._dataset = dataset
        self._leaves = leaves
        self._chain = chain
        self._channels_last = channels_last

    def fetch(self, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`.

        Raises:
            IndexError: an index lies outside, or there is none.
            Refused: the data set is not what it was when it was offered. Nothing was drawn.
            TypeError: the indices are of another kind.
        """
        from torch.utils.data import get_worker_info

        images, labels = assemble(self._dataset, indices, self._rows)
        moved = self._chain.move(images.numpy())
        # In a worker torch collates into shared memory, which is contiguous.
        last = self._channels_last and get_worker_info() is None
        return [self._chain.paint(moved, channels_last=last), labels]

    def _rows(self, dataset: Any, positions: Any) -> list[Any]:
        leaf = next((leaf for leaf in self._leaves if leaf.dataset is dataset), None)
        if leaf is None or not _as_it_was(leaf):
            raise Refused("the data set or its transform has changed")
        return _rows(dataset, leaf.shape, positions)


def _as_it_was(leaf: Leaf) -> bool:
    now = vars(leaf.dataset)
    same = now["transform"] is leaf.transform and now["target_transform"] is None
    return same and "__getitems__" not in now and leaf.settings.same()


def offer(loader: Any) -> Arrays | str:
    """Return a source for a loader of images in arrays, or one sentence why there is none.

    It knows torchvision's MNIST and its variants, CIFAR, SVHN, STL10, USPS and SEMEION, also under
    `Subset` and `ConcatDataset`, and the transforms in `hasten.loader.sources.transforms`.
    """
    import torch

    if why := why_not_collated(loader):
        return why
    if torch.get_default_device().type != "cpu":
        return "new tensors are made on another device"
    found = leaves(loader.dataset)
    if isinstance(found, str):
        return found
    try:
        seen = [_look(dataset) for dataset in found]
        chains = [_chain_of(leaf) for leaf in seen]
        if not all(chain.same(chains[0]) for chain in chains):
            return "the concatenated data sets have different transforms"
        last = _channels_last(loader, chains[0]) and not loader.num_workers
    except Refused as refused:
        return str(refused)
    return Arrays(loader.dataset, seen, chains[0], channels_last=last)


def _channels_last(loader: Any, chain: Chain) -> bool:
    """Return whether torch's own batches are channels-last, judging by a first few rows.

    Raises:
        Refused: the batches are not what the chain says.
    """
    import torch

    if not len(loader.dataset):
        raise Refused("the data set is empty")
    fetch, before, formats = Stock(loader).fetch, random_states.read(), []
    try:
        batches = [fetch([0]), fetch([0, len(loader.dataset) - 1])]
    except Exception as error:
        raise Refused(f"its first item raises {type(error).__name__}") from error
    finally:
        random_states.restore(before)
    for images, _ in batches:
        shape = torch.Size((len(images), len(chain.table), chain.height, chain.width))
        if type(images) is not torch.Tensor or images.dtype is not chain.table.dtype:
            raise Refused(f"its images are collated to a {type(images).__name__}, {images.dtype}")
        plain = torch.empty(shape, device="meta")
        last = torch.empty(shape, device="meta", memory_format=torch.channels_last)
        strides = [plain.stride(), last.stride()]
        if images.shape != shape or images.stride() not in strides:
            raise Refused(f"its images have strides {images.stride()}")
        formats.append(strides.index(images.stride()) == 1)
    if formats[0] != formats[1]:
        raise Refused("the memory format depends on the size of a batch")
    return formats[0]


def _look(dataset: Any) -> Leaf:
    shape = _shape_of(dataset)
    own = vars(dataset)
    if own["transform"] is None:
        raise Refused("without a transform its items are no tensors")
    if own["target_transform"] is not None:
        raise Refused("its target_transform is code of the script's")
    if own.get("compat", True) is not True:
        raise Refused("its labels are no single numbers")
    return Leaf(dataset, shape, own["transform"], Settings(own["transform"]))


def _chain_of(leaf: Leaf) -> Chain:
    sizes = dict(zip("N" + leaf.shape.axes, _images(leaf.dataset, leaf.shape).shape, strict=True))
    return read(leaf.transform, sizes["Y"], sizes["X"], sizes.get("C", 1))


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
    if data.ndim != len(shape.axes) + 1 or not all(data.shape[1:]):
        raise Refused(f"its images have the shape {data.shape[1:]}")
    if "C" in shape.axes and data.shape[shape.axes.index("C") + 1] != _CHANNEL_COUNT:
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
        rows = labels[positions]
        labels = (rows if shape.column is None else rows[:, shape.column]).tolist()
    elif type(labels) is sys.modules["numpy"].ndarray and shape.whole:
        labels = labels[positions.numpy()].tolist()
    elif type(labels) is list:
        labels = [labels[index] for index in positions.tolist()]
    else:
        raise Refused(f"its labels are in a {type(labels).__name__}")
    return tuple(map(int, labels)) if shape.whole else tuple(labels)
