"""Pin every source of chance that a script left unseeded, so that two launches agree.

Only calls without a seed are touched; a seed that the script gives is the script's. What cannot be
pinned (os.urandom, the time of day, generators in C++) is found by the first gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def pin_python(seed: int) -> None:
    """Seed `random`, and make `random.seed()` without a seed repeat it."""
    import random

    reseed = random.seed

    def pinned(a: Any = None, version: int = 2) -> None:
        reseed(seed if a is None else a, version)

    random.seed = _named(pinned, "random")
    reseed(seed)


def pin_numpy(seed: int) -> None:
    """Seed numpy's global state, and each generator that is made without a seed."""
    import random

    import numpy

    np: Any = numpy
    reseed, ours = np.random.seed, seed

    def pinned(seed: Any = None) -> None:
        reseed(ours if seed is None else seed)

    # Generators of every kind, such as those of a library that searches hyperparameters, take
    # their entropy from here.
    np.random.bit_generator.randbits = random.Random(seed).getrandbits
    np.random.seed = _named(pinned, "numpy.random")
    reseed(ours)


def pin_torch(seed: int) -> None:
    """Seed torch, and make `torch.seed()` repeat it."""
    import torch as module

    torch: Any = module
    reseed = torch.manual_seed

    def pinned() -> int:
        reseed(seed)
        return seed

    torch.seed = torch.random.seed = _named(pinned, "torch.random")
    pinned()


def _named(pinned: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Give a function the name under which the script finds it, so that it can be pickled."""
    pinned.__module__, pinned.__name__, pinned.__qualname__ = module, "seed", "seed"
    return pinned
