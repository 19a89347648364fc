"""Items that tokenize with `transformers`, by a stand-in of the library that is installed here."""

import importlib
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, Dataset

from hasten.loader.cache.purity import PurityAnalysis
from hasten.loader.proof import kinds
from hasten.loader.proof.items import read_items

BASE = """
import os
from collections import UserDict


class BatchEncoding(UserDict):
    def __getattr__(self, name):
        return self.data[name]


class PreTrainedTokenizerBase:
    def __init__(self, dropout=None):
        self.pads, self.model_max_length, self._pad = {}, 16, "[PAD]"
        self.dropout = dropout

    @classmethod
    def from_pretrained(cls, path):
        return cls() if os.path.isfile(path) else None

    @property
    def backend_tokenizer(self):
        return type("Backend", (), {"model": type("Model", (), {"dropout": self.dropout})})

    @property
    def pad_token_id(self):
        return 0

    def __call__(self, text, **how):
        self.pads = how  # as `transformers` does
        return BatchEncoding(input_ids=[len(word) for word in text.split()])

    def encode_plus(self, text, pair=None, **how):
        return self(text, **how)

    def tokenize(self, text):
        return text.split()

    def convert_tokens_to_ids(self, tokens):
        return list(map(len, tokens))

    def add_tokens(self, tokens):
        self.pads["more"] = tokens
"""
COLLATOR = """
import torch


class DataCollatorWithPadding:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, samples):
        return {"input_ids": torch.tensor([sample["input_ids"] for sample in samples])}


class DataCollatorForLanguageModeling(DataCollatorWithPadding):
    pass


def default_data_collator(samples):
    return {"input_ids": torch.tensor([sample["input_ids"] for sample in samples])}
"""
TRAINER = """
class RemoveColumnsCollator:
    def __init__(self, data_collator):
        self.data_collator = data_collator

    def __call__(self, samples):
        return self.data_collator(samples)
"""
TEXTS = {
    "__init__": "", "tokenization_utils_base": BASE, "data/__init__": "",
    "data/data_collator": COLLATOR, "trainer_utils": TRAINER,
}  # fmt: skip


@pytest.fixture
def library(install):
    install({f"transformers/{name}.py": text for name, text in TEXTS.items()})
    return SimpleNamespace(
        base=importlib.import_module("transformers.tokenization_utils_base"),
        collators=importlib.import_module("transformers.data.data_collator"),
        trainer=importlib.import_module("transformers.trainer_utils"),
    )


class Texts(Dataset):
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.texts = ["a bc def"] * 8

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.tokenizer(self.texts[i], truncation=True)["input_ids"]


class Plus(Texts):
    def __getitem__(self, i):
        found = self.tokenizer.encode_plus(" ".join(str(self.texts[i]).split()), None)
        return {"ids": found.input_ids}


class InSteps(Texts):
    def __getitem__(self, i):
        ids = self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(self.texts[i]))
        return ids + [self.tokenizer.pad_token_id] * (self.tokenizer.model_max_length - len(ids))


class Labelled(Texts):
    def __getitem__(self, i):
        item = self.tokenizer(self.texts[i])
        item["labels"] = i % 2
        return item


class Grows(Texts):
    def __getitem__(self, i):
        self.tokenizer.add_tokens([self.texts[i]])
        return i


class Hides(Texts):
    def __getitem__(self, i):
        return len(self.tokenizer.pads), len(self.tokenizer._added)


def gaps(dataset, collate=None):
    return [gap.what for gap in read_items(DataLoader(dataset, 2, collate_fn=collate))[0].gaps]


@pytest.mark.parametrize("kind", [Texts, Plus, InSteps, Labelled])
def test_what_a_tokenizer_makes_of_a_text_has_no_effects(library, kind) -> None:
    dataset = kind(library.base.PreTrainedTokenizerBase())
    assert dataset[0]
    reads, _ = read_items(DataLoader(dataset, 2))
    assert not reads.gaps
    assert id(dataset.tokenizer) not in reads.content  # nobody minds who else holds it
    assert not PurityAnalysis(dataset).why_not


@pytest.mark.parametrize(("kind", "what"), [(Grows, ".add_tokens()"), (Hides, "_added")])
def test_other_methods_and_attributes_of_it_are_not_known(library, kind, what) -> None:
    found = gaps(kind(library.base.PreTrainedTokenizerBase()))
    assert len(found) == 1
    assert what in found[0]


def test_a_tokenizer_of_the_script_or_one_that_draws_is_not_known(library, monkeypatch) -> None:
    base = library.base.PreTrainedTokenizerBase
    own = type("Own", (base,), {"__module__": __name__})
    assert kinds.is_tokenizer(base())
    assert not kinds.is_tokenizer(base(dropout=0.1))
    assert not kinds.is_tokenizer(own())
    assert gaps(Texts(base(dropout=0.1)))
    sampling = base()
    sampling.sp_model_kwargs = {"enable_sampling": True}
    assert not kinds.is_tokenizer(sampling)
    patched = base()
    patched.tokenize = str.split
    assert gaps(InSteps(patched))
    monkeypatch.setattr(base, "__call__", lambda self, text, **how: {"input_ids": [1]})
    assert gaps(Texts(base()))


def test_its_collators_are_known_by_name(library) -> None:
    tokenizer = library.base.PreTrainedTokenizerBase()
    pads = library.collators.DataCollatorWithPadding(tokenizer)
    assert not gaps(Labelled(tokenizer), pads)
    assert not gaps(Labelled(tokenizer), library.collators.default_data_collator)
    assert not gaps(Labelled(tokenizer), library.trainer.RemoveColumnsCollator(pads))
    masks = library.collators.DataCollatorForLanguageModeling(tokenizer)
    for one in (masks, library.trainer.RemoveColumnsCollator(masks)):
        assert "DataCollatorForLanguageModeling" in gaps(Labelled(tokenizer), one)[0]
    drawing = library.collators.DataCollatorWithPadding(type(tokenizer)(dropout=0.1))
    assert "DataCollatorWithPadding" in gaps(Labelled(tokenizer), drawing)[0]
