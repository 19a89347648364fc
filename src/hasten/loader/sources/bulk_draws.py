"""Random draws for many samples in one call, from the same stream as draws one by one."""

from __future__ import annotations

from functools import cache
from typing import Any

_PROOF_SEED, _PROOF_COUNT = 1234567, 32
_LOW_WORD, _LOW_24_BITS = 0xFFFFFFFF, 0xFFFFFF

Kinds = tuple["int | None", ...]
"""One sample's draws in order: n for `torch.randint(0, n, (1,))`, None for `torch.rand(1)`."""


def draw(kinds: Kinds, sample_count: int) -> list[Any]:
    """Draw for some samples, at least one, as if each had drawn its `kinds` after the one before.

    Values, and the final state of torch's global generator, are those of the single draws.

    Returns:
        One tensor for each kind, with one entry per sample.
    """
    import torch

    if not kinds:
        return []
    odd_count = sample_count * len(kinds) % 2
    if sample_count == odd_count or not _proved(kinds, torch.get_default_dtype()):
        return _one_by_one(kinds, sample_count, None)
    found = _at_once(kinds, sample_count - odd_count, None)
    if odd_count:
        last = _one_by_one(kinds, 1, None)
        found = [torch.cat(pair) for pair in zip(found, last, strict=True)]
    return found


def _one_by_one(kinds: Kinds, sample_count: int, generator: Any) -> list[Any]:
    import torch

    rows = [
        [
            torch.rand(1, generator=generator)
            if kind is None
            else torch.randint(0, kind, (1,), generator=generator)
            for kind in kinds
        ]
        for _ in range(sample_count)
    ]
    return [torch.cat(column) for column in zip(*rows, strict=True)]


def _at_once(kinds: Kinds, sample_count: int, generator: Any) -> list[Any]:
    """Take the raw words of the Mersenne Twister and do torch's arithmetic on all of them.

    A draw takes one word of 32 bits. Torch hands out words unchanged only in pairs: as an
    int64 over its full range, the first word in the upper half.
    """
    import torch

    pairs = torch.empty(sample_count * len(kinds) // 2, dtype=torch.int64)
    pairs.random_(-(2**63), None, generator=generator)
    halves = torch.stack((pairs >> 32, pairs), dim=1) & _LOW_WORD
    words = halves.view(sample_count, len(kinds)).unbind(1)
    return [
        (word & _LOW_24_BITS).to(torch.float32) * 2**-24 if kind is None else word % kind
        for kind, word in zip(kinds, words, strict=True)
    ]


@cache
def _proved(kinds: Kinds, default_dtype: Any) -> bool:
    """Return whether this torch draws as assumed, tested on generators of our own."""
    import torch

    ours, theirs = (torch.Generator().manual_seed(_PROOF_SEED) for _ in range(2))
    many = _at_once(kinds, _PROOF_COUNT, ours)
    single = _one_by_one(kinds, _PROOF_COUNT, theirs)
    equal = all(
        left.dtype is right.dtype and torch.equal(left, right)
        for left, right in zip(many, single, strict=True)
    )
    return equal and torch.equal(ours.get_state(), theirs.get_state())
