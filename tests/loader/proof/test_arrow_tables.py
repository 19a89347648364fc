"""Items from tables of `datasets`, by a stand-in of the library that is installed here."""

import importlib
from copy import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from hasten.loader.cache.purity import PurityAnalysis
from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.proof import kinds
from hasten.loader.proof.items import read_items

TABLE = """
class Dataset:
    def __init__(self, features, how=None, **told):
        self._features, self._format_type, self._format_kwargs = features, how, told
        self._fingerprint = "a"

    @property
    def features(self):
        return self._features

    def __len__(self):
        return 8

    def __getitem__(self, key):
        return {"text": "a" * key, "label": key}

    def __getitems__(self, keys):
        return [self[key] for key in keys]

    def map(self, function):
        return self
"""
FEATURES = """
class Value:
    pass


class Image(Value):
    pass


class Audio(Value):
    pass


class Sequence:
    def __init__(self, feature):
        self.feature = feature
"""


@pytest.fixture
def library(install):
    install({
        "datasets/__init__.py": "", "datasets/arrow_dataset.py": TABLE,
        "datasets/features.py": FEATURES,
    })  # fmt: skip
    return SimpleNamespace(
        Dataset=importlib.import_module("datasets.arrow_dataset").Dataset,
        **vars(importlib.import_module("datasets.features")),
    )


class Lengths(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        row = self.table[i]
        return len(row["text"]), row["label"]


class Columns(Lengths):
    def __getitem__(self, i):
        return self.table["label"][i]


class Maps(Lengths):
    def __getitem__(self, i):
        return self.table.map(len)[i]


def lengths(rows):
    rows["length"] = [len(text) for text in rows["text"]]
    del rows["text"]
    return rows


def jittered(rows):
    return {"length": [len(text) + torch.rand(()).item() for text in rows["text"]]}


def shared(rows):
    return {"length": [SEEN]}


SEEN = []


def noted(rows):
    SEEN.append(rows)
    return rows


def read(dataset):
    return read_items(DataLoader(dataset, 2))


def gaps(dataset):
    return [gap.what for gap in read(dataset)[0].gaps]


@pytest.mark.parametrize("kind", [Lengths, Columns, lambda one: one, lambda one: Subset(one, [3])])
@pytest.mark.parametrize("how", [None, "torch", "numpy"])
def test_rows_of_a_table_are_made_anew(library, kind, how) -> None:
    table = library.Dataset({"text": library.Value(), "label": library.Sequence(library.Value())})
    table._format_type = how
    reads, shares = read(kind(table))
    assert not reads.gaps
    assert not reads.draws
    assert not shares
    assert id(table) not in reads.content  # nobody minds who else holds it
    assert not PurityAnalysis(kind(table)).why_not


def test_a_collate_function_may_write_rows_unless_they_hold_what_outlives_them(library) -> None:
    def own(rows):
        for row in rows:
            row["more"] = 1
        return rows

    text = {"text": library.Value()}
    tables = [library.Dataset(text, how) for how in (None, "numpy")]
    tables += [library.Dataset(text, "custom", transform=one) for one in (lengths, shared)]
    shares = [read_items(DataLoader(one, 2, collate_fn=own))[1] for one in tables]
    assert shares == [False, True, False, True]


def test_the_transform_of_a_table_is_followed(library) -> None:
    def table(transform):
        return library.Dataset({"text": library.Value()}, "custom", transform=transform)

    assert not gaps(table(lengths))
    assert not read(table(lengths))[0].draws
    assert not gaps(table(jittered))
    assert read(table(jittered))[0].draws
    assert "append" in gaps(table(noted))[0]
    assert gaps(Lengths(table(noted)))
    assert id(SEEN) in PurityAnalysis(table(noted))._seen


@pytest.mark.parametrize(("feature", "is_known"), [("Image", True), ("Audio", False)])
def test_columns_that_keep_a_decoder_are_not_known(library, feature, is_known) -> None:
    inner = getattr(library, feature)()
    for one in (inner, [inner], {"inner": inner}, library.Sequence(inner)):
        found = gaps(library.Dataset({"text": library.Value(), "more": one}))
        assert found == ([] if is_known else ["it reads columns of Audio"])


def test_other_formats_methods_and_classes_are_not_known(library, monkeypatch) -> None:
    plain = {"text": library.Value()}
    assert "format pandas" in gaps(library.Dataset(plain, "pandas"))[0]
    assert "format torch" in gaps(library.Dataset(plain, "torch", device="cuda"))[0]
    assert not gaps(library.Dataset(plain, "torch", device="cpu"))
    assert ".map()" in gaps(Maps(library.Dataset(plain)))[0]
    with monkeypatch.context() as patched:
        patched.setattr(library.Dataset, "__getitem__", lambda self, key: {"label": SEEN})
        assert not kinds.is_arrow_table(library.Dataset(plain))
    assert kinds.is_arrow_table(library.Dataset(plain))
    assert not kinds.is_arrow_table(type("Own", (library.Dataset,), {})(plain))


def test_a_table_looks_as_what_it_was_made_of(library) -> None:
    scale = torch.ones(2)
    wrapped = Lengths(
        library.Dataset({"text": library.Value()}, "custom", transform=partial(torch.mul, scale))
    )

    def look():
        return DatasetSnapshot(wrapped, most_s=1.0, most_bytes=1 << 20)

    first = look()
    assert first == look()
    scale.add_(1)
    second = look()
    assert first != second
    wrapped.table._fingerprint = "b"
    third = look()
    assert second != third
    wrapped.table = copy(wrapped.table)  # `map` may draw, and tells the same of both tables
    assert third != look()
