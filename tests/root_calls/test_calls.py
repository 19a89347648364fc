"""What of a call a compiler depends on, and what is better not compiled."""

from dataclasses import dataclass

import torch

from hasten.root_calls.calls import loosen, signature
from hasten.root_calls.values import tensors_in


def test_sizes_types_layouts_and_values_tell_calls_apart() -> None:
    kinds = [
        (torch.zeros(4, 6),), (torch.zeros(2, 6),), (torch.zeros(4, 6).double(),),
        (torch.zeros(6, 4).t(),), [torch.zeros(4, 6)], {"x": torch.zeros(4, 6)},
        (torch.zeros(4, 6), 1), (torch.zeros(4, 6), True), (torch.zeros(4, 6), 1.0),
    ]  # fmt: skip
    assert len({signature(kind) for kind in kinds}) == len(kinds)
    assert signature((torch.zeros(4, 6),)) == signature((torch.ones(4, 6),))


def test_what_asks_for_its_gradient_or_is_of_another_class_is_odd() -> None:
    class Batch(list):
        pass

    assert signature((torch.zeros(2, requires_grad=True),)) is None
    assert signature([Batch([torch.zeros(2)])]) is None
    assert signature({"x": torch.zeros(2).to_sparse()}) is None
    assert signature((torch.zeros(2, requires_grad=True) * 2,)) is not None


def test_a_loose_signature_forgets_sizes_and_numbers_but_not_structure() -> None:
    small, large = (torch.zeros(2, 6), 3, "mean"), (torch.zeros(9, 7), 5, "mean")
    assert loosen(signature(small)) == loosen(signature(large))
    for other in ((torch.zeros(2), 3, "mean"), (torch.zeros(2, 6), 3, "sum"), [*small]):
        assert loosen(signature(small)) != loosen(signature(other))


def test_finds_tensors_in_tuples_and_dicts() -> None:
    made = torch.zeros(2, requires_grad=True) * 2
    found = tensors_in((None, {"loss": made}, ["text", object(), made]))
    assert [one is made for one in found] == [True, True]


def test_finds_one_in_a_dataclass_without_a_dictionary() -> None:
    @dataclass(slots=True)
    class Output:
        loss: torch.Tensor
        kind: type = int

    made = torch.zeros(2, requires_grad=True) * 2
    assert tensors_in(Output(made))[0] is made
