"""States of generators: read, put back, and as they come out of torch's pinning thread."""

import random
import subprocess
import sys

import pytest
import torch

from hasten.loader import random_states


def listed(told):
    return [listed(one) for one in told] if isinstance(told, tuple) else told


@pytest.mark.child
def test_another_bit_generator_of_numpy_is_read_and_put_back_everywhere() -> None:
    """In a process of its own: NumPy keeps the generator that a script sets."""
    words = [sys.executable, "-W", "error", "-c", OTHER_BITS]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OTHER_BITS = """
import numpy as np
from hasten.loader import random_states

np.random.set_bit_generator(np.random.PCG64(3))
before, marks = random_states.read(), random_states.marks()
assert random_states.read() == before and random_states.marks() == marks
drawn = np.random.rand(3)
assert random_states.read() != before and random_states.marks() != marks
random_states.restore(before)
assert random_states.read() == before
assert (np.random.rand(3) == drawn).all()

import torch
from hasten.root_calls.snapshot import Snapshot, states, went_on
from hasten.verify import record, teaching

def undone(restore):
    restore()
    assert (np.random.rand(3) == drawn).all()

random_states.restore(before)
seen, snapshot = states(), Snapshot(torch.nn.Linear(2, 2))
kept, told = teaching.generators(), record._generator_hash()
assert not went_on(seen)
np.random.rand(3)
assert went_on(seen) and record._generator_hash() != told
undone(snapshot.restore)
undone(lambda: teaching.set_generators(kept))
"""


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
