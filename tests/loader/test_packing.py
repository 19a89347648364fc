"""Samples as bytes and back: the new object cannot be told from the old one."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.loader.batch_equality import difference
from hasten.loader.cache.packing import Packed, Unpackable, pack, unpack

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
ARRAY_TYPES = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="?"), arrays.floating_dtypes(),
    arrays.complex_number_dtypes(), arrays.unicode_string_dtypes(min_len=1),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.complex_numbers(allow_nan=False),
)  # fmt: skip


def again(value, note=None):
    return unpack(bytearray(b"".join(pack(value, note))))


def made_twice(value):
    """Return what a maker makes, the second time."""
    make = Packed(bytearray(b"".join(pack(value)))).lend()[1]
    make()
    return make()


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    raw = torch.randint(0, 256, (torch.Size(shape).numel() * dtype.itemsize,), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    value = raw.view(dtype).view(shape) if raw.numel() else torch.empty(shape, dtype=dtype)
    value = value.permute(draw(st.permutations(range(len(shape)))))
    for axis in range(value.dim()):
        if value.shape[axis] > 1 and draw(st.booleans()):
            value = value.narrow(axis, 1, value.shape[axis] - 1)
    return value


@st.composite
def ndarrays(draw):
    value = draw(arrays.arrays(ARRAY_TYPES, arrays.array_shapes(min_dims=0, min_side=0)))
    value = value.transpose(draw(st.permutations(range(value.ndim))))
    if draw(st.booleans()):
        value = value[None]
    value.flags.writeable = draw(st.booleans())
    return value


LEAVES = st.one_of(SCALARS, tensors(), ndarrays())
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(SAMPLES)
def test_every_sample_comes_back_the_same(value) -> None:
    assert difference(again(value), value) == ""


@settings(deadline=None, max_examples=200)
@given(SAMPLES)
def test_a_maker_makes_the_same_each_time(value) -> None:
    assert difference(made_twice(value), value) == ""


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@settings(deadline=None, max_examples=200)
@given(SAMPLES)
def test_what_is_lent_is_collated_as_the_sample_is(value) -> None:
    lent, _ = Packed(bytearray(b"".join(pack(value)))).lend()
    assume(lent is not None)
    assert difference(lent, value) == ""
    try:
        theirs = default_collate([value, value])
    except (TypeError, ValueError, RuntimeError):
        reject()  # not collated in any way
    for _ in range(2):
        ours = default_collate([lent, lent])
        assert difference(ours, theirs) == ""
        wiped(ours)


def wiped(batch) -> None:
    """Write zeros into a batch, as a loop may do."""
    if isinstance(batch, torch.Tensor):
        batch.zero_()
    elif isinstance(batch, (list, dict)):
        for part in batch.values() if isinstance(batch, dict) else batch:
            wiped(part)


def test_what_a_maker_made_may_be_written_to() -> None:
    make = Packed(bytearray(b"".join(pack({"x": [torch.arange(6.0).view(2, 3).t(), 1]})))).lend()[1]
    first = make()
    first["x"][0].zero_()
    first["x"].append(2)
    assert difference(make(), {"x": [torch.arange(6.0).view(2, 3).t(), 1]}) == ""


@settings(deadline=None)
@given(ndarrays())
def test_arrays_come_back_with_their_strides_and_as_writable_as_they_were(value) -> None:
    back = again(value)
    assert back.strides == value.strides
    assert back.flags.writeable == value.flags.writeable
    assert back.dtype == value.dtype


@settings(deadline=None)
@given(tensors())
def test_a_tensor_that_comes_back_has_memory_of_its_own(value) -> None:
    packed = bytearray(b"".join(pack(value)))
    first, second = unpack(packed), unpack(packed)
    if first.numel() and first.dtype is not torch.bool:
        first.zero_()
        assert difference(second, value) == ""
        assert first.is_contiguous() == value.is_contiguous()


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8, np.bool_, np.float64])
def test_numpy_scalars_stay_numpy_scalars(kind) -> None:
    assert type(again(kind(1))) is kind


def test_an_axis_of_one_element_may_have_any_stride() -> None:
    for strides in ((2, 2), (0, 7), (1, 1)):
        value = torch.arange(9.0).as_strided((1, 1), strides)
        assert difference(again(value), value) == ""


def test_the_note_is_read_without_the_rest() -> None:
    packed = Packed(bytearray(b"".join(pack([1, 2], note=(("a", 1),)))))
    assert packed.note == (("a", 1),)
    assert packed.build() == [1, 2]


class Own(list):
    pass


PARAMETER = torch.nn.Parameter(torch.ones(2))
ONE = torch.ones(3)


@pytest.mark.parametrize(
    "value",
    [
        Own(), PARAMETER, torch.ones(2, requires_grad=True), {1, 2}, object(), bytearray(b"x"),
        np.array([None, 1]), torch.ones(1).expand(3), torch.eye(2).to_sparse(),
        (ONE, ONE), [ONE, ONE[1:]], np.arange(6)[::2], np.arange(3)[::-1],
        torch.ones(2, dtype=torch.complex64).conj(), {(1, 2): 3}, np.ma.array([1]),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_refuses_what_would_come_back_otherwise(value) -> None:
    with pytest.raises(Unpackable):
        pack(value)


class TestImages:
    Image = pytest.importorskip("PIL.Image", reason="needs Pillow")

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F"])
    @pytest.mark.parametrize("size", [(7, 5), (1, 1), (0, 3)])
    def test_images_come_back_the_same(self, mode, size) -> None:
        noise = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8).numpy()
        image = self.Image.fromarray(noise).convert(mode).crop((0, 0, *size))
        image.info = {"dpi": (72, 72), "exif": b"x", "gamma": 0.45}
        back = again(image)
        assert difference(back, image) == ""
        assert (back.mode, back.size, back.info) == (image.mode, image.size, image.info)
        assert list(back.info) == list(image.info)
        assert {name: kept for name, kept in vars(back).items() if name != "_im"} == {
            name: kept for name, kept in vars(image).items() if name != "_im"
        }

    def test_an_image_that_is_tied_to_its_file_is_refused(self, tmp_path) -> None:
        self.Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
        with self.Image.open(tmp_path / "a.png") as image, pytest.raises(Unpackable):
            pack(image)

    def test_an_image_with_a_palette_or_attributes_of_somebody_elses_is_refused(self) -> None:
        with pytest.raises(Unpackable):
            pack(self.Image.new("P", (4, 4)))
        marked = self.Image.new("RGB", (4, 4))
        marked.label = 3
        with pytest.raises(Unpackable):
            pack(marked)
