"""items: batches of a script's own datasets in memory, equal to torch's own in all that is seen."""

import operator
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softsign
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.sources import stack_functions
from hasten.loader.sources.batched_items import offer
from hasten.loader.sources.checked import Checked
from hasten.loader.sources.item_stack import NotBatched
from hasten.loader.sources.source import Stock
from hasten.loader.sources.subsets import ByRows

COUNT = 11
MEAN, SPREAD = torch.tensor([0.13]), torch.tensor([0.31])
DRAWN = np.random.default_rng(0)


def numbers(*shape, dtype="float32"):
    return (DRAWN.random((COUNT, *shape)) * 200).astype(dtype)


class Rows(Dataset):
    """A dataset of a script; subclasses say how an item is made."""

    width = 4

    def __init__(self, **members):
        vars(self).update(members)

    def __len__(self):
        return COUNT


class Pictures(Rows):
    def __getitem__(self, index):
        picture = torch.from_numpy(self.pictures[index]).float().div(255).unsqueeze(0)
        return (picture - MEAN[:, None, None]) / SPREAD[:, None, None], index % 10


class Colours(Rows):
    def __getitem__(self, idx):
        image = self.images[idx].astype(np.float32) / 255.0
        image = torch.from_numpy(image).permute(2, 0, 1)
        label = torch.tensor(self.labels[idx], dtype=torch.long)
        return {"image": image, "label": label}


class Table(Rows):
    def __getitem__(self, i):
        """Return a row."""
        return torch.tensor(self.x[i]), torch.tensor(self.y[i], dtype=torch.float32)


class Tutorial(Rows):
    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        sample = {"x": torch.FloatTensor(self.x[idx]), "y": torch.tensor([self.y[idx], idx])}
        sample_of_two = torch.FloatTensor([self.z[idx], self.z[idx]]), torch.LongTensor(self.w[idx])
        return sample, sample_of_two, torch.tensor([float(self.z[idx])])


class Standard(Rows):
    def __getitem__(self, i):
        row = (self.x[i] - self.mean) / self.spread
        return row * (1 / self.spread), self.y[i], self.z[i] * 2.5


class Plain(Rows):
    def __getitem__(self, i):
        return self.x[i], self.y[i], self.names[i], 3, 0.5


class Tensors(Rows):
    def __getitem__(self, i):
        x, y = self.x[i, :2], self.y[i]
        return [x * 2 - 1, x.transpose(0, 1), y.item(), y.view(1).float()]


class Windows(Rows):
    def __len__(self):
        return COUNT - self.width - 1

    def __getitem__(self, start):
        middle = start + self.width
        end = middle + 1
        return self.series[start:middle], self.series[middle:end, 0], self.marks[start + 1 : end]


class Chosen(Rows):
    def __getitem__(self, index):
        item = self.x[index]
        if self.transform is not None:
            item = self.transform(item)
        item = self.normalized(item, scale=self.scale) if self.width > 2 else item
        return item if self.bare else (item, float(self.y[index]), int(self.y[index]))

    def normalized(self, item, mean=0.5, scale=1.0):
        return (item - mean) * scale


class Samples(Rows):
    def __getitem__(self, i):
        row, label = self.samples[i]
        return torch.Tensor(row), torch.tensor(row), torch.tensor(row[1:]), len(row), label


class Lists(Rows):
    def __getitem__(self, i):
        return {"whole": self.whole[i], "real": self.real[i], "both": [self.whole[i], self.y[i]]}


class Records(Rows):
    def __getitem__(self, i):
        record = self.records[i]
        mask = record["mask"] if "mask" in record else record["ids"]
        return {"ids": torch.LongTensor(record["ids"]), "mask": mask, "y": record["y"]}


class Options(Rows):
    def __getitem__(self, i):
        item = self.x[i]
        if self.mode in ("train", "tuned") and not self.bare:
            item = item * 2
        if self.mode not in self.scales or self.transform is None:
            item = item + 1
        if self.transform and (self.bare or self.width > 2):
            item = self.transform(item)
        return item, self.scale or 1, self.y[i] if self.names and "y" in self.names else i


class Scale:
    """A callable of the script's own."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, item):
        return item * self.factor


def halved(item):
    return item / 2


CASES = {
    "pictures": Pictures(pictures=numbers(6, 5, dtype="uint8")),
    "colours": Colours(images=numbers(6, 5, 3, dtype="uint8"), labels=list(range(COUNT))),
    "numpy labels": Colours(images=numbers(2, 1, 3, dtype="uint8"), labels=np.arange(COUNT)),
    "one channel": Colours(images=numbers(4, 3, 1, dtype="uint8"), labels=np.arange(COUNT)),
    "rows": Table(x=numbers(7), y=np.arange(COUNT)),
    "doubles": Table(x=numbers(7, dtype="float64"), y=numbers(dtype="float64")),
    "lists of numbers": Table(x=[0.1 * i for i in range(COUNT)], y=list(range(COUNT))),
    "lists of arrays": Table(x=list(numbers(3)), y=numbers(2)),
    "tutorial": Tutorial(
        x=numbers(3, dtype="float64"), y=list(range(COUNT)), z=numbers(),
        w=numbers(2, dtype="int32"),
    ),
    "standard": Standard(
        x=numbers(4), mean=numbers().mean(), spread=np.float64(3.7), y=numbers(),
        z=numbers(2, dtype="float64"),
    ),
    "standard rows": Standard(
        x=numbers(4), mean=numbers(4).mean(0), spread=numbers(4).std(0), y=numbers(dtype="int64"),
        z=numbers(2, dtype="float32"),
    ),
    "arrays as they are": Plain(x=numbers(3), y=numbers(), names=list(numbers(2))),
    "numbers as they are": Plain(
        x=list(range(COUNT)), y=numbers(dtype="int64"), names=range(COUNT)
    ),
    "halves": Plain(x=numbers(2, dtype="float16"), y=numbers(dtype="bool"), names=[0.5] * COUNT),
    "tensors": Tensors(x=torch.randn(COUNT, 3, 4), y=torch.arange(COUNT)),
    "windows": Windows(series=numbers(3), marks=torch.arange(COUNT)),
    "bare": Chosen(x=numbers(3), y=numbers(), transform=None, scale=2, bare=True),
    "function": Chosen(x=numbers(3), y=np.arange(COUNT), transform=halved, scale=2, bare=False),
    "lambda": Chosen(
        x=torch.rand(COUNT, 3), y=torch.arange(COUNT), transform=lambda x: x + 1, scale=0.1,
        bare=False,
    ),
    "object": Chosen(x=numbers(3), y=np.arange(COUNT), transform=Scale(3.0), scale=2, bare=False),
    "samples": Samples(samples=[((0.1 * i, 2.0, i / 7), i) for i in range(COUNT)]),
    "samples of integers": Samples(samples=[([i, 2, -i], 0.5) for i in range(COUNT)]),
    "lists": Lists(
        whole=[[i, 7 - i] for i in range(COUNT)], real=[(0.5 * i, 1e30) for i in range(COUNT)],
        y=numbers(2),
    ),
    "nested lists": Lists(
        whole=[[[i], [(3, 0.1 * i)]] for i in range(COUNT)], real=[()] * COUNT, y=np.arange(COUNT),
    ),
    "records": Records(records=[{"ids": [i, 2 * i], "y": float(i)} for i in range(COUNT)]),
    "masked records": Records(
        records=tuple({"ids": (i, 1), "mask": row, "y": i} for i, row in enumerate(numbers(2)))
    ),
    **{
        f"options {mode}": Options(
            x=numbers(3), y=np.arange(COUNT), mode=mode, transform=transform, bare=bare,
            scale=scale, scales={"train": 1}, names=names,
        )
        for mode, transform, bare, scale, names in [
            ("train", None, False, 0, "xyz"), ("tuned", Scale(0.5), True, 2.5, ""),
            ("held", halved, False, 0, ["y"]),
        ]
    },
}  # fmt: skip


def sources(dataset, **options):
    loader = DataLoader(dataset, batch_size=4, **options)
    source = offer(loader)
    assert isinstance(source, ByRows), source
    return Stock(loader), source


def members(dataset):
    return {
        name: pickle.dumps(value) for name, value in vars(dataset).items() if name in "xyseries"
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("indices", [[3, 0, 3, 5], [2], [-1, 1, -3], list(range(6)) * 30])
def test_batches_are_those_of_torch_and_nothing_is_drawn(name, indices) -> None:
    dataset = CASES[name]
    if name == "windows":  # a slice that begins before the first row has another length
        indices = [abs(index) for index in indices]
    stock, source = sources(dataset)
    before, looked = random_states.read(), members(dataset)
    assert difference(stock.fetch(indices), source.fetch(list(indices))) == ""
    assert random_states.read() == before
    assert members(dataset) == looked


@pytest.mark.parametrize("name", CASES)
def test_memory_is_that_of_the_batch_alone(name) -> None:
    stock, source = sources(CASES[name])
    for batch in (source.fetch([1, 4]), source.fetch([1])):
        for tensor in leaf_tensors(batch):
            tensor.copy_(torch.zeros_like(tensor))
    assert difference(stock.fetch([1, 4]), source.fetch([1, 4])) == ""


def leaf_tensors(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    values = batch.values() if isinstance(batch, dict) else batch
    return [tensor for value in values for tensor in leaf_tensors(value)]


def test_a_value_that_is_returned_twice_has_memory_of_its_own_each_time() -> None:
    class Twice(Rows):
        def __getitem__(self, i):
            row = torch.from_numpy(self.x[i])
            return row, row.view(-1), row[:2], row[2:]

    for indices in ([1], [1, 2]):
        stock, source = sources(Twice(x=numbers(3)))
        batch = source.fetch(indices)
        assert difference(stock.fetch(indices), batch) == ""
        batch[0].zero_()
        assert all(bool(other.any()) for other in batch[1:])


DTYPES = ["uint8", "int16", "int64", "float32", "float64"]


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@given(st.tuples(
    st.sampled_from(DTYPES), st.sampled_from(sorted(SIGNS)),
    st.sampled_from([2, 3, 255, 0.1, 1e-3]), st.integers(0, 3),
    st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=9),
))  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_arithmetic_has_the_bits_of_single_items(drawn) -> None:
    dtype, sign, number, ndim, indices = drawn
    compute = SIGNS[sign]

    class Computed(Rows):
        def __getitem__(self, i):
            array = self.x[i]
            if sign == "+":
                return array + number, torch.tensor(array) + self.shift, i
            if sign == "-":
                return number - array, torch.tensor(array) - self.shift, i - 1
            if sign == "*":
                return array * number, self.shift * torch.tensor(array), i * 3
            return array / number, torch.tensor(array) / self.shift, i / 7, i // 2

    dataset = Computed(x=numbers(*[3] * ndim, dtype=dtype), shift=torch.tensor([0.3]))
    loader = DataLoader(dataset, batch_size=4)
    if ndim:
        found = offer(loader).fetch(indices)
        assert difference(Stock(loader).fetch(indices), found) == ""
        whole = compute(*((number, dataset.x) if sign == "-" else (dataset.x, number)))
        assert np.array_equal(found[0].numpy(), whole[indices])
    else:
        assert "several kinds" in offer(loader)  # numbers are promoted by other rules


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cast", ["float", "double", "half", "int", "long", "short", "byte"])
def test_a_change_of_type_has_the_bits_of_single_items(dtype, cast) -> None:
    class Cast(Rows):
        def __getitem__(self, i):
            item = torch.tensor(self.x[i])
            item = item.to(self.dtype) if self.dtype is not None else item.double()
            return item.type(self.dtype), torch.tensor(self.y[i], dtype=self.dtype)

    asked = getattr(torch.empty(0), cast)().dtype
    labels = [0.1 if asked.is_floating_point else 3] * COUNT
    for x, y in ((numbers(40, dtype=dtype), numbers(4, dtype=dtype)), (numbers(), labels)):
        stock, source = sources(Cast(x=x, y=y, dtype=asked))
        assert difference(stock.fetch([5, 1, 1]), source.fetch([5, 1, 1])) == ""


LEGACY = ["", "Float", "Double", "Long", "Int"]


class Made(Rows):
    def __getitem__(self, i):
        return self.tensor(self.x[i])


class MadeOfNumbers(Rows):
    def __getitem__(self, i):
        return self.tensor([self.x[i], self.x[i]]), self.tensor((self.x[i], self.x[i]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LEGACY)
def test_tensors_made_in_the_old_way_have_the_bits_of_single_items(name, dtype) -> None:
    tensor = getattr(torch, f"{name}Tensor")
    rows, single = numbers(2, 3, dtype=dtype) % 100, numbers(dtype=dtype) % 100
    for dataset in (Made(x=rows, tensor=tensor), MadeOfNumbers(x=single, tensor=tensor)):
        loader = DataLoader(dataset, batch_size=4)
        found = offer(loader)
        if name in LEGACY[3:] and dtype.startswith("float"):
            assert "of another kind" in found
        else:
            assert difference(Stock(loader).fetch([5, 1, 1]), found.fetch([5, 1, 1])) == ""


@pytest.mark.parametrize("name", LEGACY)
@pytest.mark.parametrize("members", [[0.1, 1e-9, 3.7e30], [3, 2, 100]])
def test_and_so_have_those_of_numbers_of_python(name, members) -> None:
    dataset = MadeOfNumbers(x=members * 4, tensor=getattr(torch, f"{name}Tensor"))
    loader = DataLoader(dataset, batch_size=4)
    found = offer(loader)
    if name in LEGACY[3:] and 0.1 in members:
        assert "of another kind" in found
    else:
        assert difference(Stock(loader).fetch([2, 1, 0]), found.fetch([2, 1, 0])) == ""


def test_a_tensor_of_the_default_type_has_that_of_this_moment() -> None:
    stock, source = sources(Made(x=numbers(3), tensor=torch.Tensor))
    torch.set_default_dtype(torch.float64)
    try:
        batch = source.fetch([1, 2])
        assert batch.dtype is torch.float64
        assert difference(stock.fetch([1, 2]), batch) == ""
    finally:
        torch.set_default_dtype(torch.float32)


class Whole(Rows):
    def __getitem__(self, i):
        return torch.tensor(self.y[i], dtype=self.dtype)


class Read(Rows):
    def __getitem__(self, i):
        return int(self.y[i]) % 1000 if self.as_number else self.y[i].astype(self.dtype)


class Cast(Rows):
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]).to(self.dtype)


BAD = float("nan"), float("inf"), 1e30


@pytest.mark.parametrize(
    ("dataset", "name", "bad"),
    [
        *[(Whole(y=numbers(dtype="float64"), dtype=torch.long), "y", bad) for bad in BAD],
        (Whole(y=numbers(dtype="int64") % 100, dtype=torch.uint8), "y", 300),
        (Whole(y=numbers(dtype="int64"), dtype=torch.float32), "y", (1 << 60) + 1),
        (Read(y=numbers(dtype="uint64"), as_number=True), "y", (1 << 64) - 1),
        (Read(y=numbers(dtype="int64"), as_number=True), "y", -(1 << 63)),
        (Read(y=numbers(dtype="float32"), as_number=False, dtype="int32"), "y", BAD[0]),
        *[(Cast(x=numbers(2), dtype=torch.int16), "x", bad) for bad in BAD],
    ],
)
def test_a_row_whose_number_does_not_fit_is_left_to_torch(dataset, name, bad) -> None:
    stock, source = sources(dataset)
    assert difference(stock.fetch([1, 2]), source.fetch([1, 2])) == ""
    vars(dataset)[name][5] = bad
    assert difference(stock.fetch([1, 2]), source.fetch([1, 2])) == ""
    with pytest.raises(NotBatched, match=r"fit|too large"):
        source.fetch([1, 5])


def test_an_index_that_is_returned_is_no_memory_of_the_sampler() -> None:
    class Indexed(Rows):
        def __getitem__(self, i):
            return torch.tensor(i), i

    _, source = sources(Indexed())
    indices = torch.tensor([4, 1])
    for tensor in source.fetch(indices):
        tensor.zero_()
    assert indices.tolist() == [4, 1]


def test_parts_that_are_concatenated_are_left_to_torch() -> None:
    parts = ConcatDataset([CASES["rows"], CASES["doubles"]])
    assert "concatenated" in offer(DataLoader(parts, batch_size=4))


def test_a_function_that_the_script_put_in_the_place_of_torchs_is_not_lost(monkeypatch) -> None:
    calls, original = [], torch.from_numpy

    def counted(array):
        calls.append(1)
        return original(array)

    monkeypatch.setattr(torch, "from_numpy", counted)
    stack_functions.known_functions.cache_clear()
    try:
        assert isinstance(offer(DataLoader(CASES["colours"], batch_size=4)), str)
    finally:
        stack_functions.known_functions.cache_clear()


SHIFT = 3.0


class Unbound(Rows):
    def __getitem__(self, i):
        if self.own:
            SHIFT = self.shift  # noqa: N806
        return self.x[i] - SHIFT


class Watched:
    """Its attributes are read by code of its own."""

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)

    def scale(self, item):
        return item * 2


class Helped(Rows):
    def __getitem__(self, i):
        return self.helper.scale(self.x[i])


class Borrowed(Rows):
    def same(self, item=None):
        return item

    def __getitem__(self, i):
        function = self.same
        return function(self.x[i])


class Worded(Rows):
    def __getitem__(self, i):
        return self.x[i] if self.split is self.word else self.x[0]


def test_views_of_torch_are_seen_through() -> None:
    table = CASES["rows"]
    parts = random_split(table, [4, COUNT - 4])
    rows = np.array([5, 1, 7])
    for dataset in (Subset(table, rows), Subset(table, torch.from_numpy(rows)), parts[1]):
        stock, source = sources(dataset)
        indices = random.Random(1).sample(range(len(dataset)), 3)
        assert difference(stock.fetch(indices), source.fetch(indices)) == ""


def test_what_the_script_writes_between_two_batches_is_seen() -> None:
    dataset = Chosen(x=numbers(3), y=numbers(), transform=halved, scale=2, bare=True)
    stock, source = sources(dataset)
    source.fetch([1, 2])
    dataset.x[1] = 7.0
    dataset.transform = None
    dataset.scale = 5
    batch = source.fetch([1, 2])
    assert difference(stock.fetch([1, 2]), batch) == ""
    assert float(batch[0, 0]) == 32.5


class Random(Rows):
    def __getitem__(self, i):
        return self.x[i] * random.random()


class Counting(Rows):
    def __getitem__(self, i):
        self.count = i
        return self.x[i]


class Written(Rows):
    def __getitem__(self, i):
        row = self.x[i]
        row += 1
        return row


class Filled(Rows):
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]).add_(1)


class Looping(Rows):
    def __getitem__(self, i):
        return sum(self.x[i] for _ in range(2))


class Branching(Rows):
    def __getitem__(self, i):
        return self.x[i] if i > 3 else self.x[0]


class Truths(Rows):
    def __getitem__(self, i):
        return self.x[i] if self.x[i] else self.x[0]


class Scaled(Rows):
    def __getitem__(self, i):
        return self.x[i] * 0.1


class Properties(Rows):
    @property
    def x(self):
        return vars(self)["rows"]

    def __getitem__(self, i):
        return self.x[i]


class Shadowed(Properties):
    """Its own attribute stands behind the property."""

    def __init__(self, **members):
        super().__init__(**members)
        vars(self)["x"] = numbers(3)


class Reversed(Rows):
    def __getattribute__(self, name):
        return super().__getattribute__(name)

    def __getitem__(self, i):
        return self.x[i]


class Batched(Rows):
    def __getitem__(self, i):
        return self.x[i]

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Ragged(Rows):
    def __getitem__(self, i):
        return torch.tensor(self.x[i])


class Powers(Rows):
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]).exp()


class Library(Rows):
    def __getitem__(self, i):
        return softsign(torch.from_numpy(self.x[i]))


class Sized(Rows):
    def __getitem__(self, i):
        return torch.FloatTensor(i)


class Uninitialised(Rows):
    def __getitem__(self, i):
        return torch.Tensor(self.size)


class Found(Rows):
    def __getitem__(self, i):
        return self.x[i] if i in self.chosen else self.x[0]


class Searched(Rows):
    def __getitem__(self, i):
        return self.x[i] if "y" in self.names else self.x[0]


class Sure(Rows):
    def __getitem__(self, i):
        return self.x[i] if self.width and self.x[i] else self.x[0]


class Kept(Rows):
    def __getitem__(self, i):
        return self.x[i] if self.helper else self.x[0]


class Sizes:
    """Is true or not by its length."""

    def __len__(self):
        return 0


class Equal:
    """Compares by code of its own."""

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class Mixed(Rows):
    def __getitem__(self, i):
        return torch.tensor([i, self.x[i]])


class Products(Rows):
    def __getitem__(self, i):
        return self.x[i] @ self.x[0]


def decorated(function):
    def wrapped(self, i):
        return function(self, i)

    return wrapped


class Decorated(Rows):
    @decorated
    def __getitem__(self, i):
        print(i)
        return self.x[i]


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Random(x=numbers(3)), "random.random"),
        (Counting(x=numbers(3)), "it sets `self.count`"),
        (Written(x=numbers(3)), "`row += 1`"),
        (Filled(x=numbers(3)), ".add_()"),
        (Looping(x=numbers(3)), "for _ in range"),
        (Branching(x=numbers(3)), "i > 3"),
        (Truths(x=numbers()), "differ from item to item"),
        (Scaled(x=numbers()), "several kinds"),  # numbers are promoted by other rules
        (Scaled(x=numbers(dtype="float64")), "several kinds"),
        (Properties(rows=numbers(3)), "`.x`"),
        (Shadowed(rows=numbers(3)), "`.x`"),
        (Reversed(x=numbers(3)), "code of its own"),
        (Batched(x=numbers(3)), "own function"),
        (Ragged(x=[np.zeros(i, "float32") for i in range(2, COUNT + 2)]), None),
        (Ragged(x=[[1.0] * (i % 2 + 1) for i in range(COUNT)]), None),
        (Table(x=[[1.0] * 99] * COUNT, y=numbers()), "several lengths, or long"),
        (Table(x=[["a", 2.0]] * COUNT, y=numbers()), "several kinds"),
        (Table(x=[[1, 2.0]] * COUNT, y=numbers()), "numbers of one kind"),
        (Records(records=[{"y": 1, 5: 2}] * COUNT), "other keys than words"),
        (Uninitialised(size=5), "something else than an array"),
        (Made(x=torch.rand(COUNT, 2), tensor=torch.FloatTensor), "something else than an array"),
        (Made(x=numbers(2), tensor=torch.HalfTensor), "`self.tensor` is not known"),
        (Uninitialised(size=(2, 3)), "numbers of one kind"),
        (Found(x=numbers(3), chosen=[1, 2]), "i in self.chosen"),
        (Searched(x=numbers(3), names=[Equal()]), "'y' in self.names"),
        (Searched(x=numbers(3), names=Sizes()), "'y' in self.names"),
        (Sure(x=numbers()), "differ from item to item"),
        (Kept(x=numbers(3), helper=Sizes()), "differ from item to item"),
        (Ragged(x=np.array([None] * COUNT)), "rows of a ndarray"),
        (Powers(x=numbers(3)), ".exp()"),
        (Library(x=numbers(3)), "not the script's own function"),
        (Sized(), "something else than an array"),  # a number is a size
        (Unbound(x=numbers(3), own=False), "no value yet"),
        (Helped(x=numbers(3), helper=Watched()), "`.scale`"),
        (Borrowed(x=numbers(3)), "`.same`"),
        (Worded(x=numbers(3), split="val", word="val"), "self.split is self.word"),
        (Mixed(x=numbers()), "numbers of one kind"),
        (Products(x=numbers(3)), "operator"),
        (Decorated(x=numbers(3)), "print"),
        (Table(x=torch.rand(COUNT, 3, requires_grad=True), y=numbers()), "rows of a Tensor"),
        ([1.0, 2.0, 3.0], "own function"),
    ],
)
def test_says_in_one_sentence_why_it_refuses(dataset, why) -> None:
    loader = DataLoader(dataset, batch_size=4)
    found = offer(loader)
    if why is None:  # the first item is like itself; the check finds it
        notes = []
        checked = Checked(found, Stock(loader), on_end=lambda why, is_wrong: notes.append(why))
        with pytest.raises(RuntimeError, match="equal size"):
            checked.fetch([1, 2])
        return
    assert isinstance(found, str)
    assert why in found
    assert "\n" not in found


def test_rows_of_another_form_than_the_first_are_left_to_torch() -> None:
    records = [{"ids": [i, 2], "y": 1} for i in range(COUNT)]
    records[3] = {"y": 1, "ids": [1, 2]}
    records[4] = {"ids": [1, 2], "mask": 1}
    records[5] = {"ids": [1.0, 2], "y": 1}
    _, source = sources(Records(records=records))
    for row, why in ((3, "several keys"), (4, "several keys"), (5, "several kinds")):
        with pytest.raises(NotBatched, match=why):
            source.fetch([0, row])
    _, source = sources(Lists(whole=[[1, 2], [1]] * COUNT, real=[()] * COUNT, y=numbers()))
    with pytest.raises(NotBatched, match="several lengths"):
        source.fetch([0, 1])


def test_a_slice_beyond_the_end_is_left_to_torch() -> None:
    _, source = sources(CASES["windows"])
    for indices in ([COUNT - 4, 0], [-1, 1]):
        with pytest.raises(NotBatched, match="beyond the end"):
            source.fetch(indices)


def test_other_loaders_are_left_to_torch() -> None:
    table = CASES["rows"]
    assert isinstance(offer(DataLoader(table, batch_size=4, collate_fn=lambda items: items)), str)
    assert isinstance(offer(DataLoader(table, batch_size=None)), str)


def test_a_method_that_was_replaced_is_the_one_that_runs(monkeypatch) -> None:
    stock, source = sources(CASES["rows"])
    source.fetch([1])
    monkeypatch.setattr(Table, "__getitem__", lambda self, i: self.x[i] * 2)
    assert difference(stock.fetch([1, 2]), source.fetch([1, 2])) == ""


def test_offering_draws_nothing_and_writes_nothing() -> None:
    before = random_states.read()
    for dataset in (*CASES.values(), Counting(x=numbers(3)), Random(x=numbers(3))):
        offer(DataLoader(dataset, batch_size=4))
    assert random_states.read() == before


def test_a_pickled_source_still_fetches() -> None:
    stock, source = sources(CASES["colours"])
    travelled = pickle.loads(pickle.dumps(source))
    assert difference(stock.fetch([1, 2]), travelled.fetch([1, 2])) == ""


def test_whole_numbers_that_do_not_fit_are_left_to_python() -> None:
    class Large(Rows):
        def __getitem__(self, i):
            return i * 3_000_000_000 + self.y[i] % 7

    assert "too large" in offer(DataLoader(Large(y=list(range(COUNT))), batch_size=4))

    class Zero(Rows):
        def __getitem__(self, i):
            return i % self.y[0]

    assert "several kinds" in offer(DataLoader(Zero(y=np.zeros(2, "int64")), batch_size=4))
    assert "it divides by zero" in offer(DataLoader(Zero(y=[0]), batch_size=4))
