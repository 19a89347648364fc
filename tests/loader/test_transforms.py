"""Chains of transforms on whole batches: the bits and the draws of one image after the other."""

import warnings
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.loader.sources import transforms
from hasten.loader.sources.pixel_lut import Refused

np = pytest.importorskip("numpy", reason="numpy is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
v1 = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
v2 = pytest.importorskip("torchvision.transforms.v2")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OLD_TO_TENSOR = v2.ToTensor()
HEIGHT, WIDTH = 9, 7
F32 = torch.float32
RGB_MEANS = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))


def images(channel_count, count=6):
    """Images that hold every value."""
    shape = (count, HEIGHT, WIDTH, channel_count)
    return np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)


def one_by_one(transform, batch):
    pictures = [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
                for image in batch]  # fmt: skip
    return default_collate([transform(picture) for picture in pictures])


def compare(transform, channel_count=3, count=6):
    """Return whether a chain gives the same bits and leaves the same state as one by one."""
    batch = images(channel_count, count)
    torch.manual_seed(count)
    expected, after = one_by_one(transform, batch), torch.get_rng_state()
    torch.manual_seed(count)
    chain = transforms.read(transform, HEIGHT, WIDTH, channel_count)
    found = chain.paint(chain.move(batch.copy()), channels_last=False)
    assert torch.equal(after, torch.get_rng_state())
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    kind = torch.uint8
    assert torch.equal(found.view(kind), expected.contiguous().view(kind))
    return chain


VALUES = {
    "ToTensor": v1.ToTensor(),
    "PILToTensor": v1.PILToTensor(),
    "PILToTensor 2": v2.PILToTensor(),
    "ToImage": v2.ToImage(),
    "ToTensor 2": OLD_TO_TENSOR,
    "ConvertImageDtype": v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(F32)]),
    "ConvertImageDtype to double": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float64)],
    "ConvertImageDtype to half": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
    "ConvertImageDtype to int": [v1.PILToTensor(), v1.ConvertImageDtype(torch.int32)],
    "ConvertImageDtype 2": v2.Compose([v2.ToImage(), v2.ConvertImageDtype(F32)]),
    "ToDtype, scaled": v2.Compose([v2.ToImage(), v2.ToDtype(F32, scale=True)]),
    "ToDtype": v2.Compose([v2.ToImage(), v2.ToDtype(F32)]),
    "ToDtype to bfloat16": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.bfloat16, scale=True)]),
    "ToDtype to int16": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.int16, scale=True)]),
    "ToDtype twice": [v2.ToImage(), v2.ToDtype(F32, scale=True), v2.ToDtype(torch.uint8, True)],
    "ToPureTensor": v2.Compose([v2.ToImage(), v2.ToPureTensor()]),
    "Normalize": v1.Compose([v1.ToTensor(), v1.Normalize(*RGB_MEANS)]),
    "Normalize in place": [v1.ToTensor(), v1.Normalize(*RGB_MEANS, inplace=True)],
    "Normalize by one": v1.Compose([v1.ToTensor(), v1.Normalize(0.5, 0.25)]),
    "Normalize twice": [v1.ToTensor(), v1.Normalize([0.5], [0.3]), v1.Normalize(*RGB_MEANS)],
    "Normalize 2": [v2.ToImage(), v2.ToDtype(F32, scale=True), v2.Normalize(*RGB_MEANS)],
    "Normalize 2 in place": [v1.ToTensor(), v2.Normalize(*RGB_MEANS, inplace=True)],
    "nested": v1.Compose([v2.Compose([v1.ToTensor()]), v1.Compose((v1.Normalize(0.1, 0.2),))]),
}
MOVES = {
    "Pad": v1.Pad(2),
    "Pad two": v1.Pad((1, 2), fill=9),
    "Pad four": v1.Pad([1, 2, 3, 0], fill=255),
    "Pad 2": v2.Pad([1, 2, 0, 3], fill=3),
    "Pad reflect": v1.Pad(3, padding_mode="reflect"),
    "Pad edge": v2.Pad((4, 1), padding_mode="edge"),
    "Pad symmetric": v2.Pad(3, padding_mode="symmetric"),
    "RandomCrop": v1.RandomCrop((5, 6)),
    "RandomCrop, padded": v1.RandomCrop((9, 7), padding=4),
    "RandomCrop, filled": v1.RandomCrop(6, padding=(1, 3), fill=77),
    "RandomCrop, reflected": v1.RandomCrop((9, 7), padding=3, padding_mode="reflect"),
    "RandomCrop of one axis": v1.RandomCrop((9, 4)),
    "RandomCrop of nothing": v1.RandomCrop((9, 7)),
    "RandomCrop 2": v2.RandomCrop((5, 6)),
    "RandomCrop 2, padded": v2.RandomCrop((9, 7), padding=(1, 2, 3, 0), fill=5),
    "RandomCrop 2 of one axis": v2.RandomCrop((5, 7)),
    "RandomCrop 2 of nothing": v2.RandomCrop((9, 7)),
    "RandomHorizontalFlip": v1.RandomHorizontalFlip(),
    "RandomHorizontalFlip 2": v2.RandomHorizontalFlip(0.1),
    "never flipped": v1.RandomHorizontalFlip(0.0),
    "always flipped": v2.RandomHorizontalFlip(1),
    "Resize to the same": v1.Resize((9, 7)),
    "Resize 2 to the same": v2.Resize(7),
}


def chained(*parts):
    flat = [inner for part in parts for inner in (part if isinstance(part, list) else [part])]
    return v1.Compose(flat)


@pytest.mark.parametrize("name", VALUES)
def test_each_value_transform_keeps_its_bits(name) -> None:
    chain = compare(chained(VALUES[name]))
    assert chain.draws == ()


@pytest.mark.parametrize("name", ["ToTensor", "ToImage", "Normalize by one", "ToDtype, scaled"])
def test_grey_images_keep_their_bits(name) -> None:
    compare(chained(VALUES[name]), channel_count=1)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("channel_count", [1, 3])
def test_each_move_of_a_picture_keeps_its_bits_and_draws(name, channel_count) -> None:
    compare(chained(MOVES[name], v1.ToTensor()), channel_count)


@pytest.mark.parametrize("name", MOVES)
def test_each_move_of_a_tensor_keeps_its_bits_and_draws(name) -> None:
    compare(chained(v1.PILToTensor(), MOVES[name]))
    if getattr(MOVES[name], "fill", 0):  # no pixel is more than 1
        with pytest.raises(Refused, match="filled"):
            compare(chained(v1.ToTensor(), MOVES[name]))
    else:
        compare(chained(v1.ToTensor(), MOVES[name]))


def test_a_fill_may_differ_by_channel() -> None:
    compare(chained(v1.Pad(1, fill=(1, 2, 3)), VALUES["Normalize"]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(set(MOVES) - {"Resize to the same", "Resize 2 to the same"})),
             max_size=3),
    st.sampled_from(sorted(VALUES)),
    st.lists(st.sampled_from(sorted(MOVES)), max_size=2),
    st.integers(1, 7),
)  # fmt: skip
def test_chains_of_anything_known_keep_bits_and_draws(before, values, after, count) -> None:
    whole = chained(*(MOVES[n] for n in before), VALUES[values], *(MOVES[n] for n in after))
    try:
        transforms.read(whole, HEIGHT, WIDTH, 3)
    except Refused:
        return
    compare(whole, count=count)


def test_several_threads_change_nothing() -> None:
    count = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            compare(chained(v1.RandomHorizontalFlip(), VALUES["Normalize"]), count=40)
    finally:
        torch.set_num_threads(count)


class Mine(v1.ToTensor):
    """A script's own."""


def hooked():
    made = v1.Normalize(0.5, 0.5)
    made.register_forward_hook(lambda *_: None)
    return made


def patched():
    made = v1.RandomHorizontalFlip()
    made.forward = lambda image: image
    return made


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (v1.Lambda(np.array), "Lambda"),
        (v2.Lambda(np.array), "Lambda"),
        (np.array, "builtin_function_or_method"),
        (Mine(), "Mine"),
        (v1.Compose([v1.Resize(5), v1.ToTensor()]), "Resize"),
        (v1.Compose([v1.Grayscale(), v1.ToTensor()]), "Grayscale"),
        (v1.Compose([v1.CenterCrop(5), v1.ToTensor()]), "CenterCrop"),
        (v1.Compose([v1.RandomVerticalFlip(), v1.ToTensor()]), "RandomVerticalFlip"),
        (torch.nn.Sequential(v2.PILToTensor(), v1.ConvertImageDtype(F32)), "Sequential"),
        (v1.Compose([v1.RandomCrop(5, pad_if_needed=True), v1.ToTensor()]), "RandomCrop"),
        (v1.Compose([v1.ToTensor(), v1.Normalize(0.5, 0.2), v1.Pad(2)]), "filled"),
        (v1.Compose([v1.RandomRotation(5), v1.ToTensor()]), "RandomRotation"),
        (v1.Compose([v1.RandomApply([v1.ToTensor()])]), "RandomApply"),
        (v1.Compose([v1.ToTensor(), v1.ToTensor()]), "ToTensor"),
        (v1.Compose([v1.ToTensor(), hooked()]), "Normalize"),
        (v1.Compose([patched(), v1.ToTensor()]), "RandomHorizontalFlip"),
        (v1.Compose([v1.ToTensor(), v1.Normalize(torch.zeros(3, 9, 7), 1.0)]), "Normalize"),
        (v1.Compose([v1.ToTensor(), v1.Normalize(0.0, 0.0)]), "Normalize"),
        (v1.Compose([v1.Pad(-1), v1.ToTensor()]), "Pad"),
        (v1.Compose([v1.Pad(9, padding_mode="reflect"), v1.ToTensor()]), "Pad"),
        (v1.Compose([v1.RandomCrop(20), v1.ToTensor()]), "RandomCrop"),
        (v1.Compose([v2.ToImage(), v1.RandomHorizontalFlip()]), "RandomHorizontalFlip"),
        (v1.Compose([v2.ToImage(), v2.ToDtype({torch.Tensor: F32, "others": None})]), "ToDtype"),
        (v1.Compose([v1.RandomHorizontalFlip()]), "no tensor"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(transform, named) -> None:
    with pytest.raises(Refused, match=named):
        transforms.read(transform, HEIGHT, WIDTH, 3)


def test_a_mean_for_three_channels_does_not_make_three_of_one() -> None:
    with pytest.raises(Refused, match="shape"):
        transforms.read(chained(VALUES["Normalize 2"]), HEIGHT, WIDTH, 1)


def test_a_method_replaced_for_all_is_refused() -> None:
    with (
        mock.patch.object(v1.ToTensor, "__call__", lambda self, image: image),
        pytest.raises(Refused, match="methods or hooks of ToTensor were changed"),
    ):
        transforms.read(v1.ToTensor(), HEIGHT, WIDTH, 3)
