"""Calls that wait for an accelerator, or give its memory back, in the middle of the loop."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators
from hasten.instrument.ledger import INDEX
from hasten.instrument.source_lines import OWN, own_place
from hasten.records import Phase

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_NAMES = ("synchronize", "empty_cache")
# What an evaluation or a checkpoint does is not done in each step.
_SILENT = {INDEX[Phase.EVALUATION], INDEX[Phase.CHECKPOINT]}
_PLACE_COUNT = 3


class Waits:
    """Time `synchronize` and `empty_cache` of each module of a device, in the loop's thread."""

    def __init__(self, watch: Watch) -> None:
        import torch

        self._watch = watch
        self._undos = ExitStack()
        self._busy = False
        self._now_s = dict.fromkeys(_NAMES, 0.0)
        self._found_s: dict[str, list[float]] = {name: [] for name in _NAMES}
        self._call_count = 0
        self._places_ns: Counter[tuple[str, int]] = Counter()
        if not accelerators.in_use():
            return
        modules = (*accelerators.backends(), getattr(torch, "accelerator", None))
        for module in modules:
            for name in _NAMES:
                if hasattr(module, name):
                    answer = partial(self._answer, name)
                    self._undos.callback(self._watch.live.on_function(module, name, answer))

    def _answer(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(2)
        silent = self._watch.tracker.evaluating or self._watch.ledger.current in _SILENT
        if self._busy or silent or caller.f_code.co_filename.startswith(OWN):
            return original(*args, **kwargs)
        self._busy = True
        self._watch.ledger.again()  # the wait is for work that was given before
        start_ns = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            spent_ns = time.perf_counter_ns() - start_ns
            self._busy = False
            self._call_count += 1
            self._now_s[name] += spent_ns * 1e-9
            place = own_place(caller)
            if place is not None:
                self._places_ns[place] += spent_ns

    def ended(self) -> None:
        """Note what the step spent."""
        for name, spent_s in self._now_s.items():
            self._found_s[name].append(spent_s)
            self._now_s[name] = 0.0

    def end(self) -> dict[str, Any]:
        """Leave the calls as they were."""
        self._undos.close()
        if not self._call_count:
            return {}
        return {
            **{f"{name}_s": seconds for name, seconds in self._found_s.items()},
            "calls_count": self._call_count / max(1, len(self._found_s[_NAMES[0]])),
            "places": [place for place, _ in self._places_ns.most_common(_PLACE_COUNT)],
        }


EXAMINER = Waits
