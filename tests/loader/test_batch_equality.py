"""Batches are equal if no script could tell them apart after their way between processes."""

import torch

from hasten.loader.batch_equality import difference


def test_an_attribute_of_a_tensor_counts() -> None:
    ours, theirs = torch.ones(2), torch.ones(2)
    ours.lengths = torch.tensor([1, 2])
    assert difference(ours, theirs)
    theirs.lengths = torch.tensor([1, 2])
    assert not difference(ours, theirs)
    theirs.lengths[0] = 3
    assert difference(ours, theirs)


def test_the_order_of_a_set_counts() -> None:
    ours, theirs = {8, 16}, {16, 8}  # both fall into one place of its table
    assert list(ours) != list(theirs)
    assert difference({"labels": ours}, {"labels": theirs})
    assert not difference([frozenset(ours)], [frozenset(ours)])
