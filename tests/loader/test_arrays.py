"""Torchvision's arrays of images: the batches of the source are torch's own to the bit."""

import pickle
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.sources import arrays
from hasten.loader.sources.source import Stock

np = pytest.importorskip("numpy", reason="numpy is not installed")
datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

COUNT = 9
CHAIN = v1.Compose([v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
GREY = v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])
DRAWING = v1.Compose([v1.RandomCrop(8, padding=2), v1.RandomHorizontalFlip(), CHAIN])


def bare(kind, data, labels, transform, name="targets"):
    """A data set without files."""
    made = kind.__new__(kind)
    vars(made).update(
        root=".", train=True, data=data, transform=transform, target_transform=None,
        transforms=None,
    )  # fmt: skip
    setattr(made, name, labels)
    return made


def pixels(*shape):
    return np.random.default_rng(3).integers(0, 256, (COUNT, *shape), dtype=np.uint8)


def cifar(transform=CHAIN, kind=datasets.CIFAR10):
    return bare(kind, pixels(8, 8, 3), list(range(COUNT)), transform)


def mnist(transform=GREY, kind=datasets.MNIST):
    return bare(kind, torch.from_numpy(pixels(8, 8)), torch.arange(COUNT) % 4, transform)


def svhn(transform=CHAIN):
    return bare(datasets.SVHN, pixels(3, 8, 8), np.arange(COUNT), transform, "labels")


def stl10(transform=CHAIN):
    labels = np.arange(COUNT, dtype=np.uint8)
    return bare(datasets.STL10, pixels(3, 8, 8), labels, transform, "labels")


def compare(dataset, indices, *, loader=None, source=None):
    """Fetch both ways from one state; return what differs, the state afterwards included."""
    loader = loader or DataLoader(dataset, batch_size=4)
    source = source or arrays.offer(loader)
    assert not isinstance(source, str), source
    torch.manual_seed(5)
    before = random_states.read()
    theirs = Stock(loader).fetch(indices)
    after = random_states.read()
    random_states.restore(before)
    ours = source.fetch(indices)
    if random_states.read() != after:
        return "the generators afterwards"
    assert source.pure is (not source._chain.draws)
    return difference(ours, theirs)


def refusal(dataset, **options):
    found = arrays.offer(DataLoader(dataset, **{"batch_size": 4, **options}))
    assert isinstance(found, str), "offered a source"
    assert found
    assert not found.endswith(".")
    return found


@pytest.mark.parametrize("make", [cifar, mnist, svhn, stl10])
@pytest.mark.parametrize("indices", [[0], [3, 1, 3], [-1, 0, 8, -9], list(range(COUNT))])
def test_batches_of_every_data_set_are_those_of_torch(make, indices) -> None:
    assert compare(make(), indices) == ""


@pytest.mark.parametrize(
    "kind", [datasets.CIFAR100, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST]
)
def test_their_kin_count_as_well(kind) -> None:
    make = cifar if kind is datasets.CIFAR100 else mnist
    assert compare(make(kind=kind), [2, 0, 5]) == ""


def test_a_subclass_that_changes_nothing_about_items_counts_as_its_parent() -> None:
    class Renamed(datasets.CIFAR10):
        base_folder = "elsewhere"

        def __len__(self):
            return 5

    assert compare(cifar(kind=Renamed), [1, 2]) == ""


def test_subclasses_that_make_items_their_own_way_are_refused() -> None:
    class Item(datasets.CIFAR10):
        def __getitem__(self, index):
            return super().__getitem__(index)

    class Items(datasets.CIFAR10):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    class Live(datasets.CIFAR10):
        transform = property(lambda self: CHAIN, lambda self, value: None)

    class Any(datasets.CIFAR10):
        def __getattribute__(self, name):
            return super().__getattribute__(name)

    for kind in (Item, Items, Live, Any):
        assert kind.__name__ in refusal(cifar(kind=kind))


def test_a_replaced_method_of_torchvision_is_refused() -> None:
    with mock.patch.object(datasets.CIFAR10, "__getitem__", lambda self, i: (torch.zeros(1), i)):
        assert "a way of its own" in refusal(cifar())


def test_views_are_seen_through() -> None:
    first, second = random_split(cifar(), [5, 4])
    assert compare(first, [0, 4, 2]) == ""
    assert refusal(ConcatDataset([first, second])) == "several data sets are concatenated"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-5, 4), min_size=1, max_size=9))
def test_draws_stay_in_the_order_of_the_batch(indices) -> None:
    assert compare(Subset(svhn(DRAWING), [8, 1, 0, 5, 5]), indices) == ""


def test_what_is_written_into_the_images_and_labels_is_seen() -> None:
    dataset = cifar()
    loader = DataLoader(dataset, batch_size=4)
    source = arrays.offer(loader)
    assert compare(dataset, [0, 1], loader=loader, source=source) == ""
    dataset.data[0] = 7
    dataset.targets[1] = 99
    assert compare(dataset, [0, 1], loader=loader, source=source) == ""
    dataset.data = dataset.data[::-1]
    assert compare(dataset, [0, 1], loader=loader, source=source) == ""


def change_mean(dataset):
    dataset.transform.transforms[1].transforms[1].mean[0] = 0.1


def change_order(dataset):
    dataset.transform.transforms.pop(0)


def change_transform(dataset):
    dataset.transform = v1.ToTensor()


def change_target(dataset):
    dataset.target_transform = int


def change_hook(dataset):
    dataset.transform.transforms[0].register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "change", [change_mean, change_order, change_transform, change_target, change_hook]
)
def test_a_changed_transform_is_noticed_before_anything_is_drawn(change) -> None:
    flip = v1.RandomHorizontalFlip()
    inner = v1.Compose([v1.ToTensor(), v1.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])])
    dataset = cifar(v1.Compose([flip, inner]))
    source = arrays.offer(DataLoader(dataset, batch_size=4))
    source.fetch([0])
    change(dataset)
    before = torch.get_rng_state()
    with pytest.raises(arrays.Refused):
        source.fetch([0, 1])
    assert torch.equal(before, torch.get_rng_state())


def test_offering_draws_nothing() -> None:
    before = random_states.read()
    assert not isinstance(arrays.offer(DataLoader(cifar(DRAWING), batch_size=4)), str)
    assert random_states.read() == before


def test_only_a_source_without_draws_is_pure() -> None:
    assert arrays.offer(DataLoader(cifar())).pure
    assert not arrays.offer(DataLoader(cifar(DRAWING))).pure


def test_images_that_stay_interleaved_keep_their_strides() -> None:
    for count in (1, 4):
        assert compare(cifar(v1.PILToTensor()), list(range(count))) == ""
        assert compare(mnist(v2.ToImage()), list(range(count))) == ""


def test_batches_of_a_worker_are_contiguous() -> None:
    for transform in (v1.PILToTensor(), CHAIN):
        loader = DataLoader(cifar(transform), batch_size=4, num_workers=1)
        source = arrays.offer(loader)
        with mock.patch.object(torch.utils.data, "get_worker_info", object):
            theirs = Stock(loader).fetch([0, 1])
        assert difference(source.fetch([0, 1]), theirs) == ""


def test_a_batch_can_be_used_as_any_other() -> None:
    images, labels = arrays.offer(DataLoader(cifar())).fetch([0, 1])
    images.resize_(1).add_(1)
    assert labels.dtype is torch.int64
    assert not vars(images)


def test_a_source_travels_to_another_process() -> None:
    dataset = cifar(DRAWING)
    loader = DataLoader(dataset, batch_size=4)
    there = pickle.loads(pickle.dumps(arrays.offer(loader)))
    assert compare(dataset, [3, 1, 3], loader=loader, source=there) == ""


def test_indices_outside_are_left_to_torch() -> None:
    source = arrays.offer(DataLoader(cifar()))
    for indices in ([COUNT], [0, -COUNT - 1], []):
        with pytest.raises(IndexError):
            source.fetch(indices)


def test_what_is_not_known_is_refused_with_the_reason() -> None:
    def own(batch):
        return batch

    labelled = cifar()
    labelled.target_transform = int
    floats = mnist()
    floats.data = floats.data / 255
    grey = cifar()
    grey.data = grey.data[..., 0]
    empty = cifar()
    empty.data, empty.targets = empty.data[:0], []
    half = cifar()
    del half.targets
    assert refusal(labelled) == "its target_transform is code of the script's"
    assert refusal(floats) == "its images are no array of bytes"
    assert "shape" in refusal(grey)
    assert refusal(empty) == "the data set is empty"
    assert "lacks attributes" in refusal(half)
    assert "without a transform" in refusal(cifar(None))
    assert "may do anything" in refusal([1, 2, 3])
    assert "collate_fn" in refusal(cifar(), collate_fn=own)
    assert "batch_size=None" in refusal(cifar(), batch_size=None)


PROGRAM = r"""
import numpy as np
from torchvision import datasets, transforms as T
from hasten.loader.sources import arrays


def cifar():
    made = datasets.CIFAR10.__new__(datasets.CIFAR10)
    pixels = np.random.default_rng(3).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    chain = T.Compose([
        T.RandomCrop(8, padding=2), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(0.5, 0.2),
    ])
    vars(made).update(data=pixels, targets=[i % 10 for i in range(40)], transform=chain,
                      target_transform=None)
    return made


def run(workers):
    loader = DataLoader(cifar(), batch_size=6, shuffle=True, num_workers=workers)
    seen = []
    for _ in range(3):
        for images, labels in loader:
            told = hashlib.sha256(images.numpy().tobytes()).hexdigest(), labels.tolist()
            seen.append((*told, images.stride(), rng()))
    return seen


fetched = []
fetch = arrays.Arrays.fetch
arrays.Arrays.fetch = lambda self, indices: fetched.append(1) or fetch(self, indices)
for workers in (0, 2):
    before = stock(lambda: run(workers))
    undo = engine.add(arrays.offer)
    facts[f"same with {workers} workers"] = freely(lambda: run(workers)) == before
    undo()
facts["used"] = len(fetched) >= 20
"""
FREE = """
def freely(run):
    torch.manual_seed(7)
    return run()
"""


@pytest.mark.child
def test_three_passes_of_a_drawing_loader_are_those_of_torch(loaders) -> None:
    found = loaders(FREE + PROGRAM)
    assert found == {"same with 0 workers": True, "same with 2 workers": True, "used": True}
