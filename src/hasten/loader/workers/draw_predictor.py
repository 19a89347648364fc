"""How many random words an item draws, and the generator states after it, without fetching it.

All three global generators are Mersenne Twisters: a state and the number of 32-bit words
drawn determine the next state. Items that always draw the same number can be made by several
processes at once, each starting where the earlier items will have left the generators.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, NamedTuple

from hasten.loader import random_states

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_WORDS = 1 << 16


class DrawPredictor(NamedTuple):
    """The 32-bit words that one sample draws from torch's, Python's and NumPy's generator."""

    torch_count: int
    python_count: int
    numpy_count: int

    def skip(self, before: random_states.States, sample_count: int) -> random_states.States:
        """Return the states after `sample_count` samples."""
        own = random_states.read()
        try:
            random_states.restore(before)
            for advance, count in zip(_ADVANCE, self, strict=True):
                if count:
                    advance(count * sample_count)
            return random_states.read()
        finally:
            random_states.restore(own)


def learn(
    draws: Sequence[tuple[random_states.States, random_states.States, int]],
) -> DrawPredictor | None:
    """Return the words per sample that explain all batches exactly; None if none do.

    Args:
        draws: for each batch, the states before and after, and its number of samples.
    """
    before, after, sample_count = draws[0]
    if not sample_count:
        return None
    counts = []
    own = random_states.read()
    try:
        for place in range(len(_ADVANCE)):
            count = _words_between(before, after, place, sample_count)
            if count is None:
                return None
            counts.append(count)
    finally:
        random_states.restore(own)
    words = DrawPredictor(*counts)
    explained = all(words.skip(start, count) == end for start, end, count in draws)
    return words if explained else None


def _words_between(
    before: random_states.States, after: random_states.States, place: int, sample_count: int
) -> int | None:
    """Return the words per sample that take one generator from one state to the other."""
    if before[place] == after[place]:
        return 0
    random_states.restore(before)
    for count in range(1, 1 + _MOST_WORDS // sample_count):
        _ADVANCE[place](sample_count)
        if _READ[place]() == after[place]:
            return count
    return None


def _advance_torch(count: int) -> None:
    import torch

    torch.empty(count, dtype=torch.int32, device="cpu").random_()


def _advance_python(count: int) -> None:
    random.getrandbits(32 * count)


def _advance_numpy(count: int) -> None:
    sys.modules["numpy.random"].bytes(4 * count)


_ADVANCE: tuple[Callable[[int], None], ...] = (_advance_torch, _advance_python, _advance_numpy)
_READ: tuple[Callable[[], object], ...] = (
    random_states.read_torch,
    random.getstate,
    random_states.read_numpy,
)
