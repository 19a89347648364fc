"""Time every operation of a few steps.

A dispatch mode sees the operations of forward, backward and update one by one. It costs a few
microseconds for each, so the steps under it are never timed as a whole.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Clock = Callable[[], int]
    Ran = Callable[[Any, Any, Any], Any]

_PROBE_COUNT = 200


class OperationMode:
    """Let `ran(operation, args, kwargs)` run the operations of this thread for a while."""

    def __init__(self, ran: Ran) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        def dispatch(mode: Any, operation: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            return ran(operation, args, kw or {})

        # Made here, since torch is not there yet when this file is imported.
        members = {"__torch_dispatch__": dispatch, "supports_higher_order_operators": True}
        self._mode: Any = type("OperationMode", (TorchDispatchMode,), members)()

    def begin(self) -> bool:
        """Begin, unless the script has its own mode, which may come and go at any time."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        if _get_current_dispatch_mode() is not None:
            return False
        self._mode.__enter__()
        return True

    def end(self) -> None:
        """Leave, unless the script has entered a mode on top of ours."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        current: Any = _get_current_dispatch_mode()
        if current is self._mode:
            current.__exit__(None, None, None)


def is_compiled() -> bool:
    """Return whether torch has compiled something here, which bypasses a mode."""
    import sys

    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    frames, stats = counters.get("frames", {}), counters.get("stats", {})
    return bool(frames.get("total") or stats.get("unique_graphs"))  # the latter for `fullgraph`


def timed_ns(call: Callable[[], Any], clock: Clock = time.perf_counter_ns) -> int:
    """Return the nanoseconds of a call."""
    start = clock()
    call()
    return clock() - start


def price_ns(clock: Clock) -> tuple[float, float]:
    """Return the time of an operation on a single number, seen from outside and inside a mode."""
    import torch

    inside: list[int] = []

    def ran(operation: Any, args: Any, kwargs: Any) -> Any:
        inside.append(timed_ns(lambda: operation(*args, **kwargs), clock))
        return args[0]

    number, mode = torch.ones(1, device="cpu"), OperationMode(ran)
    with torch.no_grad():
        outside = [timed_ns(lambda: number.mul_(1.0), clock) for _ in range(_PROBE_COUNT)]
        if not mode.begin():
            return median(outside), median(outside)
        try:
            for _ in range(_PROBE_COUNT):
                number.mul_(1.0)
        finally:
            mode.end()
    return median(outside), median(inside)
