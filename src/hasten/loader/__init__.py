"""The data engine under the script's own DataLoader: same samples, same order, same draws."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hasten.loader.proof.verdict import ASSUMPTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import Training
    from hasten.loader.engine import LoaderEngine

_ENGINES: WeakKeyDictionary[Training, LoaderEngine] = WeakKeyDictionary()


def installed(training: Training) -> LoaderEngine | None:
    """Return the engine for a training's loaders; None where no lever has asked for it."""
    return _ENGINES.get(training)


def engine_for(training: Training) -> LoaderEngine:
    """Return the engine for a training's loaders; the first call installs it at the seams."""
    # The parent only asks levers what to try, so it need not load these.
    from hasten.loader.cache_warmup import CacheWarmups
    from hasten.loader.engine import LoaderEngine

    training = getattr(training, "itself", training)  # what the child hands to one lever only
    engine = installed(training)
    if engine is None:
        clock = _clock_of(weakref.ref(training))
        warmups = CacheWarmups(clock) if training.trial else None
        if warmups is not None:
            training.on_first_pass(warmups.cost_s)
        engine = _ENGINES[training] = LoaderEngine(
            warmups=warmups, clock=clock, granted=ASSUMPTION in training.assumed
        )
        training.on_loader(engine.make)
        training.on_next(engine.advance)
    return engine


def _clock_of(training: weakref.ref[Training]) -> Callable[[], float]:
    """Return a loop's clock, which stops while its trial is parked."""

    def now_s() -> float:
        known = training()
        return time.monotonic() - (known.paused_s if known is not None else 0.0)

    return now_s
