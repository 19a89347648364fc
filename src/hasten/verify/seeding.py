"""Pin every source of chance that a script left unseeded, so that two launches agree.

Only calls without a seed are touched; a seed that the script gives is the script's. What cannot be
pinned (os.urandom, the time of day, generators in C++) is found by the first gate.

Ranks of a real run that share batches are given `draw`, so that they draw the same, and each time
something else. There, os.urandom is pinned, too.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[int], int]


def pin_python(seed: int, draw: Draw | None = None) -> None:
    """Seed `random`, and make `random.seed()` without a seed repeat it."""
    import random

    reseed = random.seed

    def pinned(a: Any = None, version: int = 2) -> None:
        reseed(_again(seed, draw, 64) if a is None else a, version)

    random.seed = _named(pinned, "random")
    reseed(seed)


def pin_numpy(seed: int, draw: Draw | None = None) -> None:
    """Seed numpy's global state, and each generator that is made without a seed."""
    import random

    import numpy

    np: Any = numpy
    reseed, ours = np.random.seed, seed

    def pinned(seed: Any = None) -> None:
        reseed(_again(ours, draw, 32) if seed is None else seed)

    # Generators of every kind, such as those of a library that searches hyperparameters, take
    # their entropy from here.
    np.random.bit_generator.randbits = draw or random.Random(seed).getrandbits
    np.random.seed = _named(pinned, "numpy.random")
    reseed(ours)


def pin_torch(seed: int, draw: Draw | None = None) -> None:
    """Seed torch, and make `torch.seed()` repeat it."""
    import torch as module

    torch: Any = module
    reseed = torch.manual_seed

    def pinned() -> int:
        found = _again(seed, draw, 63)
        reseed(found)
        return found

    torch.seed = torch.random.seed = _named(pinned, "torch.random")
    pinned()


def pin_system(draw: Draw) -> None:
    """Let the entropy of the system come from `draw`, and that of `random.Random()`."""
    import random

    def urandom(size: int, /) -> bytes:
        return draw(8 * size).to_bytes(size)

    kind: Any = random.Random
    reseed = kind.seed

    def pinned(self: Any, a: Any = None, version: int = 2) -> None:
        reseed(self, draw(64) if a is None else a, version)

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]  # of `SystemRandom`, and of `secrets`
    kind.seed = _named(pinned, "random")


def agreed(seed: int) -> Draw:
    """Return what draws so many bits: the same in each process that is given this seed.

    Each line of code draws numbers of its own, so that a thread that draws now and then does not
    shift those of others; so does each worker process.
    """
    counts: Counter[Any] = Counter()

    def draw(bit_count: int) -> int:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        processes: Any = sys.modules.get("multiprocessing.process")
        worker = getattr(getattr(processes, "_current_process", None), "_identity", ())
        place = worker, os.path.basename(frame.f_code.co_filename), frame.f_lineno
        counts[place] += 1
        key = repr((seed, place, counts[place])).encode()
        found = int.from_bytes(hashlib.shake_256(key).digest(bit_count // 8 + 1))
        return found & ((1 << bit_count) - 1)

    return draw


def _again(seed: int, draw: Draw | None, bit_count: int) -> int:
    return seed if draw is None else draw(bit_count)


def _named(pinned: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Give a function the name under which the script finds it, so that it can be pickled."""
    pinned.__module__, pinned.__name__, pinned.__qualname__ = module, "seed", "seed"
    return pinned
