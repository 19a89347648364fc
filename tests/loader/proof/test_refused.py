"""Items that have effects outside of the batch: each is refused, and the line is named."""

import collections
import contextlib
import copy
import ctypes
import dataclasses
import functools
import inspect
import itertools
import logging
import multiprocessing
import operator
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import uuid
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hasten.loader.proof.items import read_items

SEEN = []
COUNTS = {}
STATE = {"n": 0}
LOCK = threading.Lock()


class Base(Dataset):
    def __init__(self):
        self.data = [[float(i), 1.0] for i in range(8)]
        self.arrays = [np.zeros(3, dtype=np.float32) for _ in range(8)]
        self.tensors = torch.zeros(8, 3)
        self.records = [{"x": [1.0, 2.0], "n": i} for i in range(8)]
        self.seen = []
        self.table = {}
        self.count = 0

    def __len__(self):
        return 8


REFUSED = []


def refused(kind):
    REFUSED.append(kind)
    return kind


def pushes(acc, value):
    acc.append(value)  # here
    return value


def opens_log(path):
    return open(path, "a")


class Writer:
    def __init__(self, into):
        self.into = into

    def get(self, key):
        self.into.append(key)  # here
        return key

    def __call__(self, key):
        self.into.append(key)  # here
        return key


class Loud:
    def __init__(self):
        self.calls = []

    def __str__(self):
        self.calls.append(1)  # here
        return "loud"


class Counts:
    def __init__(self):
        self.n = 0

    def __len__(self):
        self.n += 1  # here
        return 3


class Equal:
    n = 0

    def __eq__(self, other):
        Equal.n += 1  # here
        return True

    def __hash__(self):
        return 1


class Adds:
    def __init__(self):
        self.log = []

    def __add__(self, other):
        self.log.append(other)  # here
        return 1


class Iterates:
    def __init__(self):
        self.n = 0

    def __iter__(self):
        self.n += 1
        return iter([1, 2])


class Answers:
    def __getattr__(self, name):
        SEEN.append(name)
        return 1


class AnswersAll:
    def __getattribute__(self, name):
        SEEN.append(name)
        return 1


class Describes:
    def __get__(self, owner, kind):
        SEEN.append(1)
        return 1


class Described:
    value = Describes()


class WithSetter:
    log = SEEN

    @property
    def x(self):
        return 1

    @x.setter
    def x(self, value):
        self.log.append(value)  # here


class Sets:
    def __setattr__(self, name, value):
        SEEN.append(name)
        object.__setattr__(self, name, value)


class MyList(list):
    def __getitem__(self, i):
        SEEN.append(i)  # here
        return list.__getitem__(self, i)


class MyArray(np.ndarray):
    def __array_ufunc__(self, *args, **kwargs):
        SEEN.append(1)  # here
        return 1


class Missing(dict):
    def __missing__(self, key):
        self[key] = 1
        return 1


class Lies:
    __module__ = "torch.utils.data"

    def get(self, i):
        SEEN.append(i)  # here
        return i


class Meta(type):
    def __call__(cls, *args):
        SEEN.append(args)
        return super().__call__(*args)


class Made(metaclass=Meta):
    pass


class Noting(type):
    seen = SEEN


class Noted(metaclass=Noting):
    pass


class NewOne:
    def __new__(cls):
        SEEN.append(1)
        return object.__new__(cls)


class Dies:
    def __del__(self):
        SEEN.append(1)


class Hides:
    def __init__(self, held):
        self.held = held


@dataclasses.dataclass
class Point:
    x: float = 0.0

    def __post_init__(self):
        SEEN.append(self.x)  # here


def keeps(function):
    @functools.wraps(function)
    def inner(*args):
        SEEN.append(args)  # here
        return function(*args)

    return inner


@functools.cache
def mask(n):
    return torch.rand(n)


def draws_once():
    return random.random()


@functools.cache
def keeps_draw():
    return draws_once()


def default(i, seen=SEEN):
    seen.append(i)  # here
    return i


def make(log):
    def write(i):
        log.append(i)  # here
        return i

    return write


def make_default(log):
    def write(i, log=log):
        log.append(i)  # here
        return i

    return write


WRITES_A, WRITES_B = make_default([]), make_default(SEEN)


def len_(x):
    SEEN.append(x)
    return 1


# ---- writes


@refused
class AttributeStore(Base):
    def __getitem__(self, i):
        self.count = i  # here
        return i


@refused
class AttributeCount(Base):
    def __getitem__(self, i):
        self.count += 1  # here
        return i


@refused
class ClassCount(Base):
    n = 0

    def __getitem__(self, i):
        type(self).n += 1  # here
        return i


@refused
class ClassCountByName(Base):
    n = 0

    def __getitem__(self, i):
        self.__class__.n += 1  # here
        return i


@refused
class ClassMethodCount(Base):
    n = 0

    @classmethod
    def bump(cls):
        cls.n += 1  # here

    def __getitem__(self, i):
        self.bump()
        return i


@refused
class GlobalStore(Base):
    def __getitem__(self, i):
        global COUNTS
        COUNTS = i  # here
        return i


@refused
class GlobalElement(Base):
    def __getitem__(self, i):
        COUNTS[i] = 1  # here
        return i


@refused
class GlobalsCall(Base):
    def __getitem__(self, i):
        globals()["COUNTS"] = i  # here
        return i


@refused
class VarsCall(Base):
    def __getitem__(self, i):
        vars(self)["count"] = i  # here
        return i


@refused
class DictStore(Base):
    def __getitem__(self, i):
        self.__dict__["count"] = i  # here
        return i


@refused
class SetAttr(Base):
    def __getitem__(self, i):
        setattr(self, "count", i)  # noqa: B010  # here
        return i


@refused
class ObjectSetAttr(Base):
    def __getitem__(self, i):
        object.__setattr__(self, "count", i)  # here
        return i


@refused
class DelAttr(Base):
    def __getitem__(self, i):
        del self.table[i]  # here
        return i


@refused
class OperatorSetItem(Base):
    def __getitem__(self, i):
        operator.setitem(self.table, i, 1)  # here
        return i


@refused
class OperatorIadd(Base):
    def __getitem__(self, i):
        operator.iadd(self.seen, [i])  # here
        return i


@refused
class OperatorGetItem(Base):
    def __getitem__(self, i):
        x = operator.getitem(self.data, i)
        x.append(1)  # here
        return i


@refused
class OperatorItemGetter(Base):
    def __getitem__(self, i):
        x = operator.itemgetter(0)(self.data)  # here
        x.append(1)
        return i


@refused
class AppendByValue(Base):
    def __getitem__(self, i):
        push = self.seen.append
        push(i)  # here
        return i


@refused
class MapAppend(Base):
    def __getitem__(self, i):
        list(map(self.seen.append, [i]))  # here
        return i


@refused
class MapFresh(Base):
    def __getitem__(self, i):
        acc = [self.seen]
        list(map(acc[0].append, [i]))  # here
        return i


@refused
class UnboundAppend(Base):
    def __getitem__(self, i):
        list.append(self.seen, i)  # here
        return i


@refused
class BoundStored(Base):
    def __init__(self):
        super().__init__()
        self.push = self.seen.append

    def __getitem__(self, i):
        self.push(i)  # here
        return i


@refused
class PartialWriter(Base):
    def __init__(self):
        super().__init__()
        self.push = functools.partial(pushes, self.seen)

    def __getitem__(self, i):
        return self.push(i)


@refused
class PartialMade(Base):
    def __getitem__(self, i):
        return functools.partial(pushes, self.seen)(i)


@refused
class DefaultArgument(Base):
    def __getitem__(self, i):
        return default(i)


@refused
class MutableDefault(Base):
    def __getitem__(self, i, seen=[]):  # noqa: B006
        seen.append(i)  # here
        return i


@refused
class Closure(Base):
    write = staticmethod(make(SEEN))

    def __getitem__(self, i):
        return self.write(i)


@refused
class SameCodeOtherDefault(Base):
    def __getitem__(self, i):
        fresh = []
        return WRITES_A(i, fresh) + WRITES_B(i)


@refused
class ThroughList(Base):
    def __getitem__(self, i):
        a = []
        b = [a]
        a.append(self.data)
        b[0][0].append(1)  # here
        return i


@refused
class ThroughJoin(Base):
    def __getitem__(self, i):
        a, rest = {}, {1: 2}
        b = a if i else rest
        b["k"] = self.data
        a.get("k").append(1)  # here
        return i


@refused
class ThroughTuple(Base):
    def __getitem__(self, i):
        a, (b, _) = 1, (self.seen, 2)
        b.append(a)  # here
        return i


@refused
class ThroughStar(Base):
    def __getitem__(self, i):
        a, *b = [1, self.seen]
        b[0].append(a)  # here
        return i


@refused
class ThroughStarArguments(Base):
    def __getitem__(self, i):
        return pushes(*[self.seen, i])


@refused
class ThroughStarStar(Base):
    def __getitem__(self, i):
        return pushes(acc=self.seen, value=i)


@refused
class ThroughDictView(Base):
    def __getitem__(self, i):
        for record in {"a": self.seen}.values():
            record.append(1)  # here
        return i


@refused
class ThroughZip(Base):
    def __getitem__(self, i):
        for a, _ in zip(self.data, self.records, strict=False):
            a.append(1)  # here
        return i


@refused
class ThroughSorted(Base):
    def __getitem__(self, i):
        sorted(self.data)[0].append(1)  # here
        return i


@refused
class ThroughSum(Base):
    def __getitem__(self, i):
        sum([[self.seen], [self.table]], [])[0].append(1)  # noqa: RUF017  # here
        return i


@refused
class ThroughChain(Base):
    def __getitem__(self, i):
        next(iter(itertools.chain(self.data))).append(1)  # here
        return i


@refused
class ThroughObjectArray(Base):
    def __getitem__(self, i):
        np.array([self.seen, self.table], dtype=object)[0].append(1)  # here
        return i


@refused
class ThroughLambda(Base):
    def __getitem__(self, i):
        get = lambda k: self.data[k]  # noqa: E731
        get(i).append(1)  # here
        return i


@refused
class ThroughMapLambda(Base):
    def __getitem__(self, i):
        list(map(lambda k: self.data[k], [i]))[0].append(1)  # noqa: C417, RUF015  # here
        return i


@refused
class ThroughMin(Base):
    def __getitem__(self, i):
        min(self.data, key=lambda one: one[0]).append(1)  # here
        return i


@refused
class ThroughCopy(Base):
    def __getitem__(self, i):
        copy.copy(self.records[i])["x"].append(1)  # here
        return i


@refused
class ThroughDictCopy(Base):
    def __getitem__(self, i):
        dict(self.records[i])["x"].append(1)  # here
        return i


@refused
class ThroughGetattr(Base):
    def __getitem__(self, i):
        getattr(self, "seen").append(i)  # noqa: B009  # here
        return i


@refused
class ThroughGetattrVarying(Base):
    def __getitem__(self, i):
        getattr(self, ["seen", "data"][i % 2]).append(i)  # here
        return i


@refused
class ThroughWalrus(Base):
    def __getitem__(self, i):
        y = []
        [(y := self.seen) for _ in range(1)]  # here
        y.append(i)
        return i


@refused
class ThroughConditional(Base):
    def __getitem__(self, i):
        (self.seen if i else []).append(i)  # here
        return i


@refused
class ThroughOr(Base):
    def __getitem__(self, i):
        (self.seen or []).append(i)  # here
        return i


@refused
class ThroughLoop(Base):
    def __getitem__(self, i):
        a = b = c = d = e = []
        for _ in range(9):
            a.append(1)  # here
            a, b, c, d, e = b, c, d, e, self.seen
        return i


@refused
class ThroughBreak(Base):
    def __getitem__(self, i):
        x = []
        for k in range(i):
            x = self.seen
            if k:
                break
            x = []
        x.append(1)  # here
        return i


@refused
class ThroughContinue(Base):
    def __getitem__(self, i):
        x = []
        while i:
            x.append(1)  # here
            x = self.seen
            if i:
                continue
            x = []
        return i


@refused
class ThroughException(Base):
    def __getitem__(self, i):
        x = []
        try:
            x = self.seen
            int("q")
            x = []
        except ValueError:
            x.append(1)  # here
        return i


@refused
class ThroughFinally(Base):
    def __getitem__(self, i):
        x = []
        try:
            x = self.seen
            return self.data[99]
        finally:
            x.append(1)  # here


@refused
class ThroughSuppress(Base):
    def __getitem__(self, i):
        x = []
        with contextlib.suppress(ValueError):
            x = self.seen
            int("q")
            x = []
        x.append(1)  # here
        return i


@refused
class ThroughLateClosure(Base):
    def __getitem__(self, i):
        x = []
        todo = map(lambda k: x.append(k), [i])  # noqa: C417, PLW0108  # here
        x = self.seen
        list(todo)
        return i


@refused
class ThroughLateGenerator(Base):
    def __getitem__(self, i):
        x = []
        todo = (x.append(k) for k in [i])  # here
        x = self.seen
        list(todo)
        return i


@refused
class ThroughGeneratorFunction(Base):
    def walk(self):
        for one in self.data:
            one.append(1)  # here
            yield one

    def __getitem__(self, i):
        return list(self.walk())[0][0]  # noqa: RUF015


@refused
class ThroughYielded(Base):
    def walk(self):
        yield from self.data

    def __getitem__(self, i):
        for one in self.walk():
            one.append(1)  # here
        return i


@refused
class ThroughRecursion(Base):
    def down(self, x, n):
        if n == 0:
            x.append(1)  # here
            return 0
        return self.down(self.seen, n - 1)

    def __getitem__(self, i):
        return self.down([], i)


@refused
class ThroughMatch(Base):
    def __getitem__(self, i):
        match self.records[i]:  # here
            case {"x": found}:
                found.append(1)
        return i


@refused
class ThroughHelper(Base):
    def __getitem__(self, i):
        return pushes([], i) + pushes(self.seen, i)


@refused
class ThroughHolder(Base):
    def __getitem__(self, i):
        h = Hides(self.seen)
        h.held.append(i)  # here
        return i


@refused
class ThroughHolderStore(Base):
    def __getitem__(self, i):
        h = Hides([])
        g = [h]
        h.held = self.seen
        g[0].held.append(i)  # here
        return i


@refused
class ThroughNamespaceMethod(Base):
    def __getitem__(self, i):
        h = Hides([])
        h.get = self.seen.append
        h.get(i)  # here
        return i


@refused
class UserGetInList(Base):
    def __getitem__(self, i):
        return [Writer(self.seen)][0].get(i)


@refused
class UserGetOfTwo(Base):
    def __getitem__(self, i):
        one = Writer(self.seen) if i else {}
        return one.get(i)


@refused
class UserGetOfUnknown(Base):
    def __init__(self):
        super().__init__()
        self.writers = [Writer(SEEN)]

    def __getitem__(self, i):
        return list(self.writers)[0].get(i)  # noqa: RUF015


@refused
class QueueOfUnknown(Base):
    def __init__(self):
        super().__init__()
        import queue

        self.queues = [queue.Queue()]

    def __getitem__(self, i):
        return list(self.queues)[0].get(i)  # noqa: RUF015  # here


@refused
class UserTransform(Base):
    def __init__(self):
        super().__init__()
        self.transform = Writer([])

    def __getitem__(self, i):
        return self.transform(i)


# ---- arrays and tensors


@refused
class ArrayAugmented(Base):
    def __getitem__(self, i):
        x = self.arrays[i]
        x += 1  # here
        return x


@refused
class ArrayView(Base):
    def __getitem__(self, i):
        x = self.arrays[i].reshape(3, 1)
        x[0] = 1  # here
        return x


@refused
class ArrayAsArray(Base):
    def __getitem__(self, i):
        np.asarray(self.arrays[i])[0] = 1  # here
        return i


@refused
class ArrayContiguous(Base):
    def __getitem__(self, i):
        np.ascontiguousarray(self.arrays[i])[0] = 1  # here
        return i


@refused
class ArrayOut(Base):
    def __getitem__(self, i):
        np.add(1, 1, out=self.arrays[i])  # here
        return i


@refused
class ArrayOutByPlace(Base):
    def __getitem__(self, i):
        np.add(1, 1, self.arrays[i])  # here
        return i


@refused
class ArrayAstype(Base):
    def __getitem__(self, i):
        x = self.arrays[i].astype(np.float32, copy=False)
        x += 1  # here
        return x


@refused
class ArraySort(Base):
    def __getitem__(self, i):
        self.arrays[i].sort()  # here
        return i


@refused
class ArrayResize(Base):
    def __getitem__(self, i):
        self.arrays[i].resize(9)  # here
        return i


@refused
class ArrayFill(Base):
    def __getitem__(self, i):
        np.fill_diagonal(self.arrays[i], 1)  # here
        return i


@refused
class ArrayMemory(Base):
    def __getitem__(self, i):
        memoryview(self.arrays[i])[0] = 1  # here
        return i


@refused
class ArrayFromNumpy(Base):
    def __getitem__(self, i):
        return torch.from_numpy(self.arrays[i]).mul_(2)  # here


@refused
class TensorNumpy(Base):
    def __getitem__(self, i):
        self.tensors[i].numpy()[0] = 1  # here
        return i


@refused
class TensorFlatten(Base):
    def __getitem__(self, i):
        self.tensors[i].flatten()[0] = 1  # here
        return i


@refused
class TensorSplit(Base):
    def __getitem__(self, i):
        self.tensors[i].split(1)[0].zero_()  # here
        return i


@refused
class TensorInPlace(Base):
    def __getitem__(self, i):
        return self.tensors[i].clamp_(0)  # here


@refused
class TensorRelu(Base):
    def __getitem__(self, i):
        return torch.relu_(self.tensors[i])  # here


@refused
class TensorFunctional(Base):
    def __getitem__(self, i):
        return nn.functional.relu(self.tensors[i], inplace=True)  # here


@refused
class TensorFunctionalByPlace(Base):
    def __getitem__(self, i):
        return nn.functional.relu(self.tensors[i], True)  # here


@refused
class TensorOut(Base):
    def __getitem__(self, i):
        return torch.add(1, 1, out=self.tensors[i])  # here


@refused
class TensorData(Base):
    def __getitem__(self, i):
        x = torch.zeros(3)
        x.data = self.tensors[i]  # here
        x += 1
        return x


@refused
class TensorSet(Base):
    def __getitem__(self, i):
        x = torch.zeros(3)
        x.set_(self.tensors[i])  # here
        x += 1
        return x


@refused
class TensorRow(Base):
    def __getitem__(self, i):
        for row in self.tensors:
            row.zero_()  # here
        return i


@refused
class TensorTo(Base):
    def __getitem__(self, i):
        x = self.tensors[i].float()
        x -= 1  # here
        return x


@refused
class TensorModule(Base):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def __getitem__(self, i):
        self.net.double()  # here
        return i


# ---- containers


@refused
class ArrayNotCopied(Base):
    def __getitem__(self, i):
        x = np.array(self.arrays[i], copy=False)
        x[0] = 1  # here
        return x


@refused
class ArrayMasked(Base):
    def __getitem__(self, i):
        x = np.ma.array(self.arrays[i])
        x[0] = 1  # here
        return x


@refused
class ThroughSlice(Base):
    def __getitem__(self, i):
        x = self.data[1:]
        x[0].append(1)  # here
        return i


@refused
class ThroughSliceObject(Base):
    def __getitem__(self, i):
        part = slice(1, 3)
        x = self.data[part]
        x[0].append(1)  # here
        return i


@refused
class ThroughSliceInList(Base):
    def __getitem__(self, i):
        parts = [slice(1, 3)]
        x = self.data[parts[0]]
        x[0].append(1)  # here
        return i


@refused
class ThroughHeldSlice(Base):
    def __init__(self):
        super().__init__()
        self.parts = [slice(0, n) for n in range(100)]

    def __getitem__(self, i):
        x = self.data[self.parts[i]]
        x[0].append(1)  # here
        return i


@refused
class ThroughRaised(Base):
    def __getitem__(self, i):
        try:
            raise ValueError(self.seen)
        except ValueError as error:
            error.args[0].append(1)  # here
        return i


@refused
class SetDefault(Base):
    def __getitem__(self, i):
        return self.table.setdefault(i, 1)  # here


@refused
class Pop(Base):
    def __getitem__(self, i):
        return self.records[i].pop("n")  # here


@refused
class DefaultDict(Base):
    def __init__(self):
        super().__init__()
        self.table = collections.defaultdict(int)

    def __getitem__(self, i):
        return self.table[i]  # here


@refused
class MissingKey(Base):
    def __init__(self):
        super().__init__()
        self.table = Missing()

    def __getitem__(self, i):
        return self.table[i]  # here


@refused
class Deque(Base):
    def __init__(self):
        super().__init__()
        self.window = collections.deque(maxlen=3)

    def __getitem__(self, i):
        self.window.rotate(1)  # here
        return i


@refused
class ListAugmented(Base):
    def __getitem__(self, i):
        self.seen += [i]  # here
        return i


@refused
class LocalListAugmented(Base):
    def __getitem__(self, i):
        seen = self.seen
        seen += [i]  # here
        return i


@refused
class HeldIterator(Base):
    def __init__(self):
        super().__init__()
        self.turn = itertools.count()

    def __getitem__(self, i):
        return next(self.turn)  # here


@refused
class HeldIteratorInList(Base):
    def __init__(self):
        super().__init__()
        self.turns = [itertools.cycle([1, 2])]

    def __getitem__(self, i):
        return [next(one) for one in list(self.turns)]  # here


@refused
class HeldGenerator(Base):
    def __init__(self):
        super().__init__()
        self.turn = (k for k in range(99))

    def __getitem__(self, i):
        for k in self.turn:  # here
            return k
        return i


@refused
class HeldFile(Base):
    def __init__(self):
        super().__init__()
        self.file = sys.__stdin__

    def __getitem__(self, i):
        self.file.seek(0)  # here
        return i


@refused
class HeldFileLines(Base):
    def __init__(self):
        super().__init__()
        self.file = sys.__stdin__

    def __getitem__(self, i):
        return [line for line in self.file]  # noqa: C416  # here


# ---- caches


@refused
class FillsTable(Base):
    def __getitem__(self, i):
        if i not in self.table:
            self.table[i] = 1  # here
        return self.table[i]


@refused
class CachedProperty(Base):
    @functools.cached_property
    def mean(self):
        return 1.0

    def __getitem__(self, i):
        return self.mean  # here


@refused
class MemoisedDraw(Base):
    def __getitem__(self, i):
        return mask(i)  # here


@refused
class MemoisedDrawSeenBefore(Base):
    def __getitem__(self, i):
        draws_once()
        return keeps_draw()  # here


# ---- generators, clocks, processes


@refused
class OwnGenerator(Base):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i):
        return self.rng.random()  # here


@refused
class OwnRandom(Base):
    rng = random.Random(0)

    def __getitem__(self, i):
        return self.rng.random()  # here


@refused
class OwnRandomMethod(Base):
    def __init__(self):
        super().__init__()
        self.draw = random.Random(0).random

    def __getitem__(self, i):
        return self.draw()  # here


@refused
class OwnTorchGenerator(Base):
    def __init__(self):
        super().__init__()
        self.rng = torch.Generator()

    def __getitem__(self, i):
        return torch.rand(1, generator=self.rng)  # here


@refused
class Unseeded(Base):
    def __getitem__(self, i):
        return np.random.default_rng().random()  # here


@refused
class SeededGeneratorShuffles(Base):
    def __getitem__(self, i):
        random.Random(i).shuffle(self.data)  # here
        return i


@refused
class Shuffles(Base):
    def __getitem__(self, i):
        random.shuffle(self.data)  # here
        return i


@refused
class SeedsFromNothing(Base):
    def __getitem__(self, i):
        random.seed()  # here
        return i


@refused
class SetsState(Base):
    def __getitem__(self, i):
        random.setstate(random.getstate())  # here
        return i


@refused
class Clock(Base):
    def __getitem__(self, i):
        return time.time()  # here


@refused
class Process(Base):
    def __getitem__(self, i):
        return os.getpid()  # here


@refused
class Worker(Base):
    def __getitem__(self, i):
        return torch.utils.data.get_worker_info() is None  # here


@refused
class Unique(Base):
    def __getitem__(self, i):
        return str(uuid.uuid4())  # here


@refused
class Identity(Base):
    def __getitem__(self, i):
        return id(self.data[i])  # here


@refused
class Environ(Base):
    def __getitem__(self, i):
        return os.environ["HOME"]  # here


@refused
class EnvironStore(Base):
    def __getitem__(self, i):
        os.environ["X_SEEN"] = "1"  # here
        return i


@refused
class Shell(Base):
    def __getitem__(self, i):
        subprocess.run(["true"], check=False)  # here
        return i


@refused
class Foreign(Base):
    def __getitem__(self, i):
        return ctypes.c_int(i).value  # here


@refused
class Shared(Base):
    def __init__(self):
        super().__init__()
        self.epoch = multiprocessing.Value("i", 0)

    def __getitem__(self, i):
        return self.epoch.value  # here


@refused
class Locks(Base):
    def __getitem__(self, i):
        with LOCK:  # here
            return i


@refused
class Weak(Base):
    def __init__(self):
        super().__init__()
        self.ref = weakref.ref(self)

    def __getitem__(self, i):
        return self.ref().seen.append(1)  # here


@refused
class Threads(Base):
    def __getitem__(self, i):
        threading.Thread(target=self.seen.append, args=(i,)).start()  # here
        return i


# ---- output


@refused
class Prints(Base):
    def __getitem__(self, i):
        print(i)  # here
        return i


@refused
class PrintsByName(Base):
    show = print

    def __getitem__(self, i):
        self.show(i)  # here
        return i


@refused
class Writes(Base):
    def __getitem__(self, i):
        sys.stdout.write("x")  # here
        return i


@refused
class Logs(Base):
    def __getitem__(self, i):
        logging.info("x")  # here
        return i


@refused
class Warns(Base):
    def __getitem__(self, i):
        warnings.warn("x", stacklevel=1)  # here
        return i


@refused
class OpensToWrite(Base):
    def __getitem__(self, i):
        with open("log", "w") as file:  # here
            file.write("x")
        return i


@refused
class OpensToAppend(Base):
    def __getitem__(self, i):
        with open("log", mode="a" if i else "r") as file:  # here
            return file


@refused
class Saves(Base):
    def __getitem__(self, i):
        np.save("x", self.arrays[i])  # here
        return i


@refused
class SavesTensor(Base):
    def __getitem__(self, i):
        torch.save(self.tensors, "x")  # here
        return i


@refused
class Makes(Base):
    def __getitem__(self, i):
        os.makedirs("x", exist_ok=True)  # here
        return i


@refused
class Renames(Base):
    def __getitem__(self, i):
        import pathlib

        pathlib.Path("x").replace("y")  # here
        return i


@refused
class WritesText(Base):
    def __getitem__(self, i):
        import pathlib

        pathlib.Path("x").write_text("y")  # here
        return i


@refused
class Unpickles(Base):
    def __getitem__(self, i):
        return pickle.loads(b"x")  # here


@refused
class Evaluates(Base):
    def __getitem__(self, i):
        return eval("self.seen.append(1)")  # here


@refused
class ImportsLate(Base):
    def __getitem__(self, i):
        import lib2to3_never_there  # here

        return lib2to3_never_there.x


@refused
class Inspects(Base):
    def __getitem__(self, i):
        return inspect.currentframe().f_back.f_locals  # here


# ---- what Python calls without being told


@refused
class FormatsLoud(Base):
    def __init__(self):
        super().__init__()
        self.loud = Loud()

    def __getitem__(self, i):
        return f"{self.loud}"


@refused
class FormatsLoudInList(Base):
    def __init__(self):
        super().__init__()
        self.louds = [Loud()]

    def __getitem__(self, i):
        return str(self.louds)


@refused
class AsksLength(Base):
    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def __getitem__(self, i):
        return 1 if self.counts else 0


@refused
class CallsLength(Base):
    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def __getitem__(self, i):
        return len(self.counts)


@refused
class Compares(Base):
    def __init__(self):
        super().__init__()
        self.equal = Equal()

    def __getitem__(self, i):
        return self.equal == 1


@refused
class ComparesMember(Base):
    def __init__(self):
        super().__init__()
        self.equals = [Equal()]

    def __getitem__(self, i):
        return i in self.equals


@refused
class AddsOperator(Base):
    def __init__(self):
        super().__init__()
        self.adds = Adds()

    def __getitem__(self, i):
        return self.adds + i


@refused
class AddsAugmented(Base):
    def __init__(self):
        super().__init__()
        self.adds = [Adds()]

    def __getitem__(self, i):
        total = 0
        for one in list(self.adds):
            total = one + total
        return total


@refused
class IteratesObject(Base):
    def __init__(self):
        super().__init__()
        self.iterates = Iterates()

    def __getitem__(self, i):
        return [k for k in self.iterates]  # noqa: C416  # here


@refused
class AnswersAttribute(Base):
    def __init__(self):
        super().__init__()
        self.answers = Answers()

    def __getitem__(self, i):
        return self.answers.anything  # here


@refused
class AnswersAnyAttribute(Base):
    def __init__(self):
        super().__init__()
        self.answers = AnswersAll()

    def __getitem__(self, i):
        return self.answers.anything  # here


@refused
class ReadsDescriptor(Base):
    def __init__(self):
        super().__init__()
        self.described = Described()

    def __getitem__(self, i):
        return self.described.value  # here


@refused
class ReadsPropertyOfUnknown(Base):
    class Inner:
        @property
        def size(self):
            SEEN.append(1)  # here
            return 1

    def __init__(self):
        super().__init__()
        self.inner = [self.Inner()]

    def __getitem__(self, i):
        return list(self.inner)[0].size  # noqa: RUF015


@refused
class SetsProperty(Base):
    def __getitem__(self, i):
        made = WithSetter()
        made.x = i
        return i


@refused
class SetsPropertyInList(Base):
    def __getitem__(self, i):
        made = [WithSetter()]
        made[0].x = i
        return i


@refused
class SetsAttributes(Base):
    def __getitem__(self, i):
        made = Sets()
        made.x = i  # here
        return i


@refused
class IndexesList(Base):
    def __init__(self):
        super().__init__()
        self.mine = MyList([1, 2])

    def __getitem__(self, i):
        return self.mine[i]


@refused
class UsesArray(Base):
    def __init__(self):
        super().__init__()
        self.mine = np.zeros(3).view(MyArray)

    def __getitem__(self, i):
        return np.sin(self.mine)


@refused
class LyingClass(Base):
    def __init__(self):
        super().__init__()
        self.lies = Lies()

    def __getitem__(self, i):
        return self.lies.get(i)


@refused
class MetaCall(Base):
    def __getitem__(self, i):
        Made()  # here
        return i


@refused
class MetaAttribute(Base):
    def __getitem__(self, i):
        if Noted.seen is not None:  # here
            Noted.seen.append(i)  # here
        return i


@refused
class NewCall(Base):
    def __getitem__(self, i):
        NewOne()  # here
        return i


@refused
class DelCall(Base):
    def __getitem__(self, i):
        Dies()  # here
        return i


@refused
class PostInit(Base):
    def __getitem__(self, i):
        return Point(1.0).x


@refused
class Decorated(Base):
    @keeps
    def make(self, i):
        return i

    def __getitem__(self, i):
        return self.make(i)


@refused
class DecoratedItem(Base):
    @keeps
    def __getitem__(self, i):
        return i


@refused
class Shadowed(Base):
    def __init__(self):
        super().__init__()
        self.make = make(SEEN)

    def make(self, i):
        return i

    def __getitem__(self, i):
        return self.make(i)


@refused
class DeepCopied(Base):
    def __init__(self):
        super().__init__()
        self.writer = Writer(SEEN)

    def __getitem__(self, i):
        return copy.deepcopy(self.writer).get(i)  # here


@refused
class DeepCopiedInList(Base):
    def __init__(self):
        super().__init__()
        self.writers = [Writer(SEEN)]

    def __getitem__(self, i):
        return copy.deepcopy(self.writers)[0].get(i)


@refused
class GoesThroughALoader(Base):
    def __init__(self):
        super().__init__()
        self.others = DataLoader(AttributeCount(), batch_size=2)

    def __getitem__(self, i):
        return next(iter(self.others))  # here


@refused
class LoopsOverALoader(GoesThroughALoader):
    def __getitem__(self, i):
        return [batch for batch in self.others]  # noqa: C416  # here


@refused
class GetsByAName(Base):
    def __getitem__(self, i):
        return operator.attrgetter("count")(self)  # here


@refused
class SuperWrites(AttributeCount):
    def __getitem__(self, i):
        return super().__getitem__(i)


@refused
class Asynchronous(Base):
    def __getitem__(self, i):
        async def later():
            self.seen.append(i)

        return later()  # here


def where(loader):
    reads, _ = read_items(loader)
    return [gap.where for gap in reads.gaps], [str(gap) for gap in reads.gaps]


def lines_marked(kind):
    """Lines of this file with the mark, in the class or in what it uses."""
    source, start = inspect.getsourcelines(kind)
    own = [start + n for n, line in enumerate(source) if "# here" in line]
    if own:
        return own
    whole = inspect.getsource(sys.modules[__name__]).splitlines()
    return [n + 1 for n, line in enumerate(whole) if "# here" in line]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_an_effect_outside_of_the_batch_is_refused_where_it_is(kind):
    places, texts = where(DataLoader(kind()))
    assert places, "it passed"
    named = {int(place.rpartition(":")[2]) for place in places if place.startswith(__file__)}
    assert named & set(lines_marked(kind)), texts
