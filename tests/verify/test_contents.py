"""What a value holds, and what shakes it."""

import array
import datetime
import functools
import math
import sys
import types
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest

from hasten.verify.contents import content_hash, outline, perturb, thinned

torch = pytest.importorskip("torch")
images = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_changed_bit_changes_each_weight_in_any_precision(kind) -> None:
    weights = [torch.full((64,), 1.5, dtype=kind), torch.arange(4)]
    perturb(weights, scale=2.0**-23, seed=1)
    apart = (weights[0].double() / 1.5 - 1).abs()
    assert (apart > 0).all()
    assert (apart <= 2 * max(2.0**-23, torch.finfo(kind).eps)).all()
    assert torch.equal(weights[1], torch.arange(4))


@dataclass
class Batch:
    inputs: object
    labels: object = None


@dataclass(slots=True)
class Slotted:
    inputs: object


class Graphs:
    """As the batches of graph libraries: attributes come from a store."""

    def __init__(self, value) -> None:
        self._store = {"x": torch.full((2,), value)}
        self.items = len(self._store)  # a number, not a method

    def __getattr__(self, name):
        try:
            return self._store[name]
        except KeyError:
            raise AttributeError(name) from None

    def keys(self):
        return list(self._store)

    def __getitem__(self, name):
        return self._store[name]


class Basket:
    """Has the methods of a mapping, by their names alone."""

    def __init__(self, value) -> None:
        self.value = value

    def keys(self):
        return [1]

    def items(self, shop):
        return shop

    def __getitem__(self, index):
        return index


class Table:
    """A mapping in all but its base."""

    __slots__ = ("_rows",)

    def __init__(self, value) -> None:
        self._rows = {"row": value}

    def keys(self):
        return self._rows.keys()

    def items(self):
        return self._rows.items()

    def __getitem__(self, name):
        return self._rows[name]


class Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"<a name at {id(self)}>"


class Colour(Enum):
    RED, BLUE = 1, 2


Pair = namedtuple("Pair", "left right")
VALUES = {
    "an array": np.float32,
    "a scalar of NumPy's": np.int16,
    "an array of objects": lambda one: np.array([[one], [one + 1], None], dtype=object),
    "an array with named fields": lambda one: np.array([(one, 2.0)], dtype="i4,f8"),
    "dates": lambda one: np.array([one], dtype="datetime64[s]"),
    "words": lambda one: np.array([f"word {one}"]),
    "a matrix in another order": lambda one: np.asfortranarray(np.arange(6.0).reshape(2, 3) + one),
    "a dataclass": lambda one: Batch(torch.full((2,), one)),
    "a dataclass with slots": lambda one: Slotted(np.full((2,), one)),
    "a namespace": lambda one: types.SimpleNamespace(x=torch.full((2,), one)),
    "an object of graphs": Graphs,
    "an object that looks like a mapping": Basket,
    "a mapping of its own kind": Table,
    "a list in an object in a tuple": lambda one: (Batch([one, 2]), 3),
    "a named tuple": lambda one: Pair(one, torch.zeros(1)),
    "a queue": lambda one: deque([one]),
    "a set": lambda one: {one, 7},
    "a set of words": lambda one: {f"word {index}" for index in range(one, one + 4)},
    "a mapping": lambda one: OrderedDict(a=one),
    "keys": lambda one: {one: 0},
    "numbers in memory": lambda one: array.array("i", [one]),
    "memory": lambda one: memoryview(bytes([one])),
    "bytes": lambda one: bytearray([one]),
    "an image": lambda one: images.new("L", (2, 2), one),
    "the shape of an image": lambda one: images.new("L", (one, 6 // one)),
    "a date": lambda one: datetime.date(2020, 1, one),
    "a range": range,
    "a complex number": complex,
    "a derived word": lambda one: Name(f"word {one}"),
    "an enum": Colour,
    "a function with its arguments": lambda one: functools.partial(math.pow, one),
    "a class": lambda one: (int, float)[one - 1],
    "nothing": lambda one: (None, 1) if one == 1 else (1,),
    "a sparse tensor": lambda one: torch.tensor([[0.0, one], [0.0, 3.0]]).to_sparse(),
    "a sparse tensor by rows": lambda one: torch.tensor([[0, one], [0, 3]]).to_sparse_csc(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_hash_tells_values_of_any_kind_apart_and_equal_ones_not(make) -> None:
    one, again, other = (content_hash([make(value)]) for value in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_hash_tells_types_and_shapes_apart() -> None:
    zeros = [np.zeros(4, dtype=kind) for kind in ("f4", "i4", "u4")]
    values = [*zeros, zeros[0].reshape(2, 2), np.float32(0.0), Batch(1), Slotted(1), "1", 1, 1.0]
    assert len({content_hash(value) for value in values}) == len(values)


def test_two_references_to_one_tensor_hash_as_two_equal_tensors() -> None:
    one = torch.arange(3)
    assert content_hash([one, one]) == content_hash([one, one.clone()])
    part = Batch(one)
    assert content_hash([part, part]) == content_hash([part, Batch(one.clone())])


class Hostile:
    """Raises whatever it is asked."""

    def __getattribute__(self, name):
        raise ArithmeticError(name)


class Circle:
    def __init__(self) -> None:
        self.me, self.list, self.value = self, [self], torch.ones(1)


class Bottomless:
    def __init__(self) -> None:
        self.count = 0

    def __getattribute__(self, name):
        return {"next": Bottomless()} if name == "__dict__" else object.__getattribute__(self, name)


def deep(count):
    value = ["bottom"]
    for _ in range(count):
        value = [value]
    return value


def wide(depth):
    """Return an object that leads to 2**depth others."""
    value = None
    for _ in range(depth):
        value = Batch(value, value)
    return value


@pytest.mark.parametrize(
    "make",
    [Hostile, Circle, Bottomless, lambda: deep(100_000), lambda: wide(30), object,
     lambda: (x for x in "ab"), lambda: Batch(Hostile(), torch.ones(2)), lambda: open, lambda: math,
     lambda: 10 ** 5000, lambda: "\ud800"],
    ids=["hostile", "circle", "bottomless", "deep", "wide", "bare", "generator", "holder",
         "function", "module", "a long number", "no text"],
)  # fmt: skip
def test_nothing_that_a_script_makes_raises_or_goes_on_for_ever(make) -> None:
    assert content_hash(make()) == content_hash(make())
    assert isinstance(outline(make()), list)


def test_what_lies_beside_something_unreadable_counts() -> None:
    one, other = ([Hostile(), torch.full((2,), value)] for value in (1.0, 2.0))
    assert content_hash(one) != content_hash(other)


def test_an_outline_has_each_tensor_and_array_wherever_it_is() -> None:
    batch = {
        "graph": Batch(torch.tensor([1.0, 3.0]), types.SimpleNamespace(x=np.array([2, 6], "i4"))),
        "label": "cat", "name": np.array(["a"]), "count": np.int64(3), "empty": np.zeros((0, 2)),
        "not a number": np.array([np.inf, 1.0]),
    }  # fmt: skip
    found = outline(batch)
    assert found[:4] == [
        ("torch.float32 (2,)", 2.0, 1.0), ("int32 (2,)", 4.0, 2.0), ("<U1 (1,)", 0.0, 0.0),
        ("float64 (0, 2)", 0.0, 0.0),
    ]  # fmt: skip
    assert found[4][:2] == ("float64 (2,)", math.inf)
    assert len(found) == 5


def test_numpy_is_not_imported_for_it(gathered) -> None:
    facts = gathered(
        "import json, sys, torch\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'numpy']:\n"
        "    del sys.modules[name]\n"
        "from hasten.verify.contents import content_hash\n"
        "facts = [content_hash([1, torch.ones(2)]), 'numpy' in sys.modules]\n",
        python=sys.executable,
    )
    assert facts == [content_hash([1, torch.ones(2)]), False]


def test_what_contains_itself_has_the_same_hash_wherever_it_is_asked_for() -> None:
    def asked(depth: int) -> str:
        return asked(depth - 1) if depth else content_hash(loop)

    loop = [1]
    loop.append(loop)
    assert asked(0) == asked(100)


def test_the_dataset_that_a_batch_came_from_is_no_part_of_it() -> None:
    rows = [torch.utils.data.TensorDataset(torch.full((2,), value)) for value in (1, 2)]
    values = [Batch(torch.ones(2), row) for row in rows]
    assert content_hash(values[0]) == content_hash(values[1])
    assert outline(values[0]) == [("torch.float32 (2,)", 1.0, 0.0)]


def test_weights_are_shaken_wherever_the_script_makes_its_tensors() -> None:
    weights = torch.ones(8)
    torch.set_default_device("meta")
    try:
        perturb([weights], scale=0.5, seed=1)
    finally:
        torch.set_default_device(None)
    assert set(weights.tolist()) == {0.5, 1.5}


def test_complex_weights_are_kept_and_shaken_in_both_parts(recwarn) -> None:
    weight = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 4j]))
    assert thinned(weight).tolist() == [1.0, 2.0, 3.0, -4.0]
    before = weight.detach().clone()
    perturb([weight], scale=2.0**-23, seed=0)
    ratios = torch.view_as_real(weight.detach()) / torch.view_as_real(before)
    assert (ratios != 1).all()
    assert not recwarn.list
