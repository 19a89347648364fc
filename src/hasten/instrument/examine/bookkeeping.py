"""What each step spends on reporting progress, and on watching itself for errors."""

from __future__ import annotations

import builtins
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from statistics import median
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.instrument.ledger import INDEX
from hasten.instrument.operation_timing import is_compiled, timed_ns
from hasten.instrument.source_lines import OWN, own_place
from hasten.instrument.stand_ins import put
from hasten.records import Phase

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

    Place = tuple[str, int]

# The reporting calls of known libraries, looked up in the modules that the script has imported.
_WRITERS = (
    ("logging", "Logger", ("_log",)),
    ("tqdm.std", "tqdm", ("update", "refresh", "set_postfix", "set_description")),
    ("torch.utils.tensorboard.writer", "SummaryWriter", (
        "add_scalar", "add_scalars", "add_histogram", "add_image", "add_text", "flush")),
    ("tensorboardX.writer", "SummaryWriter", ("add_scalar", "add_histogram", "add_image")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("mlflow.tracking.fluent", "", ("log_metric", "log_metrics")),
    ("rich.progress", "Progress", ("update", "advance", "refresh")),
    ("json", "", ("dump",)),
)  # fmt: skip
_NUMBERS = ("item", "tolist", "cpu", "__float__", "__int__", "__bool__", "__format__", "__repr__")
# An optimizer reads its own step counts as numbers, and a loader does not report.
_SILENT = {INDEX[Phase.OPTIMIZER], INDEX[Phase.DATA], INDEX[Phase.CHECKPOINT]}
_FORWARD = INDEX[Phase.FORWARD]
_PROBE_COUNT = 500
_PLACE_COUNT = 3


class Bookkeeping:
    """Time the calls that report, and the tracebacks that anomaly detection keeps."""

    def __init__(self, watch: Watch) -> None:
        import torch

        self._watch = watch
        self._undos = ExitStack()
        self._busy = False
        self._now_ns = {"reporting": 0, "waiting": 0, "traceback": 0}
        self._found_s: dict[str, list[float]] = {kind: [] for kind in self._now_ns}
        self._call_count = 0
        self._torch = os.path.dirname(torch.__file__) + os.sep  # as a GradScaler's `.item()`
        self._places_ns: Counter[Place] = Counter()
        self._reporting: set[Place] = set()
        self._stand_in(builtins, "print", "reporting")
        for stream in {id(s): s for s in (sys.stdout, sys.stderr)}.values():
            self._stand_in(stream, "write", "reporting")
        for module, owner, names in _WRITERS:
            known: Any = sys.modules.get(module)
            holder = getattr(known, owner, None) if owner else known
            for name in names if holder is not None else ():
                self._stand_in(holder, name, "reporting")
        # Torch's compiler recognises these methods by identity.
        for name in () if is_compiled() else _NUMBERS:
            self._stand_in(torch.Tensor, name, "waiting")
        with suppress(ImportError):
            from torch.fx import traceback

            self._stand_in(traceback, "format_stack", "traceback")

    def _stand_in(self, owner: Any, name: str, kind: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        # A print may wait for its reader; a traceback is pure computation.
        clock = time.thread_time_ns if kind == "traceback" else time.perf_counter_ns

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if self._busy or get_ident() != self._watch.thread or self._is_silent(kind):
                return original(*args, **kwargs)
            self._busy = True
            on_host = kind == "waiting" and args[0].is_cpu
            if kind == "waiting" and not on_host:
                self._watch.ledger.again()  # the wait is for work that was given before
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._busy = False
                spent_ns = clock() - start
                self._note("reporting" if on_host else kind, spent_ns, reads=kind == "waiting")

        with suppress(AttributeError, TypeError):  # the script's own stream may refuse
            self._undos.callback(put(owner, name, stand_in))

    def _is_silent(self, kind: str) -> bool:
        """Return whether a call is not a report but one by an optimizer, a loader, torch or us.

        What a model reads in its forward pass decides how it goes on.
        """
        if kind == "traceback":
            return False
        caller = sys._getframe(2).f_code.co_filename
        current = self._watch.ledger.current
        silent = self._watch.tracker.evaluating or current in _SILENT
        decides = kind == "waiting" and current == _FORWARD
        return silent or decides or caller.startswith((OWN, self._torch))

    def _note(self, kind: str, spent_ns: int, *, reads: bool) -> None:
        self._now_ns[kind] += spent_ns
        if kind == "traceback":
            return
        self._call_count += 1
        place = own_place(sys._getframe(2))
        if place is not None:
            self._places_ns[place] += spent_ns
            if not reads:
                self._reporting.add(place)

    def ended(self) -> None:
        """Note what the step spent."""
        for kind, spent_ns in self._now_ns.items():
            self._found_s[kind].append(spent_ns * 1e-9)
            self._now_ns[kind] = 0

    def end(self) -> dict[str, Any]:
        """Stop intercepting."""
        self._undos.close()
        costliest = [place for place, _ in self._places_ns.most_common(_PLACE_COUNT)]
        steps_count = max(1, len(self._found_s["reporting"]))
        return {
            "reporting_s": self._found_s["reporting"],
            "waiting_s": self._found_s["waiting"],
            "reports_count": self._call_count / steps_count,
            "places": costliest,
            "only_reads": bool(costliest) and costliest[0] not in self._reporting,
            "traceback_s": self._found_s["traceback"],
            "debug_places": self._watch.debug_lines[:_PLACE_COUNT],
            "recording_s": _recording_s(),
        }


def _recording_s() -> float | None:
    """Return what an active profiler adds to one operation; None where none is active."""
    import torch
    from torch.autograd import profiler

    autograd: Any = torch.autograd
    toggle: Any = getattr(profiler, "_toggle_collection_dynamic", None)
    if toggle is None or not autograd._profiler_enabled():
        return None
    number = torch.ones(1, device="cpu")

    def usual_ns() -> float:
        return median(timed_ns(lambda: number.mul_(1.0)) for _ in range(_PROBE_COUNT))

    activities = {torch.profiler.ProfilerActivity.CPU}
    with torch.no_grad():
        with_it = usual_ns()
        toggle(False, activities)
        try:
            without = usual_ns()
        finally:
            toggle(True, activities)
    return max(0.0, with_it - without) * 1e-9


EXAMINER = Bookkeeping
