"""Which code of a model a call may run, and so what is said to print or write."""

from functools import partial, singledispatchmethod

import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.root_calls.model_code import writes_out


class Quiet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        print(end="")

    @classmethod
    def from_pretrained(cls):
        print("loading")

    def save(self, path):
        torch.save(self.state_dict(), path)

    def forward(self, x):
        return functional.relu(self.layer(x))


class Loud(Quiet):
    def report(self, x):
        print(len(x))
        return x


class ByName(Loud):
    def forward(self, x):
        return self.report(super().forward(x))


class ByAttribute(Loud):
    def __init__(self):
        super().__init__()
        self.then = self.report

    def forward(self, x):
        return self.then(x)


class ByElement(Loud):
    def __init__(self):
        super().__init__()
        self.later = [partial(self.report)]

    def forward(self, x):
        return self.later[0](x)


class ByText(Loud):
    def forward(self, x):
        return getattr(self, "rep" + "ort")(x)


class ByNesting(Loud):
    def __init__(self):
        super().__init__()
        self.stages = {"first": [("a", self.report)]}

    def forward(self, x):
        return self.stages["first"][0][1](x)


TABLE = {}


def listed(method):
    TABLE[method.__name__] = {"call": method}
    return method


class ByTable(Quiet):
    @listed
    def report(self, x):
        print(len(x))
        return x

    def forward(self, x):
        return TABLE["rep" + "ort"]["call"](self, x)


class ByKind(Quiet):
    @singledispatchmethod
    def forward(self, x):
        return x

    @forward.register
    def _(self, x: torch.Tensor):
        print(len(x))
        return x


class ByLibrary(torch.distributions.transforms.Transform, nn.Module):
    __hash__ = nn.Module.__hash__

    def __init__(self):
        nn.Module.__init__(self)

    def forward(self, x):
        return self(x)

    def _call(self, x):
        print(len(x))
        return x


class Moved(Quiet):
    def to(self, *args, **kwargs):
        print("moved")
        return super().to(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        print("saved", getattr(self, "lay" + "er"))
        return super().state_dict(*args, **kwargs)


class ByMoving(Moved):
    def forward(self, x):
        return super().forward(x).to(torch.float64)


class ByTorch(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        print(len(x))
        return super()._ff_block(x)


def test_what_a_call_does_not_run_may_print() -> None:
    assert writes_out(Quiet()) == ""
    assert writes_out(Loud()) == ""
    assert writes_out(nn.Sequential(nn.Embedding(2, 2), Quiet())) == ""
    assert writes_out(Moved()) == ""
    assert writes_out(ByMoving()) == "to names print"


@pytest.mark.parametrize("kind", [ByName, ByAttribute, ByElement, ByText, ByNesting, ByTable])
def test_a_method_that_forward_reaches_is_found(kind) -> None:
    assert writes_out(kind()) in ("report names print", "save names save")


LIBRARY = """
import logging
from torch import nn


class Base(nn.Module):
    def forward(self, x):
        logging.getLogger(__name__).warning("once")
        for name in ("prepare", "begin"):
            getattr(self, name, lambda: None)()
        return getattr(self, f"run_{x}")(x)

    def push(self):
        print("pushed")
"""


def test_a_library_calls_only_methods_of_which_it_has_the_name(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "some_library.py"
    package.parent.mkdir()
    package.write_text(LIBRARY)
    monkeypatch.syspath_prepend(package.parent)
    base = __import__("some_library").Base

    class Own(base):
        def report(self, x):
            print(len(x))

    class Prepared(Own):
        def prepare(self):
            self.report([])

    assert writes_out(Own()) == ""
    assert writes_out(Prepared()) == "report names print"


def test_a_method_that_a_library_calls_is_found() -> None:
    assert writes_out(ByKind()) == "_ names print"
    assert writes_out(ByLibrary()) == "_call names print"
    assert writes_out(ByTorch(4, 2)) == "_ff_block names print"
