"""A portrait of a dataset: whatever a script may change between two passes is seen in it."""

import functools
import gc
import logging
import random
import types
import weakref
from array import array
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.fingerprint import DEEP, fingerprint
from hasten.loader.workers.observed import observe

SIZE = 3
SETTINGS = {"crop": [1, 2]}


def look(*roots, most_s=10.0, most_bytes=1 << 30):
    return DatasetSnapshot(*roots, most_s=most_s, most_bytes=most_bytes)


class Thing:
    factor = 1
    options = [1]  # noqa: RUF012  # what a class attribute of a script looks like

    def __init__(self, **fields):
        vars(self).update(fields)

    def method(self):
        return SIZE, SETTINGS["crop"]


class Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside):
        self.inside = inside


class Listed(list):
    pass


def nested(value, depth=5):
    for _ in range(depth):
        value = Thing(inside=value)
    return value


def enclosing(value):
    return lambda: value


def changed(root, change):
    """Return whether two looks are equal, and whether one after a change is equal to them."""
    first, second = look(root), look(root)
    change()
    return first == second, second == look(root)


PATHS = [Path(f"{number}.png") for number in range(3000)]
LABELLED = [(path, number) for number, path in enumerate(PATHS)]
ARRAY, TENSOR, LEAF = np.zeros(10_000), torch.zeros(10_000), Thing(size=1)
MEMBERS = [{"size": i, "box": [0, i]} for i in range(3000)]
CASES = {
    "attribute": (LEAF, lambda: setattr(LEAF, "size", 2)),
    "nested": (nested(LEAF), lambda: setattr(LEAF, "size", 3)),
    "slot": (Slotted(LEAF), lambda: setattr(LEAF, "size", 4)),
    "partial": (functools.partial(print, LEAF, end=LEAF), lambda: setattr(LEAF, "size", 5)),
    "method": (Thing(inside=nested(LEAF)).method, lambda: setattr(LEAF, "size", 6)),
    "closure": (enclosing(nested(LEAF)), lambda: setattr(LEAF, "size", 7)),
    "deque": (deque([1, LEAF]), lambda: setattr(LEAF, "size", 8)),
    "kind of list": (Listed([LEAF]), lambda: setattr(LEAF, "size", 9)),
    "path": (Thing(inside=PATHS), lambda: PATHS.__setitem__(2000, Path("2000.png"))),
    "path with a label": (Thing(inside=LABELLED), lambda: LABELLED.__setitem__(9, (PATHS[9], 8))),
    "new attribute": (LEAF, lambda: setattr(LEAF, "other", 1)),
    "of the class": (Thing(), lambda: setattr(Thing, "factor", 2)),
    "in the class": (Thing(), lambda: Thing.options.append(2)),
    "global": (Thing(), lambda: globals().update(SIZE=SIZE + 1)),
    "in a global": (nested(Thing().method), lambda: SETTINGS["crop"].append(1)),
    "in a long list": (Thing(list=MEMBERS), lambda: MEMBERS[2500]["box"].append(1)),
    "of a long list": (Thing(list=MEMBERS), lambda: MEMBERS[2500].update(size=0)),
    "array": (Thing(rows=ARRAY), lambda: ARRAY.__setitem__(1001, 1)),
    "tensor": (Thing(rows=TENSOR), lambda: TENSOR.__setitem__(1001, 1)),
    "tensor's data": (Thing(rows=TENSOR), lambda: TENSOR.data.__setitem__(1001, 2)),
    "tensor's array": (Thing(rows=TENSOR), lambda: TENSOR.numpy().__setitem__(1001, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen_and_nothing_else_is(case) -> None:
    assert changed(*CASES[case]) == (True, False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 1.0), (1, True), (0.0, -0.0), (-1, -2), ("a", b"a"), (1, None),
        ((1, "a"), (1, "b")), ([1], (1,)), ({1: 2}, {1: 3}), ({"a": 1}, {"b": 1}),
        (np.int64(1), np.int32(1)), (np.arange(3), np.arange(3.0)), (bytearray(b"a"), b"a"),
        (np.array([[1], [2]]), np.array([1, 2])), (array("i", [1]), array("i", [2])),
        (np.array([1, "a"], dtype=object), np.array([2, "a"], dtype=object)),
        (np.array(["2024-01-01"], "M8[D]"), np.array(["2024-01-02"], "M8[D]")),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)), (torch.ones(0), torch.ones(0, 1)),
    ],
)  # fmt: skip
def test_values_that_differ_look_different(before, after) -> None:
    thing = Thing(inside=[before])
    assert changed(thing, lambda: thing.inside.__setitem__(0, after)) == (True, False)


def test_equal_plain_values_look_alike_though_they_are_other_objects() -> None:
    thing = Thing(name="".join(["a", "b"]), number=1000 + len("ab"), rows=[float("nan"), (1, "x")])

    def change():
        thing.name, thing.number = "".join(["a", "b"]), 1001 + len("a")
        thing.rows = [thing.rows[0], (1, "".join(["x"]))]

    assert changed(thing, change) == (True, True)


def test_which_of_two_objects_is_meant_is_seen() -> None:
    one, other = Thing(), Thing()
    pair = [one, other, one]
    assert changed(pair, lambda: pair.__setitem__(2, other)) == (True, False)


def test_generators_logs_and_locks_may_move() -> None:
    thing = Thing(draws=[random.Random(1), torch.Generator(), np.random.default_rng(1)])
    thing.log, thing.path = logging.getLogger("portrait"), iter([1, 2])

    def change():
        thing.draws[0].random()
        thing.draws[1].manual_seed(5)
        thing.draws[2].random()
        thing.log.setLevel("INFO")
        next(thing.path)

    assert changed(thing, change) == (True, True)


def test_a_fetch_that_changes_the_object_of_a_collate_function_is_observed() -> None:
    thing = Thing(calls=0)
    thing.collate = types.MethodType(lambda self, samples: vars(self).update(calls=1), thing)
    loader = torch.utils.data.DataLoader([1, 2], collate_fn=thing.collate)
    _, moves = observe(loader, lambda: loader.collate_fn([1]))
    assert moves.changed


def test_a_circle_comes_to_an_end() -> None:
    thing = Thing(list=[])
    thing.list += [thing, thing.list, thing.method]
    assert changed(thing, lambda: thing.list.append(1)) == (True, False)


@pytest.mark.parametrize("limit", [{"most_s": 0.0}, {"most_bytes": 1000}])
def test_what_takes_too_long_is_equal_to_nothing(limit) -> None:
    thing = Thing(rows=torch.zeros(1000), members=[Thing() for _ in range(1000)])
    snapshot = look(thing, **limit)
    assert not snapshot.is_whole
    assert snapshot != snapshot  # noqa: PLR0124
    assert snapshot != look(thing)


def test_objects_that_raise_when_they_are_looked_at_are_equal_to_nothing() -> None:
    class Unpackable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args, **more):
            raise KeyError("strange")

    assert not look(torch.ones(2).as_subclass(Unpackable)).is_whole


@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
def test_a_look_leaves_nothing_for_the_garbage_collector(most_bytes) -> None:
    thing = Thing(rows=torch.zeros(9), arrays=[ARRAY], method=Thing().method)
    look(thing, most_bytes=most_bytes)
    gc.collect()
    look(thing, most_bytes=most_bytes)
    assert gc.collect() == 0


def test_what_is_written_into_a_table_of_pandas_is_seen() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = pandas.DataFrame({"path": ["a", "b", "c"], "label": [0, 1, 2], "kind": ["x", "y", "x"]})
    table["kind"] = table["kind"].astype("category")
    thing = Thing(table=table, column=pandas.Series([1.0, 2.0, 3.0], name="mean"))
    assert look(thing).is_whole
    changes = [
        lambda: table.loc.__setitem__((1, "path"), "d"),
        lambda: table.iloc.__setitem__((2, 1), 5),
        lambda: table.loc.__setitem__((0, "kind"), "y"),
        lambda: table.insert(0, "more", 1),
        lambda: thing.column.__setitem__(1, 7.0),
        lambda: setattr(table, "index", [2, 1, 0]),
        lambda: setattr(table, "columns", ["A", "B", "C", "D"]),
    ]
    for change in changes:
        assert changed(thing, change) == (True, False)


def test_what_it_saw_may_go() -> None:
    thing = Thing(inside=Thing(), list=[Thing()], method=None)
    thing.method = types.MethodType(lambda self: None, thing)
    snapshot, gone = look(thing), weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    assert snapshot.is_whole


images = [1]


class Pictures:
    def __init__(self):
        self.images = [0]

    def __getitem__(self, index):
        return self.images[index] * SIZE


def test_a_global_with_the_name_of_an_attribute_is_not_meant(monkeypatch) -> None:
    dataset = Pictures()
    before = look(dataset)
    monkeypatch.setitem(globals(), "images", [2])  # the loop's batch
    assert look(dataset) == before
    monkeypatch.setitem(globals(), "SIZE", SIZE + 1)
    assert look(dataset) != before


def test_a_logger_of_a_dataset_may_fill_its_cache() -> None:
    logger = logging.getLogger("of a dataset")
    root = Thing(logger=logger, inside=[logger])
    looked, glanced = look(root), fingerprint(root, deepest=DEEP)
    logger.isEnabledFor(logging.DEBUG)
    assert looked == look(root)
    assert glanced == fingerprint(root, deepest=DEEP)
