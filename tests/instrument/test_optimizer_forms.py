"""Which options an optimizer can be asked for without an error."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from hasten.instrument.examine.operations import forms_of  # noqa: E402
from hasten.instrument.traits import TraitsReader  # noqa: E402


def weights():
    return [torch.nn.Parameter(torch.ones(2))]


class AdamW(torch.optim.AdamW):
    """A class of the script's own, under a known name."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, lr=lr)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("SGD", {"foreach", "fused"}),
        ("AdamW", {"foreach", "fused"}),
        ("RMSprop", {"foreach"}),
        ("NAdam", {"foreach"}),
        ("RAdam", {"foreach"}),
        ("LBFGS", set()),
    ],
)
def test_the_classes_of_torch_have_the_forms_that_they_take(name, forms) -> None:
    kind = getattr(torch.optim, name)
    assert forms_of(kind(weights(), lr=0.1)) == forms
    assert forms <= set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("kind", [AdamW, Lion])
def test_classes_of_others_have_none(kind) -> None:
    assert forms_of(kind(weights())) == set()


def test_of_several_optimizers_the_one_with_an_open_fused_form_is_told() -> None:
    def seen(*optimizers):
        reader = TraitsReader()
        for one in optimizers:
            reader.steps(one)
        return reader.found.optimizer

    own, fused = Lion(weights()), torch.optim.SGD(weights(), lr=0.1, fused=True)
    halves = [{"params": [one]} for one in weights()]
    usual, other = torch.optim.AdamW(halves), torch.optim.Adam(weights())
    assert seen(own, usual, other).name == seen(fused, usual).name == "AdamW"
    assert seen(usual, fused).name == "AdamW"
    assert seen(own, fused).name == "Lion"
    assert seen(usual).tensor_count == len(halves)


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_gradients_are_seen_in_any_group(sparse) -> None:
    table, idle = torch.nn.Embedding(4, 2, sparse=sparse), torch.nn.Linear(2, 1)
    table(torch.tensor([1])).sum().backward()
    groups = [{"params": [*idle.parameters()]}, {"params": [*table.parameters()]}]
    reader = TraitsReader()
    reader.steps(torch.optim.SGD(groups, lr=0.1))
    seen = reader.found.optimizer
    assert (seen.name, seen.has_sparse_gradients) == ("SGD", sparse)
