"""Samples as bytes and back: the new object cannot be told from the old one."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.loader.batch_equality import difference
from hasten.loader.cache.packing import Packed, Unpackable, copied, pack, unpack
from hasten.loader.cache.stacks import StackedValues, Unfit

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


def stacked(values):
    """Return values as they lie side by side; None where they are too different."""
    try:
        stack = StackedValues(values)
    except (Unfit, Unpackable):
        return None
    memory = memoryview(bytearray(stack.length + 64))
    return stack.fill(memory[-memory_address(memory) % 64 :][: stack.length])


def memory_address(memory):
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]


@st.composite
def alike(draw):
    """Return samples that are likely to have the same form, but not always."""
    first, *others = (draw(SAMPLES) for _ in range(draw(st.sampled_from([1, 1, 1, 2]))))
    return [first, again(first), *others, again(first)]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@settings(deadline=None, max_examples=200)
@given(alike())
def test_what_lies_side_by_side_is_collated_and_copied_as_the_samples_are(values) -> None:
    rows = stacked(values)
    assume(rows is not None)
    try:
        theirs = default_collate(values)
    except (TypeError, ValueError, RuntimeError):
        theirs = None  # not collated in any way
    for _ in range(2):
        for row, value in zip(rows, values, strict=True):
            assert difference(row, value) == ""
            assert difference(copied(row), value) == ""
            wiped(copied(row))
        if theirs is not None:
            ours = default_collate(rows)
            assert difference(ours, theirs) == ""
            wiped(ours)


@pytest.mark.parametrize(
    "values",
    [
        [torch.ones(2, 3), torch.ones(3, 2).t()],
        [torch.ones(2), torch.ones(2).double()],
        [torch.ones(4)[::2], torch.ones(4)[::2]],
        [torch.ones(2), torch.ones(2, requires_grad=True)],
        [torch.ones(2), torch.nn.Parameter(torch.ones(2))],
        [np.ones(2), np.ones(2, ">f8")],
        [np.ones((2, 3)), np.ones((3, 2)).T],
        [np.ones(2), np.broadcast_to(np.ones(1), 2)],
        [(one := torch.ones(3), one), (torch.ones(3), torch.ones(3))],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [(1, 2), (1,)],
        [1, 1.0],
        ["x" * 300, "y"],
        [{1}, {1}],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_samples_that_would_come_back_otherwise_do_not_lie_side_by_side(values) -> None:
    assert stacked(values) is None


def test_samples_of_a_loop_lie_side_by_side() -> None:
    values = [
        {
            "x": torch.full((2, 3), i).permute(1, 0) / 3,
            "y": [torch.full((2,), i)],
            "z": np.int64(i),
            "n": "",
        }
        for i in range(3)
    ]
    rows = stacked(values)
    assert difference(rows, values) == ""
    assert [row["x"].untyped_storage().data_ptr() for row in rows].count(
        rows[0]["x"].untyped_storage().data_ptr()
    ) == 3


def wiped(batch) -> None:
    """Write zeros into a batch, as a loop may do."""
    if isinstance(batch, torch.Tensor):
        batch.zero_()
    elif isinstance(batch, np.ndarray) and batch.flags.writeable:
        batch[...] = np.zeros((), batch.dtype)
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
