"""Pin every source of chance that a script left unseeded, so that two launches agree.

Only calls without a seed are touched; a seed that the script gives is the script's. What cannot be
pinned (os.urandom, the time of day, generators in C++) is found by the first gate.
"""

from __future__ import annotations

from typing import Any


def pin_python(seed: int) -> None:
    """Seed `random`, and make `random.seed()` without a seed repeat it."""
    import random

    reseed = random.seed

    def pinned(a: Any = None, version: int = 2) -> None:
        reseed(seed if a is None else a, version)

    random.seed = pinned
    reseed(seed)


def pin_numpy(seed: int) -> None:
    """Seed numpy's global state, and each generator that is made without a seed."""
    import numpy

    np: Any = numpy
    serial = [0]

    def next_seed() -> list[int]:
        serial[0] += 1
        return [seed, serial[0]]

    make_generator, reseed = np.random.default_rng, np.random.seed

    def default_rng(own: Any = None) -> Any:
        return make_generator(next_seed() if own is None else own)

    def pinned(own: Any = None) -> None:
        reseed(seed if own is None else own)

    np.random.default_rng = default_rng
    np.random.seed = pinned
    reseed(seed)


def pin_torch(seed: int) -> None:
    """Seed torch, and make `torch.seed()` repeat it."""
    import torch as module

    torch: Any = module
    reseed = torch.manual_seed

    def pinned() -> int:
        reseed(seed)
        return seed

    torch.seed = torch.random.seed = pinned
    pinned()
