"""garbage_collector: exempt what exists when training begins from Python's garbage collections.

Helps: scripts with many Python objects (lists of samples, vocabularies, annotations), which every
    full collection walks through. Loader workers share more memory. The setting is the factor by
    which young objects are looked at less often.
Hurts: memory, where the script makes cycles of objects that hold tensors: they are found later,
    the more so the larger the factor. A collector that the script has set itself is left alone.
Maths: exact. No tensor changes; objects in cycles only live longer. A script that looks for
    objects or collects them by hand (`gc.get_objects`, `gc.collect()`) reaches the frozen ones,
    too. A script that could tell when an object is collected (`__del__`, `weakref`,
    `gc.callbacks`, `print(gc.collect())`), that imports functions of `gc` by name or asks for the
    collector's settings keeps its collector.
Source: https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import atexit
import gc
from dis import get_instructions
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hasten.lever import STEP, Lever, at_least, unless
from hasten.records import Effect, Scope
from hasten.root_calls.own_code import find_word, mention

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from hasten.lever import ScriptContext, Training

_STOCK_COUNTS = (700, 2000)  # up to Python 3.12, and since
_TELLING = (
    "__del__", "weakref", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "finalize",
    "get_count", "get_freeze_count", "get_referrers", "get_stats", "get_threshold", "set_debug",
    "set_threshold", "unfreeze",
)  # fmt: skip
"""Names in a script that could reveal when objects are collected, or among how many others."""
_LEAST_SHARE_RATIO = 0.01
_MOST_SHARE_RATIO = 0.9


def _share_ratio(context: ScriptContext) -> float | None:
    spent_s = context.traits.collector.step_s
    if spent_s is None or context.baseline is None:
        return None
    return min(_MOST_SHARE_RATIO, spent_s / context.baseline.step_s)


def _set_by_the_script(enabled: bool | None, threshold_count: int | None, frozen_count: int) -> str:
    if enabled is False:
        return "the script has switched the collector off"
    if threshold_count not in (None, *_STOCK_COUNTS):
        return f"the script lets the collector run after {threshold_count} new objects"
    return f"the script has frozen {frozen_count} objects" if frozen_count else ""


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    own = context.traits.collector
    if why := _set_by_the_script(own.is_enabled, own.threshold_count, own.frozen_count):
        return why
    share = _share_ratio(context)
    if share is None:
        return "the collections of a step were not timed"
    return "" if share >= _LEAST_SHARE_RATIO else f"garbage collections take {share:.1%} of a step"


def forecast(context: ScriptContext, factor: int) -> float | None:
    """Return the speed-up of a step without any collection."""
    share = _share_ratio(context)
    return None if share is None else 1.0 / (1.0 - share)


class _Tuned:
    """What exists is frozen, and young objects are looked at less often."""

    def __init__(self, training: Training, factor: int) -> None:
        self._training = training
        self._factor = factor
        self._own: tuple[int, ...] = ()
        self._raised: tuple[int, ...] = ()
        self._frozen_count = 0
        self._undos = [
            training.on_root(self._begin),
            training.on_optimizer(self._begin),
            training.on_function("gc", "get_objects", self._look),
            training.on_function("gc", "collect", self._collect),
        ]

    def _begin(self, _: Any) -> None:
        """Freeze what is alive, once training begins: the data set and the model are there."""
        if self._own:
            return
        self._own = self._raised = gc.get_threshold()
        if _set_by_the_script(gc.isenabled(), self._own[0], gc.get_freeze_count()):
            return
        if where := mention(_TELLING) or find_word(_looks_on):
            self._training.excuse(RuntimeError(f"the collector stays as it is: {where}"))
            return
        gc.collect()  # what is garbage now would stay for ever
        gc.freeze()
        atexit.register(_thaw)
        self._frozen_count = gc.get_freeze_count()
        self._raised = (self._own[0] * self._factor, *self._own[1:])
        gc.set_threshold(*self._raised)

    def _look(self, look: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answer with the frozen objects, too, which Python leaves out."""
        frozen_count, self._frozen_count = self._frozen_count, 0
        if frozen_count:
            gc.unfreeze()
        try:
            return look(*args, **kwargs)
        finally:
            if frozen_count:
                gc.collect()  # what is garbage now would stay for ever
                gc.freeze()
                self._frozen_count = gc.get_freeze_count()

    def _collect(self, collect: Callable[..., int], generation: int = 2) -> int:
        """Collect what the script asks for: a full collection sees the frozen objects, too."""
        return self._look(collect, generation) if generation == 2 else collect(generation)

    def undo(self) -> None:
        """Put back what the script set."""
        for undo in self._undos:
            undo()
        atexit.unregister(_thaw)
        if self._frozen_count:
            gc.unfreeze()
        if self._own and gc.get_threshold() == self._raised:
            gc.set_threshold(*self._own)


def _looks_on(code: CodeType) -> str:
    """Return how code looks on collections: by callbacks, by counts, by functions of its own."""
    if "gc" not in code.co_names:
        return ""
    is_asked = False
    words = (one for one in get_instructions(code) if one.opname != "EXTENDED_ARG")
    for one, following in pairwise(words):
        if one.argval == "gc" and following.opname == "IMPORT_FROM":
            return f"{following.argval} of gc"
        if one.argval == "gc" and following.argval == "callbacks":
            return "gc.callbacks"
        is_asked = is_asked or (one.argval == "gc" and following.argval == "collect")
        if is_asked and one.opname.startswith("CALL"):
            if following.opname != "POP_TOP":
                return "gc.collect()"
            is_asked = False
    return ""


def _thaw() -> None:
    """Let what Python collects at its end reach the frozen objects: some close files then."""
    gc.unfreeze()


def apply(training: Training, factor: int) -> Callable[[], None]:
    """Wait until training begins."""
    return _Tuned(training, factor).undo


def _snippet(factor: int) -> str:
    frozen = "gc.collect(); gc.freeze()  # right before the training loop"
    if factor == 1:
        return frozen
    return f"{frozen}\ngc.set_threshold({factor} * gc.get_threshold()[0], *gc.get_threshold()[1:])"


LEVER = Lever(
    name="garbage_collector",
    phases=STEP,
    effect=Effect.EXACT,
    # The full collection at a switch spares the other plan its next one: no switching by step.
    scope=Scope.PROCESS,
    kind=int,
    validate=at_least(1),
    settings=unless(why_not, 10, 1),
    gain_ratio=2.0,
    why_not=why_not,
    snippet=_snippet,
    forecast=forecast,
    apply=apply,
    edit="process.garbage_collector",
    cures=frozenset({"gc-pauses"}),
)
