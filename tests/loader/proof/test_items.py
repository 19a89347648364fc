"""Items of the usual kinds pass: what they read and whether the batch shares it is known."""

import argparse
import collections
import csv
import functools
import io
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

from hasten.loader.proof.items import read_items

PASSING = {}


def passes(make):
    PASSING[make.__name__] = make
    return make


class Table(Dataset):
    def __init__(self, **held):
        vars(self).update(held)

    def __len__(self):
        return 8


def of(**held):
    """Make the class that is decorated a dataset that holds these."""

    def made(kind):
        PASSING[kind.__name__] = lambda: kind(**held)
        return kind

    return made


@of(paths=[f"{i}.png" for i in range(8)], labels=[0, 1] * 4, root="pictures")
class Pictures(Table):
    def __getitem__(self, i):
        picture = Image.open(os.path.join(self.root, self.paths[i])).convert("RGB")
        x = np.array(picture, dtype=np.float32)
        x /= 255.0
        x -= x.mean(axis=(0, 1))
        if random.random() < 0.5:
            x = x[:, ::-1].copy()
        return torch.from_numpy(x).permute(2, 0, 1), self.labels[i]


class Rescale:
    def __init__(self, size):
        self.size = size

    def __call__(self, sample):
        image, points = sample["image"], sample["points"]
        h, w = image.shape[:2]
        new_h, new_w = (self.size, self.size * w / h) if isinstance(self.size, int) else self.size
        points = points * [new_w / w, new_h / h]
        return {"image": image[: int(new_h), : int(new_w)], "points": points}


class RandomCrop:
    def __init__(self, size):
        self.size = (size, size)

    def __call__(self, sample):
        top = np.random.randint(0, sample["image"].shape[0] - self.size[0])
        return {**sample, "image": sample["image"][top : top + self.size[0]]}


class ToTensor:
    def __call__(self, sample):
        return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in sample.items()}


class Chain:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, sample):
        for step in self.steps:
            sample = step(sample)
        return sample


@of(
    images=np.zeros((8, 9, 9, 3)),
    points=np.zeros((8, 4)),
    transform=Chain([Rescale(6), RandomCrop(4), ToTensor()]),
)
class Landmarks(Table):
    def __getitem__(self, i):
        if torch.is_tensor(i):
            i = i.tolist()
        sample = {"image": self.images[i], "points": self.points[i].astype(float).reshape(-1, 2)}
        if self.transform:
            sample = self.transform(sample)
        return sample


@of(x=torch.rand(40, 3), length=4)
class Windows(Table):
    def __getitem__(self, i):
        return self.x[i : i + self.length], self.x[i + self.length : i + 2 * self.length]


@of(text="abcab" * 8, codes={c: n for n, c in enumerate("abc")}, block=4)
class Characters(Table):
    def __getitem__(self, i):
        chunk = self.text[i : i + self.block + 1]
        codes = [self.codes[c] for c in chunk]
        return torch.tensor(codes[:-1]), torch.tensor(codes[1:])


class Vocabulary:
    def __init__(self):
        self.codes = {"<unk>": 0, "a": 1}

    def __len__(self):
        return len(self.codes)

    @staticmethod
    def words(text):
        return [word.lower().strip() for word in text.split(" ")]

    def encode(self, text):
        return [self.codes.get(word, self.codes["<unk>"]) for word in self.words(text)]


@of(vocabulary=Vocabulary(), texts=["a b c"] * 8)
class Texts(Table):
    def __getitem__(self, i):
        codes = [0]
        codes += self.vocabulary.encode(self.texts[i])
        codes.append(len(self.vocabulary))
        return torch.tensor(codes)


@of(rows=[(user, user + 1) for user in range(8)], seen={user: {user + 1} for user in range(8)})
class Negatives(Table):
    def __getitem__(self, i):
        user, item = self.rows[i]
        items, labels = [item], [1.0]
        while len(items) < 5:
            other = np.random.randint(50)
            if other not in self.seen[user]:
                items.append(other)
                labels.append(0.0)
        return torch.full((5,), user), torch.tensor(items), torch.tensor(labels)


@of(records=[{"x": [1.0], "y": 0} for _ in range(8)])
class Records(Table):
    def __getitem__(self, i):
        record = dict(self.records[i])
        record["x"] = torch.tensor(record["x"])
        return record


@of(files=[Path("a.npy")] * 8, root=Path("arrays"))
class Files(Table):
    def __getitem__(self, i):
        x = np.load(self.root / self.files[i])
        with open(self.root / f"{self.files[i].stem}.json") as file:
            found = json.load(file)
        return torch.from_numpy(x), found["label"]


@of(path="table.csv")
class Rows(Table):
    def __getitem__(self, i):
        with open(self.path, newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: float(value) for name, value in rows[i].items()}


@of(blobs=[b"x"] * 8)
class Bytes(Table):
    def __getitem__(self, i):
        return np.asarray(Image.open(io.BytesIO(self.blobs[i]))).copy()


@of(args=argparse.Namespace(noise=0.1, classes=3), x=torch.rand(8, 3), y=[0, 1, 2, 0] * 2)
class Noisy(Table):
    @property
    def width(self):
        return self.x.shape[1]

    @classmethod
    def scale(cls, x):
        return x / 2

    @torch.no_grad()
    def prepare(self, x):
        return self.scale((x - x.mean()) / (x.std() + 1e-6))

    def __getitem__(self, i: int) -> tuple:
        x = self.prepare(self.x[i]).clone()
        if self.args.noise > 0:
            x += torch.randn(self.width) * self.args.noise
        y = torch.zeros(self.args.classes)
        y[self.y[i]] = 1
        return x, y, f"row-{i:03d}"


Candidate = collections.namedtuple("Candidate", "positive uid center")


@dataclass
class Config:
    size: int = 3
    flip: bool = True


@of(
    candidates=[Candidate(i % 2 == 0, f"u{i}", (1, 2)) for i in range(8)],
    volume=np.zeros((4, 4)),
    config=Config(),
)
class Candidates(Table):
    def __getitem__(self, i):
        one = self.candidates[i]
        cut = torch.from_numpy(self.volume.copy()).to(torch.float32)
        if self.config.flip and random.random() > 0.5:
            cut *= -1
        x, y = one.center
        place = torch.tensor([x, y])
        return cut, torch.tensor([not one.positive, one.positive]), one.uid, place


@of(files=["a"] * 8)
class Retries(Table):
    def __getitem__(self, i):
        try:
            x = np.load(self.files[i])
        except (OSError, ValueError):
            return self[(i + 1) % len(self)]
        return x


class Parent(Table):
    def __getitem__(self, i):
        return self.x[i] * 1.0


@of(x=np.zeros((8, 2), dtype=np.float32), crop=functools.partial(np.clip, a_min=0, a_max=1))
class Child(Parent):
    add = staticmethod(lambda one: one + 1)

    def __getitem__(self, i):
        x = super().__getitem__(i)

        def flip(x):
            return x[::-1]

        shifted = [flip(one) for one in (x, x + 1)]
        return self.crop(np.stack(shifted)), self.add(x)


@of(x=torch.rand(8, 3), net=nn.Sequential(nn.Identity()))
class Mixed(Table):
    def __getitem__(self, i):
        other = random.randint(0, len(self) - 1)
        weight = np.random.beta(0.2, 0.2)
        return self.x[i] * weight + self.x[other] * (1 - weight)


@passes
def tensors():
    return TensorDataset(torch.rand(8, 2), torch.rand(8))


@passes
def subset():
    return Subset(PASSING["Windows"](), [1, 2])


@passes
def split():
    return random_split(PASSING["Noisy"](), [6, 2])[0]


@passes
def concatenated():
    return ConcatDataset([PASSING["Texts"](), PASSING["Texts"]()])


@passes
def a_list():
    return [(torch.zeros(2), 1)] * 8


@pytest.mark.parametrize("name", PASSING)
def test_the_usual_items_pass(name):
    reads, shares = read_items(DataLoader(PASSING[name]()))
    assert [str(gap) for gap in reads.gaps] == []
    assert not shares


def padded(batch):
    batch.sort(key=len, reverse=True)
    lengths = torch.tensor([len(one) for one in batch])
    return pad_sequence(batch, batch_first=True), lengths


class Pads:
    def __init__(self, value):
        self.value = value

    def __call__(self, batch):
        return pad_sequence(batch, batch_first=True, padding_value=self.value)


def zipped(batch):
    return tuple(zip(*batch, strict=True))


@pytest.mark.parametrize("collate", [padded, Pads(0), functools.partial(padded)])
def test_collate_functions_that_pad_pass(collate):
    reads, shares = read_items(DataLoader(PASSING["Texts"](), collate_fn=collate))
    assert [str(gap) for gap in reads.gaps] == []
    assert not shares


SEEN = []


def writes(batch):
    SEEN.append(len(batch))
    return torch.stack(batch)


def test_a_collate_function_that_writes_is_refused():
    reads, _ = read_items(DataLoader(PASSING["Texts"](), collate_fn=writes))
    assert [gap.where.rpartition("/")[2].partition(":")[0] for gap in reads.gaps] == [
        "test_items.py"
    ]


@of(records=[{"x": [1.0]} for _ in range(8)])
class Delivered(Table):
    def __getitem__(self, i):
        return self.records[i]


@of(x=torch.rand(8, 3))
class Viewed(Table):
    def __getitem__(self, i):
        return self.x[i]


@of(x=torch.rand(8, 3))
class Nested(Table):
    def __getitem__(self, i):
        found = []
        held = {"a": found}
        found.append(self.x[i])
        return held


@of(x=torch.rand(8, 3))
class ViewedInTheEnd(Table):
    def __getitem__(self, i):
        return self[i - 1] if i else self.x[i]


@of(x=torch.rand(8, 3))
class Exchanging(Table):
    def __getitem__(self, i):
        return self.pick(torch.zeros(3), self.x[i], i)

    def pick(self, one, other, i):
        return self.pick(other, one, i - 1) if i else one


@of(x=torch.rand(8, 3))
class ViewedInTurn(Table):
    def __getitem__(self, i):
        return self.even(i)

    def even(self, i):
        return self.odd(i - 1) if i else [torch.zeros(3)]

    def odd(self, i):
        return self.even(i - 1) if i else [self.x]


HOLDING = ("Delivered", "Viewed", "Nested", "ViewedInTheEnd", "Exchanging", "ViewedInTurn")


@pytest.mark.parametrize("name", HOLDING)
def test_a_batch_that_holds_the_dataset_s_own_objects_shares(name):
    assert read_items(DataLoader(PASSING[name](), collate_fn=list))[1]
    assert not read_items(DataLoader(PASSING[name]()))[1]


@of(count=8)
class Slices(Table):
    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[one] for one in range(i.start or 0, i.stop or len(self))]
        return torch.full((3,), float(i)), [torch.ones(2)]


@of(paths=[f"{i}.png" for i in range(8)])
class NextWhereOneIsBroken(Table):
    def __getitem__(self, i):
        try:
            return {"x": np.array(Image.open(self.paths[i]))}
        except OSError:
            return self.__getitem__((i + 1) % len(self))


@pytest.mark.parametrize("name", ["Slices", "NextWhereOneIsBroken"])
def test_items_that_ask_for_another_item_share_no_more_than_that(name):
    reads, shares = read_items(DataLoader(PASSING[name](), collate_fn=list))
    assert [str(gap) for gap in reads.gaps] == []
    assert not shares


def test_items_without_batches_share():
    assert read_items(DataLoader(PASSING["Viewed"](), batch_size=None))[1]


@pytest.mark.parametrize(("name", "draws"), [("Noisy", True), ("Mixed", True), ("Windows", False)])
def test_draws_from_the_global_generators_are_told(name, draws):
    assert read_items(DataLoader(PASSING[name]()))[0].draws is draws


def test_what_is_read_is_told():
    dataset = PASSING["Noisy"]()
    reads, _ = read_items(DataLoader(dataset))
    assert {"x", "y", "args", "noise", "classes"} <= reads.attributes
    assert id(dataset.x) in reads.content
    assert id(dataset) in reads.objects
    assert type(dataset) in reads.classes
    assert type(dataset).__getitem__.__code__ in reads.codes


class Fetches(Table):
    def __getitem__(self, i):
        return self.x[i]

    def __getitems__(self, indices):
        self.count = len(indices)
        return [self[i] for i in indices]


def test_what_fetches_many_items_is_read_too():
    reads, _ = read_items(DataLoader(Fetches(x=torch.rand(8))))
    assert "self.count" in reads.gaps[0].what


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_a_stream_is_refused():
    assert read_items(DataLoader(Stream()))[0].gaps


def seeds(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


def opens(worker):
    SEEN.append(worker)


def test_a_function_for_workers_may_seed_and_no_more():
    dataset = PASSING["Windows"]()
    assert not read_items(DataLoader(dataset, num_workers=1, worker_init_fn=seeds))[0].gaps
    assert read_items(DataLoader(dataset, num_workers=1, worker_init_fn=opens))[0].gaps


def test_a_function_for_workers_does_nothing_to_a_loader_that_has_none():
    assert not read_items(DataLoader(PASSING["Windows"](), worker_init_fn=opens))[0].gaps


@pytest.mark.parametrize(
    "held",
    [
        {"rows": [(f"{i}.png", i % 10) for i in range(1_000_000)]},
        {"rows": [(f"{i}.png", {"label": i}) for i in range(60_000)]},
    ],
    ids=["tuples", "dictionaries"],
)
def test_large_datasets_are_read_quickly(held):
    class Large(Table):
        def __getitem__(self, i):
            path, label = self.rows[i]
            return len(path), label

    start = time.process_time()
    reads, _ = read_items(DataLoader(Large(**held)))
    assert time.process_time() - start < 5  # a tenth of it on an idle machine
    assert not reads.gaps


def test_a_method_that_the_script_put_into_a_library_is_refused(monkeypatch):
    def clone(self):
        SEEN.append(1)
        return self

    class Clones(Table):
        def __getitem__(self, i):
            return self.x[i].clone()

    assert not read_items(DataLoader(Clones(x=torch.rand(8))))[0].gaps
    monkeypatch.setattr(torch.Tensor, "clone", clone, raising=False)
    assert read_items(DataLoader(Clones(x=torch.rand(8))))[0].gaps


def test_a_function_that_the_script_put_into_a_library_is_followed(monkeypatch):
    def stack(parts):
        SEEN.append(1)
        return parts

    class Stacks(Table):
        def __getitem__(self, i):
            return np.stack([self.x[i]])

    monkeypatch.setattr(np, "stack", stack)
    assert read_items(DataLoader(Stacks(x=np.zeros(8))))[0].gaps
