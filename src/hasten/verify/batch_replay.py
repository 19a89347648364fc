"""Batches and generators of the script as it is, kept and given to another run of it.

A candidate that draws other random numbers for its samples gets other batches, and nothing that
it learns from them can be compared. So the first run keeps each batch, with the generators as
they stood when it was there; the candidate still makes its own, which are looked at, and then
trains on the kept ones.
"""

from __future__ import annotations

import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST_BYTES = 1 << 28


def generators() -> dict[str, Any]:
    """Return the states of the generators that a script draws from without naming one."""
    import torch

    states: dict[str, Any] = {"torch": [torch.get_rng_state()], "python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["torch"] += torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Put the generators where `generators` found them."""
    import torch

    torch.set_rng_state(states["torch"][0])
    if len(states["torch"]) > 1:
        torch.cuda.set_rng_state_all(states["torch"][1:])
    random.setstate(states["python"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])


class BatchRecorder:
    """Keep the first batches in a folder, as many as fit; one that cannot be pickled ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left_bytes = _MOST_BYTES
        self._count = 0

    def keep(self, batch: Any) -> None:
        """Keep a batch that was just made."""
        if self._left_bytes <= 0:
            return
        try:
            content = pickle.dumps((batch, generators()))
        except Exception:  # whatever a class of the script's raises: it is not kept, no more
            self._left_bytes = 0
            return
        self._left_bytes -= len(content)
        if self._left_bytes > 0:
            (self._folder / f"batch{self._count}").write_bytes(content)
            self._count += 1


class BatchReplayer:
    """Give the loop the kept batches in place of its own.

    Args:
        folder: where they are.
        advancers: what is asked for the next batch of an iterator, the first one only; it
            comes before the levers'.
        reseed: draw other numbers after each batch, by this seed, than the script as it is.

    Attributes:
        own: the batch that was really made.
        lacks: there was none left for a batch of the loop.
        count: batches so far.
    """

    def __init__(self, folder: Path, advancers: list[Any], *, reseed: int | None) -> None:
        self.own: Any = None
        self.lacks = False
        self.count = 0
        self._folder = folder
        self._advancers = advancers
        self._reseed = reseed
        self._armed = False
        self._states: dict[str, Any] = {}
        advancers.insert(0, self._advance)

    def arm(self) -> None:
        """Feed the next batch that is asked for; those that it is made of stay as they are."""
        self._armed = True

    def close(self) -> None:
        """Feed no more."""
        if self._advance in self._advancers:
            self._advancers.remove(self._advance)

    def _advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        armed, self._armed = self._armed, False
        later = self._advancers[1:2]
        own = later[0](original, iterator) if later else original(iterator)
        if not armed:
            return own
        self.own = own
        path = self._folder / f"batch{self.count}"
        self.count += 1
        if self.lacks or not path.exists():
            self.lacks = True
            return own
        # Written by the run before, in a folder of our own.
        batch, states = pickle.loads(path.read_bytes())
        self._states = states
        return batch

    def settle(self) -> None:
        """Put the generators where they stood when the batch was made, or aside by `reseed`."""
        if self.lacks or not self._states:
            return
        set_generators(self._states)
        if self._reseed is not None:
            reseed(self._reseed, self.count)


def reseed(seed: int, index: int) -> None:
    """Seed torch's generator with a number that belongs to `seed` and `index`."""
    import torch

    torch.manual_seed(seed * 1_000_003 + index)
