"""States of generators: read, put back, and as they come out of torch's pinning thread."""

import random

import torch

from hasten.loader import random_states


def listed(told):
    return [listed(one) for one in told] if isinstance(told, tuple) else told


def test_states_of_which_pinning_made_lists_are_states_again() -> None:
    before = random_states.read()
    random.random()
    torch.rand(())
    pinned = random_states.as_read(listed(before))
    assert pinned == before
    assert random_states.read() != before
    random_states.restore(pinned)
    assert random_states.read() == before
    assert random_states.as_read(None) is None
