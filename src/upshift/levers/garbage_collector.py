"""garbage_collector: leave what exists when training begins out of Python's garbage collections.

Helps: scripts with many Python objects (lists of samples, vocabularies, annotations), which every
    full collection walks through, and those that call `gc.collect()` in the loop. Loader workers
    share more memory. The setting is the factor by which young objects are looked at less often.
Hurts: memory, where the script makes cycles of objects that hold tensors: they are found later,
    and later still by a factor. A collector that the script has set itself is left alone.
Maths: exact. No tensor changes; objects in cycles only live for longer.
Source: https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from upshift.lever import STEP, Lever, at_least
from upshift.records import Effect, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training

_STOCK_COUNTS = (700, 2000)  # up to Python 3.12, and since
_LEAST_SHARE_RATIO = 0.01
_MOST_SHARE_RATIO = 0.9


def _share_ratio(scene: Scene) -> float | None:
    """Return the share of a step that collections take; None where nobody timed them."""
    spent_s = scene.traits.get("gc.step_s")
    if spent_s is None or scene.baseline is None:
        return None
    return min(_MOST_SHARE_RATIO, float(spent_s) / scene.baseline.step_s)


def _set_by_the_script(enabled: object, threshold_count: object, frozen_count: object) -> str:
    """Return what the script has done to the collector, or nothing."""
    if not enabled:
        return "the script has switched the collector off"
    if threshold_count not in _STOCK_COUNTS:
        return f"the script lets the collector run after {threshold_count} new objects"
    return f"the script has frozen {frozen_count} objects" if frozen_count else ""


def _own(scene: Scene) -> str:
    traits = scene.traits
    return _set_by_the_script(
        traits.get("gc.enabled", True),
        traits.get("gc.threshold_count", _STOCK_COUNTS[0]),
        traits.get("gc.frozen_count", 0),
    )


def settings(scene: Scene) -> tuple[int, ...]:
    """Return factors for the first threshold, where collections take enough of a step."""
    share = _share_ratio(scene)
    if share is None or share < _LEAST_SHARE_RATIO or _own(scene):
        return ()
    return (10, 1)


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    if own := _own(scene):
        return own
    share = _share_ratio(scene)
    if share is None:
        return "nobody has timed the collections of a step"
    return f"garbage collections take {share:.1%} of a step"


def forecast(scene: Scene, factor: int) -> float | None:
    """Return the speed-up of a step without any collection."""
    share = _share_ratio(scene)
    return None if share is None else 1.0 / (1.0 - share)


def _tune(factor: int) -> Callable[[], None]:
    """Freeze what is alive, and look at young objects less often; the result undoes both."""
    before = gc.get_threshold()
    if _set_by_the_script(gc.isenabled(), before[0], gc.get_freeze_count()):
        return lambda: None
    raised = (before[0] * factor, *before[1:])
    gc.collect()  # what is garbage now would stay for ever
    gc.freeze()
    gc.set_threshold(*raised)

    def undo() -> None:
        gc.unfreeze()
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)

    return undo


def pull(training: Training, factor: int) -> Callable[[], None]:
    """Wait until training begins: then the data set and the model are there."""
    undos: list[Callable[[], None]] = []

    def begin(_: Any) -> None:
        if not undos:
            undos.append(_tune(factor))

    undos_of_waiting = [training.on_root(begin), training.on_optimizer(begin)]

    def undo() -> None:
        for put_back in (*undos_of_waiting, *undos):
            put_back()

    return undo


def _lines(factor: int) -> str:
    frozen = "gc.collect(); gc.freeze()  # right before the training loop"
    if factor == 1:
        return frozen
    return f"{frozen}\ngc.set_threshold({factor} * gc.get_threshold()[0], *gc.get_threshold()[1:])"


LEVER = Lever(
    name="garbage_collector",
    phases=STEP,
    effect=Effect.EXACT,
    # A full collection on the way in spares the other plan its next one: no step by step.
    switch=Switch.CHILD,
    kind=int,
    wants=at_least(1),
    settings=settings,
    gain_ratio=2.0,
    why_not=why_not,
    lines=_lines,
    forecast=forecast,
    pull=pull,
)
